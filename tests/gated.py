"""Computations that last until a test lets them go, and say who began them."""

import os
import signal
import time
import uuid
from pathlib import Path

from pathspace.experiments.training import TrialInterrupted


def wait_for_gate(outcomes, data_dir, folder, name):
    """Leave a note, wait for the gate, and count the outcomes that were given."""
    (Path(folder) / f"{name}.{os.getpid()}.{uuid.uuid4().hex}").touch()
    while not (Path(folder) / "gate").exists():
        time.sleep(0.02)
    return {"name": name, "outcomes": len(outcomes)}


def began(folder, name):
    """The processes that began a computation."""
    return [int(note.name.split(".")[1]) for note in Path(folder).glob(f"{name}.*")]


def wait_until(condition, seconds=120):
    """Look until something is so; a test that hangs says nothing."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def square(outcomes, data_dir, folder, number):
    """Leave a note each time, so that a test can count."""
    (Path(folder) / f"{number}.{uuid.uuid4().hex}").touch()
    return {"square": number**2, "weights": [outcome.weights for outcome in outcomes]}


def fail(outcomes, data_dir):
    raise ZeroDivisionError("by nothing")


def die(outcomes, data_dir):
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(outcomes, data_dir):
    raise TrialInterrupted("SIGTERM: stopped", signal.SIGTERM)


def no_mapping(outcomes, data_dir):
    return 3
