"""What things cost: measurements against goals, and how cost grows with the network.

``pathspace bench`` runs the benchmarks of the repository, the modules of its folder ``benchmarks``.
Each has a first line that says what it compares and a function ``measure(repeats)`` that gives
:class:`Measurement` rows; where they are run, printed, saved and drawn is here.
"""

from pathspace.bench.machine import machine
from pathspace.bench.measurement import Benchmark, Measurement, results_table
from pathspace.bench.timing import interleaved, interleaved_parts, peak_memory

__all__ = [
    "Benchmark",
    "Measurement",
    "interleaved",
    "interleaved_parts",
    "machine",
    "peak_memory",
    "results_table",
]
