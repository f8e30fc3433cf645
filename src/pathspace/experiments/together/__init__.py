"""Many trials as one tensor program.

Trials of one kind differ in seed, rates and other numbers only. Their networks are stacked: every
parameter has a leading axis of trials, one step of one optimizer steps them all. The optimizers are
those of single networks; there is no second implementation of any rule.

Example:
    >>> from pathspace.experiments.together import groups, train_together
    >>> from pathspace.experiments.training import Trial
    >>> trials = [Trial("mlp:64-16-10", "digits", lr=r, epochs=1) for r in (0.1, 0.5)]
    >>> [len(train_together(group)) for group in groups(trials)]
    [2]
"""

from pathspace.experiments.together.engine import train_together
from pathspace.experiments.together.fleet import Fleet
from pathspace.experiments.together.grouping import groups, kind
from pathspace.experiments.together.stack import Stack

__all__ = ["Fleet", "Stack", "groups", "kind", "train_together"]
