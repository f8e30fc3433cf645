"""One page about runs: trials, measured networks and landscapes, read from their files.

:func:`summarize` is what ``pathspace report`` writes.
"""

from pathspace.summary.reading import Runs, read_runs
from pathspace.summary.summarizing import summarize

__all__ = ["Runs", "read_runs", "summarize"]
