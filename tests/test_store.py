"""The trial store: nothing half written, nothing damaged used, nothing done twice."""

import errno
import json
import os
import pickle
import shutil
import signal
import socket
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save

from pathspace.durable import files as store_files
from pathspace.experiments.store import (
    Busy,
    Damaged,
    Lock,
    StoreError,
    StoreWarning,
    TrialStore,
    pack,
    unpack,
)
from pathspace.experiments.store.states import pack_weights, unpack_weights
from pathspace.experiments.training import Classification, Training, TrialInterrupted, train
from trials import SAME, contents, die, end_of, fork, small


@pytest.fixture
def finished(tmp_path):
    """A store with one finished trial."""
    trial = small(epochs=1)
    return trial, TrialStore(tmp_path / "runs"), train(trial, tmp_path / "runs")


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """A store with one trial that was interrupted in its second epoch."""
    trial, advance = small(), Training.advance

    def advance_and_signal(self, batch):
        advance(self, batch)
        if self.iteration == 7:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Training, "advance", advance_and_signal)
    with pytest.raises(TrialInterrupted):
        train(trial, tmp_path / "runs")
    monkeypatch.undo()
    whole = train(trial, tmp_path / "whole")
    return trial, tmp_path / "runs", whole


# States ------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
tensors = st.sampled_from(
    [
        torch.arange(6.0).view(2, 3).t(),
        torch.tensor(3, dtype=torch.int64),
        torch.tensor([True, False]),
        torch.tensor([1.5], dtype=torch.bfloat16),
        torch.empty(0, 4),
        torch.tensor([float("nan"), float("inf")], dtype=torch.float64),
    ]
)
states = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(7), b.nan_to_num(7))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@settings(max_examples=60, deadline=None)
@given(states)
def test_states_come_back_as_they_were(state):
    content = pack(state)
    back = unpack(content)
    assert type(back) is type(state)
    assert same(state, back)
    assert pack(back) == content  # one spelling only


def test_every_altered_byte_is_noticed():
    content = pack({"weights": torch.arange(5.0), "position": [1, 2], "text": "abc"})
    for place in range(len(content)):
        altered = bytearray(content)
        altered[place] ^= 1
        with pytest.raises(Damaged):
            unpack(bytes(altered))
    for length in range(0, len(content), 7):
        with pytest.raises(Damaged):
            unpack(content[:length])
    with pytest.raises(Damaged):
        unpack(content + b"0")


class Trap:
    """Unpickling this would leave a file behind."""

    def __init__(self, folder):
        self.path = folder / "was-here"

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_foreign_files_are_refused_and_nothing_is_unpickled(tmp_path):
    trap = pickle.dumps(Trap(tmp_path))
    for content in (trap, save({"a": torch.ones(2)}), b"", b"\xff" * 100):
        with pytest.raises(Damaged):
            unpack(content)
    with pytest.raises(Damaged):
        unpack_weights(trap)
    torch.save({"a": Trap(tmp_path)}, tmp_path / "file")
    with pytest.raises(Damaged):
        unpack((tmp_path / "file").read_bytes())
    assert not Trap(tmp_path).path.exists()
    pickle.loads(trap)
    assert Trap(tmp_path).path.exists()  # the trap works


def test_tensors_that_share_memory():
    whole = torch.arange(12.0).view(3, 4)
    state = {"whole": whole, "again": whole, "row": whole[1], "column": whole[:, 1]}
    assert same(unpack(pack(state)), state)
    weights = unpack_weights(pack_weights(state))
    assert same({name: weights[name] for name in state}, state)
    assert weights.keys() == state.keys()


def test_what_cannot_be_stored_is_named():
    with pytest.raises(StoreError, match=r"the state at \.a\.1 is of type set"):
        pack({"a": [1, {2}]})
    with pytest.raises(StoreError, match="has a key of float"):
        pack({0.5: 1})


# Finished trials ---------------------------------------------------------------------------------


def test_finished_trials_are_not_trained_again(finished, monkeypatch):
    trial, store, outcome = finished
    monkeypatch.setattr(Training, "__init__", lambda *_: pytest.fail("trained again"))
    again = train(trial, store)
    assert again.was_there
    assert not outcome.was_there
    assert again.curves == outcome.curves
    assert again.seconds == outcome.seconds > 0
    for name, weight in outcome.weights.items():
        assert torch.equal(again.weights[name], weight)


def test_what_a_finished_trial_consists_of(finished):
    trial, store, outcome = finished
    folder = outcome.folder
    assert folder.parent == store.path / "trials"
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*SAME, "timings.json", "environment.json"]
    )
    assert json.loads((folder / "config.json").read_text()) == trial.to_dict()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows == outcome.curves
    assert load_file(folder / "weights.safetensors").keys() == outcome.weights.keys()
    record = store.find(trial)
    assert record.training["optimizer"]["param_groups"][0]["lr"] == trial.lr
    assert record.environment["torch"] == torch.__version__
    assert record.timings["sessions"] == 1
    assert not list((store.path / "running").iterdir())
    assert not list((store.path / "locks").iterdir())


@pytest.mark.parametrize("name", [*SAME, "timings.json", "environment.json"])
@pytest.mark.parametrize("harm", ["alter", "cut", "remove", "replace"])
def test_damaged_results_are_set_aside_and_redone(finished, name, harm):
    trial, store, outcome = finished
    before = contents(outcome.folder)
    path = outcome.folder / name
    content = path.read_bytes()
    if harm == "remove":
        path.unlink()
    else:
        middle = len(content) // 2
        altered = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes(
            {"alter": altered, "cut": content[:-20], "replace": b"something else"}[harm]
        )
    with pytest.raises(Damaged, match=name):
        store.find(trial)
    with pytest.warns(StoreWarning, match=name):
        assert not len(store.results(verify=True))
    notes = []
    with store.claim(trial, report=notes.append) as place:
        assert place.state is None
    again = train(trial, store)
    assert not again.was_there
    assert contents(again.folder) == before
    assert len(notes) == 1
    assert name in notes[0]
    kept = store.path / "damaged" / f"{outcome.folder.name}-1"
    assert name in (kept / "reason.txt").read_text()
    assert len(store.results(verify=True)) == 1


def test_another_trial_under_the_name_is_noticed(finished):
    _, store, outcome = finished
    other = small(epochs=1, seed=1)
    shutil.copytree(outcome.folder, store.folder(other))
    with pytest.raises(Damaged, match="holds another trial than its name says"):
        store.find(other)
    with pytest.warns(StoreWarning, match="another trial"):
        assert len(store.results()) == 1
    assert not train(other, store).was_there


def test_foreign_things_among_the_trials_are_reported(finished):
    _, store, _ = finished
    (store.path / "trials" / "notes.txt").write_text("mine")
    (store.path / "trials" / "old").mkdir()
    with pytest.warns(StoreWarning) as warned:
        assert len(store.results()) == 1
    assert [str(w.message).partition(" is no")[0][-9:] for w in warned] == [
        "notes.txt",
        "rials/old",
    ]
    assert (store.path / "trials" / "notes.txt").exists()


# Interrupted trials ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "metrics.jsonl", "config.json"])
@pytest.mark.parametrize("harm", ["alter", "cut", "replace"])
def test_damaged_checkpoints_are_set_aside_and_redone(interrupted, name, harm, capsys):
    trial, path, whole = interrupted
    (folder,) = (path / "running").iterdir()
    content = (folder / name).read_bytes()
    altered = {
        "alter": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        "cut": content[: len(content) // 2],
        "replace": pickle.dumps(Trap(path)),
    }
    (folder / name).write_bytes(altered[harm])
    outcome = train(trial, path, report="lines")
    said = capsys.readouterr().err
    assert f"damaged: {folder / name}" in said
    assert "set aside as" in said
    assert contents(outcome.folder) == contents(whole.folder)
    assert (path / "damaged" / f"{folder.name}-1" / name).read_bytes() == altered[harm]
    assert not Trap(path).path.exists()


def test_rows_after_the_checkpoint_and_half_files_go(interrupted):
    trial, path, whole = interrupted
    (folder,) = (path / "running").iterdir()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 99, "iter')
    (folder / ".checkpoint.safetensors.123.part").write_bytes(b"half")
    outcome = train(trial, path)
    assert contents(outcome.folder) == contents(whole.folder)
    assert not list(outcome.folder.glob(".*"))
    assert TrialStore(path).find(trial).timings["sessions"] == 2


def test_other_data_is_noticed(interrupted, monkeypatch):
    trial, path, _ = interrupted
    plain = Classification.__init__

    def fewer(self, *arguments, **options):
        plain(self, *arguments, **options)
        self.notes = ("subset: 100 of 160 training images",)

    monkeypatch.setattr(Classification, "__init__", fewer)
    with pytest.raises(StoreError, match="the data is not what the training began with"):
        train(trial, path)


# The folder --------------------------------------------------------------------------------------


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(StoreError, match="is no trial store"):
        TrialStore(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_later_layout_is_refused(tmp_path):
    (tmp_path / "store.json").write_text('{"format": 2}')
    with pytest.raises(StoreError, match="has layout 2"):
        TrialStore(tmp_path)
    (tmp_path / "store.json").write_text("?")
    with pytest.raises(Damaged, match="cannot be read"):
        TrialStore(tmp_path)


def test_looking_creates_nothing(tmp_path):
    store = TrialStore(tmp_path / "new")
    assert store.find(small()) is None
    assert len(store.results()) == 0
    assert not store.path.exists()


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "can be written")]
)
def test_a_disk_that_refuses(number, words, tmp_path, monkeypatch):
    trial, whole = small(), train(small(), tmp_path / "whole")
    plain, count = os.replace, 0

    def refuse(source, target):
        nonlocal count
        count += 1
        if count == 6:
            raise OSError(number, os.strerror(number))
        plain(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StoreError, match=words) as caught:
        train(trial, tmp_path / "runs", checkpoint_every=0)
    assert os.strerror(number) in str(caught.value)
    monkeypatch.undo()
    assert contents(train(trial, tmp_path / "runs").folder) == contents(whole.folder)
    assert not list((tmp_path / "runs").rglob("*.part"))


def test_a_file_in_place_of_the_store(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"a part of that path is a file|cannot be"):
        train(small(), tmp_path / "file")


def test_files_are_forced_to_the_disk_before_they_get_their_name(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        plain = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, p=plain: (calls.append(n), p(*a))[1])
    store_files.write_file(tmp_path / "file", b"content")
    assert calls == ["fsync", "replace", "fsync"]  # the file, its name, the folder
    assert (tmp_path / "file").read_bytes() == b"content"


# Results -----------------------------------------------------------------------------------------


def test_results_as_a_frame(tmp_path):
    steps = ("unit_interval", "subset:train=200:test=50", "flatten", "validation_split:40")
    trials = [small(epochs=1, seed=seed) for seed in range(2)]
    trials.append(small(epochs=2, preprocess=steps, options={"momentum": 0.9}))
    outcomes = [train(trial, tmp_path) for trial in trials]
    frame = TrialStore(tmp_path).results()
    assert isinstance(frame, pd.DataFrame)
    assert sorted(frame.index) == sorted(trial.key[:16] for trial in trials)
    for trial, outcome in zip(trials, outcomes, strict=True):
        row = frame.loc[trial.key[:16]]
        assert row["seed"] == trial.seed
        assert row["test_error"] == outcome.final["test_error"]
        assert row["status"] == "finished"
        assert row["seconds"] > 0
    last = frame.loc[trials[-1].key[:16]]
    assert last["options.momentum"] == 0.9
    assert last["best_validation_error"] == outcomes[-1].best["validation_error"]
    assert frame.groupby("model")["test_error"].mean().notna().all()


# Locks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flock", [True, False])
def test_a_lock_holds_one(flock, tmp_path):
    path = tmp_path / "lock"
    first, second = Lock(path, flock=flock), Lock(path, flock=flock)
    assert first.acquire()
    assert not second.acquire()
    assert second.holder() == f"process {os.getpid()} on {socket.gethostname()}"
    first.release()
    assert not path.exists()
    assert second.acquire()
    second.release()


@pytest.mark.parametrize("flock", [True, False])
def test_a_killed_process_leaves_no_lock(flock, tmp_path):
    path = tmp_path / "lock"

    def hold():
        assert Lock(path, flock=flock).acquire()
        die()

    assert end_of(fork(hold)) == -signal.SIGKILL
    assert path.exists()
    lock = Lock(path, flock=flock)
    assert lock.acquire()
    lock.release()


def test_locks_of_other_hosts_and_living_processes_stay(tmp_path):
    path = tmp_path / "lock"
    for pid, host in ((2**22 + 1, "elsewhere"), (os.getpid(), socket.gethostname())):
        path.write_text(json.dumps({"pid": pid, "host": host}))
        assert not Lock(path, flock=False).acquire()
    path.write_text("?")
    assert not Lock(path, flock=False).acquire()


def test_many_processes_one_lock(tmp_path):
    """Each adds one to a number in a file, reading and writing it apart."""
    number = tmp_path / "number"
    number.write_text("0")

    def add():
        for _ in range(10):
            lock = Lock(tmp_path / "lock")
            while not lock.acquire():
                pass
            value = int(number.read_text())
            time.sleep(0.0005)
            number.write_text(str(value + 1))
            lock.release()

    children = [fork(add) for _ in range(4)]
    assert [end_of(pid) for pid in children] == [0] * 4
    assert number.read_text() == "40"


def test_a_trial_under_way_is_busy(tmp_path):
    trial, store = small(), TrialStore(tmp_path / "runs")
    with store.claim(trial):
        with pytest.raises(Busy, match=f"process {os.getpid()} on .* works on this trial"):
            train(trial, store, wait=False)
        assert train(small(seed=1), store).status == "finished"  # others are free
    assert train(trial, store, wait=False).status == "finished"
