"""Pictures. Needs the ``plot`` extra (matplotlib), which is imported when one is drawn."""

from pathspace.plot.measures import draw_comparison, draw_report
from pathspace.plot.skeleton import draw_skeleton

__all__ = ["draw_comparison", "draw_report", "draw_skeleton"]
