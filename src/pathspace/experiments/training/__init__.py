"""The training engine: trials in, outcomes out.

A :class:`Trial` says everything about a training; :func:`train` does it, and with a store does it
once only. The parts go by name, in tables that are data: optimizers, schedules, losses, stopping
rules, initialisations, penalties.

Example:
    >>> from pathspace.experiments.training import Trial, train
    >>> trial = Trial("mlp:64-16-10", "digits", optimizer="gsgd", lr=0.5, epochs=2)
    >>> train(trial).status
    'finished'
"""

from pathspace.experiments.training.classification import Classification
from pathspace.experiments.training.distributed import Ranks
from pathspace.experiments.training.engine import train
from pathspace.experiments.training.errors import RankError, TrialError, TrialInterrupted
from pathspace.experiments.training.initialisation import INITIALISATIONS
from pathspace.experiments.training.launching import joined
from pathspace.experiments.training.losses import LOSSES, binary_cross_entropy, truncated_softmax
from pathspace.experiments.training.optimizers import OPTIMIZERS, make_optimizer
from pathspace.experiments.training.outcome import Outcome
from pathspace.experiments.training.preparation import isolated, prepare_step, prepare_task
from pathspace.experiments.training.ranking import Ranking
from pathspace.experiments.training.regularizers import PENALTIES, insert_dropout_
from pathspace.experiments.training.reporting import Bar, Lines, Quiet, Reporter
from pathspace.experiments.training.schedules import SCHEDULES
from pathspace.experiments.training.step import Step
from pathspace.experiments.training.stopping import RULES
from pathspace.experiments.training.task import Task
from pathspace.experiments.training.training import Training
from pathspace.experiments.training.trial import Trial

__all__ = [
    "INITIALISATIONS",
    "LOSSES",
    "OPTIMIZERS",
    "PENALTIES",
    "RULES",
    "SCHEDULES",
    "Bar",
    "Classification",
    "Lines",
    "Outcome",
    "Quiet",
    "RankError",
    "Ranking",
    "Ranks",
    "Reporter",
    "Step",
    "Task",
    "Training",
    "Trial",
    "TrialError",
    "TrialInterrupted",
    "binary_cross_entropy",
    "insert_dropout_",
    "isolated",
    "joined",
    "make_optimizer",
    "prepare_step",
    "prepare_task",
    "train",
    "truncated_softmax",
]
