"""Death at any moment, full and read-only disks, clocks that go back, and bits that turn."""

import contextlib
import datetime
import json
import os
import random
import signal
import time
import types
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from typer.testing import CliRunner

import faults
import pathspace as ps
from pathspace.experiments import data, models
from pathspace.experiments.executors import Archive, JobError, compute
from pathspace.experiments.reproduce import reproduce
from pathspace.experiments.reproduce.progress import Lines
from pathspace.experiments.store import Damaged, Lock, StoreError, TrialStore, environment
from pathspace.experiments.together import train_together
from pathspace.experiments.training import Training, TrialInterrupted, train
from pathspace.losslandscape import Landscape
from test_data_loading import IMAGES, official, write_small
from trials import SAME, contents, die, end_of, fork, small

# `PATHSPACE_DEATHS=1000 python -m pytest tests/test_faults.py -k moments` takes its time.
DEATHS = int(os.environ.get("PATHSPACE_DEATHS", "60"))
SEED = int(os.environ.get("PATHSPACE_DEATHS_SEED", "0"))

TRIAL = small(optimizer="gsgd", options={"momentum": 0.9}, dropout=0.1, epochs=12)
TRAIN = (
    "mlp:64-12-10", "--data", "digits", "--preprocess", ",".join(TRIAL.preprocess), "--lr", "0.05",
    "--epochs", "12", "--batch", "32", "--optimizer", "gsgd", "--option", "momentum=0.9",
    "--dropout", "0.1", "--checkpoint-every", "0",
)  # fmt: skip
LANDSCAPE = ("mlp:64-12-10", "--data", "digits", "--limit", "200", "--dims", "1", "--grid", "60")


@pytest.fixture(autouse=True)
def _plain(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    faults.only_the_small_one(monkeypatch)


@pytest.fixture
def weights(tmp_path):
    """A file of weights for landscapes."""
    model = models.build("mlp:64-12-10", torch.Generator().manual_seed(0))
    torch.save(model.state_dict(), tmp_path / "a.pt")
    return tmp_path / "a.pt"


# Death at random moments -------------------------------------------------------------------------


def test_trainings_die_at_random_moments(tmp_path, capsys):
    def check(place, whole):
        faults.same_trials(place / "runs", whole / "runs")

    found = faults.kill_often(
        DEATHS * 3 // 10,
        lambda place: ("train", *TRAIN, "--store", place / "runs"),
        lambda place: faults.finished_trials(place / "runs"),
        check,
        tmp_path,
        seed=SEED,
    )
    with capsys.disabled():
        print(f"\ntrain: {found}; {dict(found.codes)}")
    assert contents(TrialStore(tmp_path / "whole" / "runs").find(TRIAL).folder)


def test_landscapes_die_at_random_moments(tmp_path, weights, capsys):
    names = ["landscape.json", "landscape.npz", "line.png"]

    def check(place, whole):
        assert sorted(path.name for path in (place / "around").iterdir()) == names
        for name in names:
            one, other = (folder / "around" / name for folder in (place, whole))
            assert one.read_bytes() == other.read_bytes(), name

    found = faults.kill_often(
        DEATHS * 3 // 10,
        lambda place: ("landscape", *LANDSCAPE, "--weights", weights, "--out", place / "around"),
        lambda place: faults.stamps(*place.glob("around/landscape.json")),
        check,
        tmp_path,
        seed=SEED + 1,
    )
    with capsys.disabled():
        print(f"\nlandscape: {found}; {dict(found.codes)}")


@pytest.mark.parametrize("executor", ["local", "local:2"])
def test_reproductions_die_at_random_moments(executor, tmp_path, capsys):
    def command(place):
        return ("reproduce", "meng2019", "small", "--out", place / "out", "--executor", executor)

    def check(place, whole):
        one, other = (folder / "out" / "archive" for folder in (place, whole))
        assert len(faults.same_trials(one / "store", other / "store")) == 7
        assert faults.computed(one) == faults.computed(other)
        assert not (one / "damaged").exists()
        faults.free_locks(one)
        # No half of a result; of a page there may be one under another name, until it is written.
        assert not list(one.rglob("*.part"))
        claims = [
            json.loads((folder / "out" / "meng2019-small" / "summary.json").read_text())["claims"]
            for folder in (place, whole)
        ]
        assert claims[0] == claims[1]
        assert (place / "out" / "report.html").read_text().endswith("</html>\n")

    with faults.Server() if executor == "local:2" else contextlib.nullcontext() as server:
        found = faults.kill_often(
            DEATHS // 5,
            command,
            lambda place: faults.finished_jobs(place / "out" / "archive"),
            check,
            tmp_path,
            seed=SEED + 2,
            server=server,
        )
    with capsys.disabled():
        print(f"\nreproduce, {executor}: {found}; {dict(found.codes)}")


def test_killed_with_rows_and_stopped_before_the_first(tmp_path):
    """The file of metrics begins anew, and the checkpoint must not count what was cut off."""
    trial, evaluate = small(), Training.evaluate

    def evaluate_and_signal(self, check):
        signal.raise_signal(signal.SIGTERM)
        return evaluate(self, check)

    def killed():
        Training.begin_epoch = lambda self: die()
        train(trial, tmp_path / "runs")  # no checkpoint, for it takes less than 30 seconds

    assert end_of(fork(killed)) == -signal.SIGKILL
    (folder,) = (tmp_path / "runs" / "running").iterdir()
    assert (folder / "metrics.jsonl").stat().st_size > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "evaluate", evaluate_and_signal)
        with pytest.raises(TrialInterrupted):
            train(trial, tmp_path / "runs")
    found, whole = (train(trial, tmp_path / name) for name in ("runs", "whole"))
    assert contents(found.folder) == contents(whole.folder)


@pytest.mark.parametrize("number", range(1, 12, 2))
def test_a_signal_between_the_evaluations_of_trials_that_train_together(number, tmp_path):
    """Some are at the end of an epoch then, and some have begun the next one."""
    trials = [small(seed=seed, dtype="float64") for seed in range(3)]
    whole, evaluate, calls = train_together(trials), Training.evaluate, []

    def evaluate_and_signal(self, check):
        calls.append(self)
        if len(calls) == number:
            signal.raise_signal(signal.SIGTERM)
        return evaluate(self, check)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "evaluate", evaluate_and_signal)
        with pytest.raises(TrialInterrupted):
            train_together(trials, tmp_path)
        for one, other in zip(train_together(trials, tmp_path), whole, strict=True):
            assert_close(one.curves, other.curves, rtol=1e-9, atol=0)
            assert_close(dict(one.weights), dict(other.weights), rtol=1e-9, atol=1e-12)


# Full disks --------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    with faults.small_disk(tmp_path / "disk", "1m") as path:
        if path is None:
            pytest.skip(faults.NO_MOUNT)
        yield path


def invoke(*arguments):
    return CliRunner().invoke(faults.application(), list(map(str, arguments)))


def said(result, code=1):
    """What a command said, without a traceback."""
    assert result.exit_code == code, (result.output, result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return " ".join((result.stderr if code else result.stdout).split())


def fill(disk, command, keep, levels):
    """Give a command on ever fuller disks, then with enough space; how often it failed."""
    failures = 0
    for pages in levels:
        kept = keep()
        with faults.little_space(disk, pages):
            result = invoke(*command)
            if result.exit_code:
                failures += 1
                text = said(result)
                assert (
                    "No space left on device; free some space; the same command then goes" in text
                )
                assert f"error: {disk}" in text  # which file or folder it is
            after = keep()
        assert {key: after.get(key) for key in kept} == kept  # nothing finished is lost
    assert not list(disk.rglob("*.part"))
    assert invoke(*command).exit_code == 0
    return failures


def test_training_on_a_full_disk(disk, tmp_path):
    """From no free page on, until it fits; the same command goes on each time."""
    trial = small(epochs=2)
    first, whole = (train(one, tmp_path / "whole") for one in (small(epochs=1), trial))
    train(first.trial, disk / "runs")
    command = (
        "train", "mlp:64-12-10", "--data", "digits", "--preprocess", ",".join(trial.preprocess),
        "--lr", "0.05", "--epochs", "2", "--batch", "32", "--checkpoint-every", "0", "--store",
        disk / "runs",
    )  # fmt: skip
    finished = partial(faults.finished_trials, disk / "runs")
    assert fill(disk, command, finished, range(12)) >= 5
    store = TrialStore(disk / "runs")
    for outcome in (first, whole):
        assert contents(store.find(outcome.trial).folder) == contents(outcome.folder)
    assert not (store.path / "damaged").exists()
    with faults.little_space(disk, 0):  # what is there can be read
        assert "from the store" in said(invoke(*command), 0)


def test_the_metrics_of_a_full_disk(disk):
    """A row that does not fit is an error too, and not hidden by the one of closing the file."""
    trial, store = small(epochs=1), TrialStore(disk / "runs")

    def log():
        with store.claim(trial) as place:
            full.enter_context(faults.little_space(disk, 0))  # still so when the place is closed
            for number in range(1000):
                place.log({"epoch": number})

    no_space = pytest.raises(StoreError, match=r"metrics.jsonl cannot be written: No space left")
    with contextlib.ExitStack() as full, no_space:
        log()
    assert train(trial, store, wait=False).status == "finished"  # the lock is free


def test_landscapes_on_a_full_disk(disk, weights, tmp_path, monkeypatch):
    monkeypatch.setattr(faults.partial, "INTERVAL", -1.0)
    out = disk / "around"
    options = ("--weights", weights, "--data", "digits", "--limit", "50", "--dims", "1")
    command = ("landscape", "mlp:64-12-10", *options, "--grid", "300")
    assert invoke(*command, "--out", tmp_path / "whole").exit_code == 0
    kept, levels = partial(out.glob, "landscape.json"), (0, 1, 3, 4, 5, 6, 8, 12)
    assert fill(disk, (*command, "--out", out), lambda: faults.stamps(*kept()), levels) >= 5
    names = sorted(path.name for path in out.iterdir())
    assert names == ["landscape.json", "landscape.npz", "line.png"]
    for name in names:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("executor", ["local", "local:2"])
def test_reproductions_on_a_full_disk(executor, disk, tmp_path):
    experiment = ("reproduce", "meng2019", "small", "--quiet")
    command = (*experiment, "--executor", executor, "--out", disk / "out")
    whole = (*experiment, "--executor", "local", "--out", tmp_path / "whole")
    assert invoke(*whole).exit_code == 0
    finished = partial(faults.finished_jobs, disk / "out" / "archive")
    levels = (0, 1, 2, 4, 9, 18, 25, 12, 3, 7, 10) if executor == "local" else (4, 16)
    assert fill(disk, command, finished, levels) >= len(levels) // 2
    one, other = (folder / "archive" for folder in (disk / "out", tmp_path / "whole"))
    faults.same_trials(one / "store", other / "store")
    assert faults.computed(one) == faults.computed(other)
    assert (disk / "out" / "report.html").read_text().endswith("</html>\n")


@pytest.mark.parametrize("ending", ["html", "json", "csv", "txt", "png"])
def test_measurements_on_a_full_disk(ending, disk):
    """An earlier file stays as it was; half of a new one is not there."""
    command = ("measure", "mlp:4-3-2", "--only", "path norm", "--out", disk / f"a.{ending}")
    assert invoke(*command).exit_code == 0
    before = (disk / f"a.{ending}").read_bytes()
    with faults.little_space(disk, 0):
        text = said(invoke(*command))
        assert f"error: {disk}/a.{ending} cannot be written: No space left on device; free" in text
        assert said(invoke(*command[:-1], disk / f"b.{ending}"))
    assert (disk / f"a.{ending}").read_bytes() == before
    assert [path.name for path in disk.iterdir()] == [f"a.{ending}"]


def test_reports_on_a_full_disk(disk, tmp_path):
    train(small(epochs=1), tmp_path / "runs")
    command = ("report", tmp_path / "runs", "--out", disk / "report.html")
    with faults.little_space(disk, 1):
        text = said(invoke(*command))
    assert f"error: {disk}/report.html cannot be written: No space left on device; free" in text
    assert list(disk.iterdir()) == []
    assert invoke(*command).exit_code == 0


# Disks that cannot be written --------------------------------------------------------------------


def test_read_only(disk, weights, tmp_path):
    """What is finished can be read; what is not is an error that says so."""
    trial = ("train", *TRAIN, "--store", disk / "runs")
    around = ("landscape", *LANDSCAPE, "--weights", weights, "--out", disk / "around")
    experiment = ("reproduce", "meng2019", "small", "-q", "--executor", "local")
    results = (*experiment, "--archive", disk / "archive")
    for command in (trial, around, (*results, "--out", tmp_path / "out")):
        assert invoke(*command).exit_code == 0
    network = ps.trace(models.build("mlp:64-12-10"), torch.ones(1, 64))
    sample = torch.rand(9, 64), torch.arange(9)
    there = ps.landscape(network, F.cross_entropy, sample, grid=5, dims=1, folder=disk / "plain")
    with faults.read_only(disk):
        assert "from the store" in said(invoke(*trial), 0)
        assert invoke("report", disk / "runs", disk / "around", "--out", "r.html").exit_code == 0
        assert invoke(*results, "--out", tmp_path / "again").exit_code == 0
        again = ps.landscape(
            network, F.cross_entropy, sample, grid=5, dims=1, folder=disk / "plain"
        )
        assert torch.equal(again.losses, there.losses)
        assert (tmp_path / "again" / "report.html").exists()
        for command in (
            (*trial, "--seed", 1),
            (*around[:-1], disk / "elsewhere"),
            around,  # the pictures
            (*results, "--out", disk / "out"),
            (*experiment, "--out", disk / "out"),
        ):
            text = said(invoke(*command))
            assert "Read-only file system; choose a folder on a disk that can be written" in text
            assert f"error: {disk}" in text
        with pytest.raises(ps.PathspaceError, match=r"plain.*Read-only file system; choose"):
            there.save(disk / "plain")


# Clocks ------------------------------------------------------------------------------------------


@pytest.fixture
def backwards(monkeypatch):
    """A clock that goes back by an hour whenever it is looked at."""
    now = [4e9]

    def earlier():
        now[0] -= 3600
        return now[0]

    class Date(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(earlier(), tz)

    monkeypatch.setattr(time, "time", earlier)
    monkeypatch.setattr(time, "time_ns", lambda: int(earlier() * 1e9))
    dates = types.SimpleNamespace(datetime=Date, UTC=datetime.UTC)
    monkeypatch.setattr(environment, "datetime", dates)
    return now


def into_the_future(folder):
    """Give all files the time of the year 2100."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (4.1e9, 4.1e9))


def interrupted(trial, store, chance):
    """Train until it is done, stopped at random steps, each file from the future."""
    advance, sessions = Training.advance, 1

    def advance_and_stop(self, batch):
        advance(self, batch)
        if chance.random() < 0.1:
            raise TrialInterrupted("stopped", 15)

    while True:
        Training.advance = advance_and_stop
        try:
            return train(trial, store, checkpoint_every=0, wait=False), sessions
        except TrialInterrupted:
            sessions += 1
            into_the_future(store)
        finally:
            Training.advance = advance


def test_trainings_do_not_look_at_the_clock(backwards, tmp_path):
    whole = train(TRIAL, tmp_path / "whole")
    store = tmp_path / "runs"
    found, sessions = interrupted(TRIAL, store, random.Random(0))
    assert sessions > 3
    assert contents(found.folder) == contents(whole.folder)
    assert found.seconds > 0
    assert found.curves == whole.curves
    timings = json.loads((found.folder / "timings.json").read_text())
    assert timings["sessions"] > 3
    into_the_future(store)
    assert train(TRIAL, store).was_there
    # Trials are in the order of their keys, whenever they were trained.
    others = [train(small(epochs=1, seed=seed), store).trial for seed in (2, 0, 1)]
    keys = sorted(trial.key[:16] for trial in (TRIAL, *others))
    assert list(TrialStore(store).results().index) == keys
    assert backwards[0] < 4e9  # somebody looked: the date is noted with the result


def test_locks_do_not_look_at_the_clock(backwards, tmp_path):
    for flock in (True, False):
        path = tmp_path / f"lock{flock}"
        held = Lock(path, flock=flock)
        assert held.acquire()
        os.utime(path, (0, 0))  # as old as can be, and still held
        assert not Lock(path, flock=flock).acquire()
        held.release()

        def hold(path=path, flock=flock):
            assert Lock(path, flock=flock).acquire()
            die()

        end_of(fork(hold))
        os.utime(path, (4.1e9, 4.1e9))  # of the future, and free
        lock = Lock(path, flock=flock)
        assert lock.acquire()
        lock.release()


def test_experiments_do_not_look_at_the_clock(backwards, tmp_path, capsys):
    left = []

    class Told(Lines):
        def finish(self, finished, elapsed, width):
            assert finished.seconds > 0
            assert elapsed > 0
            super().finish(finished, elapsed, width)
            left.append(self.forecast.seconds_left(width))

    archive = Archive(tmp_path / "archive")
    found = reproduce(faults.EXPERIMENT, "quick", archive, progress=Told())
    assert min(left) == left[-1] == 0
    assert all(answer.seconds > 0 for answer in found.answers)
    kept = faults.finished_jobs(archive.path)
    into_the_future(archive.path)
    again = reproduce(faults.EXPERIMENT, "quick", Archive(archive.path))
    assert again.findings.claims == found.findings.claims
    assert again.seconds == found.seconds
    assert {name: inode for name, (inode, _) in faults.finished_jobs(archive.path).items()} == {
        name: inode for name, (inode, _) in kept.items()
    }
    assert "-" not in capsys.readouterr().err.replace("64-", "").replace("-10", "")


def test_landscapes_do_not_look_at_the_clock(backwards, tmp_path, monkeypatch):
    monkeypatch.setattr(faults.partial, "INTERVAL", -1.0)
    network = ps.trace(models.build("mlp:64-12-10"), torch.ones(1, 64))
    sample = torch.rand(9, 64), torch.arange(9)
    seen = []

    def progress(done, total):
        seen.append(done)
        into_the_future(tmp_path)
        if done == 3:  # all of them are written, though hardly any time has passed
            kept = json.loads((tmp_path / "a" / "landscape.partial.json").read_text())
            assert len(kept["losses"]) == 3
            raise KeyboardInterrupt

    options = {"dims": 1, "grid": 8, "chunk": 1}
    with pytest.raises(KeyboardInterrupt):
        ps.landscape(
            network, F.cross_entropy, sample, folder=tmp_path / "a", progress=progress, **options
        )
    found = ps.landscape(
        network, F.cross_entropy, sample, folder=tmp_path / "a",
        progress=lambda done, _: seen.append(done), **options,
    )  # fmt: skip
    assert seen == [0, 1, 2, 3, 3, 4, 5, 6, 7, 8]
    whole = ps.landscape(network, F.cross_entropy, sample, **options)
    assert torch.equal(found.losses, whole.losses)


# Damage ------------------------------------------------------------------------------------------


def harms(chance, path, count):
    """Turn bits of a file and cut it, one harm at a time; it is as it was in the end."""
    content, meant = path.read_bytes(), meaning(path)
    for number in range(count):
        (faults.cut if number % 4 == 3 else faults.flip)(path, chance)
        if meaning(path) != meant:
            yield
        path.write_bytes(content)


def meaning(path):
    """What a file says: an end of line more or less does not alter JSON."""
    try:
        return json.loads(path.read_bytes()) if path.suffix == ".json" else path.read_bytes()
    except ValueError:
        return None


def test_bits_of_finished_trials(tmp_path):
    """Whatever turns, no number is read that was not written."""
    store, chance = TrialStore(tmp_path), random.Random(0)
    outcome = train(small(epochs=1), store)
    for name in SAME:
        for _ in harms(chance, outcome.folder / name, 40):
            with pytest.raises(Damaged, match=name):
                store.find(outcome.trial)
    record = store.find(outcome.trial)
    for name, read in {
        "metrics.jsonl": lambda: record.rows,
        "weights.safetensors": lambda: record.weights,
        "training.safetensors": lambda: record.training,
    }.items():
        for _ in harms(chance, outcome.folder / name, 40):  # after the record was read
            with pytest.raises(Damaged, match=name):
                read()


def test_bits_of_unfinished_trials(tmp_path, capsys):
    chance, trial = random.Random(1), small()
    whole = contents(train(trial, tmp_path / "whole").folder)
    for number in range(15):
        store = tmp_path / str(number)

        def stop(self, batch, advance=Training.advance):
            advance(self, batch)
            if self.iteration == 7:
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Training, "advance", stop)
            with pytest.raises(KeyboardInterrupt):
                train(trial, store, checkpoint_every=0)
        (folder,) = (store / "running").iterdir()
        path = sorted(folder.iterdir())[number % 5]
        length = len(path.read_bytes())
        (faults.cut if number > 9 else faults.flip)(path, chance)
        outcome = train(trial, store, report="lines")
        assert contents(outcome.folder) == whole
        text = " ".join(capsys.readouterr().err.split())
        # The last row of metrics may be of after the checkpoint: that is not damage.
        if f"damaged: {path}" in text:
            assert (store / "damaged" / f"{folder.name}-1" / path.name).stat().st_size <= length
        else:
            assert "going on after step" in text
            assert path.name == "metrics.jsonl", (path, text)


def test_bits_of_computations(tmp_path):
    """Each damaged result is named, set aside with the reason, and computed anew."""
    archive, chance, notes = Archive(tmp_path), random.Random(2), []
    trial = small(epochs=1)
    train(trial, archive.store)
    job = compute(faults.weigh, [trial], number=2)
    first = archive.work_out(job, None)
    count = 0
    for count, _ in enumerate(harms(chance, first.file, 60), start=1):
        assert archive.find(job) is None
        again = archive.work_out(job, None, notes.append)
        assert torch.equal(again["weights"], first["weights"])
        assert len(notes) == count
        assert notes[-1].startswith(f"damaged: {first.file}: ")
        kept = archive.path / "damaged" / f"{first.file.stem}-{count}.safetensors"
        assert f"set aside as {kept}, and computed anew" in notes[-1]
        assert kept.with_suffix(".txt").read_text() in f"{notes[-1]}\n".replace("; set aside", "\n")
    assert count > 50


def test_bits_of_trials_that_computations_read(tmp_path):
    archive, chance = Archive(tmp_path / "archive"), random.Random(3)
    found = reproduce(faults.EXPERIMENT, "quick", archive)
    trial = found.outcomes[0].trial
    folder = archive.record(trial).folder
    whole = contents(folder)
    for name in ("metrics.jsonl", "weights.safetensors"):
        for file in (tmp_path / "archive" / "computations").iterdir():
            file.unlink()
        faults.flip(folder / name, chance)
        if name == "weights.safetensors":  # seen only by who reads all files of a trial
            with pytest.raises(JobError, match=rf"{name}.* set aside and will be trained anew"):
                reproduce(faults.EXPERIMENT, "quick", archive)
        again = reproduce(faults.EXPERIMENT, "quick", Archive(archive.path))
        assert again.findings.claims == found.findings.claims
        assert contents(folder) == whole
    assert len(list((archive.store.path / "damaged").iterdir())) == 2


@pytest.mark.parametrize("name", ["landscape.json", "landscape.npz"])
def test_bits_of_landscapes(name, tmp_path):
    network = ps.trace(models.build("mlp:64-12-10"), torch.ones(1, 64))
    sample, chance = (torch.rand(9, 64), torch.arange(9)), random.Random(4)
    options = {"grid": 5, "folder": tmp_path}
    found = ps.landscape(network, F.cross_entropy, sample, **options)
    for _ in harms(chance, tmp_path / name, 300):
        with pytest.raises(ps.PathspaceError, match=name):
            Landscape.load(tmp_path)
    faults.flip(tmp_path / name, chance)
    with pytest.raises(ps.PathspaceError, match=rf"{name}.* set aside in .*damaged.* begins anew"):
        ps.landscape(network, F.cross_entropy, sample, **options)
    assert sorted(path.name for path in (tmp_path / "damaged").iterdir()) == [
        "landscape-1.json",
        "landscape-1.npz",
        "landscape-1.txt",  # the reason
    ]
    again = ps.landscape(network, F.cross_entropy, sample, **options)
    assert torch.equal(again.losses, found.losses)
    assert torch.equal(Landscape.load(tmp_path).losses, found.losses)


def test_bits_of_half_landscapes(tmp_path):
    network = ps.trace(models.build("mlp:64-12-10"), torch.ones(1, 64))
    sample, chance = (torch.rand(9, 64), torch.arange(9)), random.Random(5)

    def progress(done, total):
        if done == 15:
            raise KeyboardInterrupt

    options = {"grid": 5, "folder": tmp_path, "chunk": 1}
    with pytest.raises(KeyboardInterrupt):
        ps.landscape(network, F.cross_entropy, sample, progress=progress, **options)
    path, count = tmp_path / "landscape.partial.json", 0
    for count, _ in enumerate(harms(chance, path, 100), start=1):
        with pytest.raises(ps.PathspaceError, match=rf"{path.name} is damaged .* begins anew"):
            ps.landscape(network, F.cross_entropy, sample, **options)
        assert not path.exists()
        assert (tmp_path / "damaged" / f"landscape.partial-{count}.json").exists()
    assert count > 90
    with pytest.raises(ps.PathspaceError, match="differs in grid"):  # another one is no damage
        ps.landscape(network, F.cross_entropy, sample, **(options | {"grid": 3}))
    found = ps.landscape(network, F.cross_entropy, sample, **options)
    assert torch.equal(
        found.losses, ps.landscape(network, F.cross_entropy, sample, grid=5, chunk=1).losses
    )


def test_landscapes_of_earlier_versions_are_read(tmp_path):
    network = ps.trace(models.build("mlp:64-12-10"), torch.ones(1, 64))
    sample = torch.rand(9, 64), torch.arange(9)
    found = ps.landscape(network, F.cross_entropy, sample, grid=5, folder=tmp_path)
    about = json.loads((tmp_path / "landscape.json").read_text())
    del about["sha256"], about["arrays"]
    (tmp_path / "landscape.json").write_text(json.dumps(about | {"format": 1}))
    assert torch.equal(Landscape.load(tmp_path).losses, found.losses)
    (tmp_path / "landscape.json").write_text(json.dumps(about | {"format": 3}))
    with pytest.raises(ps.PathspaceError, match="has format 3; this version reads 2"):
        ps.landscape(network, F.cross_entropy, sample, grid=5, folder=tmp_path)
    assert (tmp_path / "landscape.npz").exists()  # not damaged, so not set aside


@pytest.mark.parametrize("name", IMAGES)
def test_bits_of_data(name, tmp_path, monkeypatch):
    """A file with a turned bit is named; or the bit was none of the data, and all is as before."""
    held, _ = write_small(name, tmp_path)
    entry = official(name, held, rows=(12, 5))
    files = tuple(replace(file, rows=12 if "train" in file.name else 5) for file in entry.files)
    entry = replace(entry, files=files)
    monkeypatch.setitem(data.SOURCES, name, entry)
    before, chance = data.load(name, tmp_path), random.Random(6)
    refused = 0
    for file in entry.files:
        path = tmp_path / entry.folder / file.name
        for _ in harms(chance, path, 40):
            try:
                after = data.load(name, tmp_path)
            except data.DataError as error:
                assert str(path) in str(error)  # noqa: PT017
                refused += 1
            else:
                assert torch.equal(after.train.inputs, before.train.inputs)
                assert torch.equal(after.test.targets, before.test.targets)
    assert refused > 30 * len(entry.files)
