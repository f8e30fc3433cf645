"""The trial store: results on disk, computed once, and safe from crashes.

Example:
    >>> import tempfile
    >>> from pathspace.experiments.store import TrialStore
    >>> from pathspace.experiments.training import Trial, train
    >>> store = TrialStore(tempfile.mkdtemp())
    >>> trial = Trial("mlp:64-8-10", "digits", lr=0.1, epochs=2)
    >>> outcome = train(trial, store)
    >>> store.results()[["optimizer", "lr", "status", "epoch"]].values.tolist()
    [['sgd', 0.1, 'finished', 2]]
"""

from pathspace.durable.errors import Busy, Damaged, StoreError
from pathspace.durable.locking import Lock
from pathspace.experiments.store.records import Record, read_record
from pathspace.experiments.store.states import pack, unpack
from pathspace.experiments.store.store import StoreWarning, TrialStore
from pathspace.experiments.store.workplace import Workplace

__all__ = [
    "Busy",
    "Damaged",
    "Lock",
    "Record",
    "StoreError",
    "StoreWarning",
    "TrialStore",
    "Workplace",
    "pack",
    "read_record",
    "unpack",
]
