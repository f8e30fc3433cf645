"""The table of measures: what each is, whether rescaling leaves it alone, and how to compute it.

Adding a measure is adding one entry to the tuple of its group. An entry's function takes a
:class:`Subject` and returns a :class:`Reading`, or raises a
:class:`~pathspace.errors.PathspaceError`, which the report shows in place of the number.
"""

from pathspace.measures.measure import Measure, Reading, Subject
from pathspace.measures.table import UnknownMeasure, measures, select

__all__ = ["Measure", "Reading", "Subject", "UnknownMeasure", "measures", "select"]
