"""Jobs, the archive of their results, and executors on this machine."""

import signal
import threading
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import gated
from pathspace.experiments.executors import (
    Archive,
    ExecutorError,
    JobError,
    Local,
    Site,
    compute,
    executor_named,
    groups_of,
    perform,
)
from pathspace.experiments.executors.working import perform_apart
from pathspace.experiments.store import Damaged
from pathspace.experiments.training import Quiet, Trial, TrialInterrupted, train
from pathspace.experiments.training.interruption import raising
from trials import contents, small


class Told(Quiet):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def archive(tmp_path):
    return Archive(tmp_path / "archive")


@pytest.fixture
def square(tmp_path):
    """A computation that counts how often it is done."""

    def make(number=3, trials=(), **more):
        return compute(gated.square, trials, folder=str(tmp_path), number=number, **more)

    make.count = lambda: len(list(tmp_path.glob("*.*")))
    return make


# Computations ------------------------------------------------------------------------------------


def test_a_computation_is_known_by_what_determines_it(square):
    keys = {
        square().key,
        square(4).key,
        square(version=2).key,
        square(trials=[small()]).key,
        square(trials=[small(seed=1)]).key,
        compute(gated.fail).key,
    }
    assert len(keys) == 6
    assert square().key == square().key
    assert square() == square()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: compute(lambda outcomes, data_dir: {}), "define it in a module"),
        (lambda: compute(gated.fail, number={1, 2}), "not JSON"),
        (lambda: compute(gated.fail, number=float("nan")), "not JSON"),
    ],
)
def test_what_another_process_could_not_repeat_is_refused(make, said):
    with pytest.raises(JobError, match=said):
        make()


def test_a_function_that_is_gone_is_named(archive):
    job = compute(gated.fail)
    with pytest.raises(JobError, match="gated:gone"):
        archive.work_out(type(job)("gated:gone"), None)


@pytest.mark.parametrize(
    ("function", "said"),
    [(gated.fail, "fail: ZeroDivisionError: by nothing"), (gated.no_mapping, "mapping, not int")],
)
def test_a_failing_computation_says_which(archive, function, said):
    with pytest.raises(JobError, match=said):
        perform((compute(function),), Site(archive))
    assert archive.find(compute(function)) is None


# The archive -------------------------------------------------------------------------------------


def test_a_job_is_done_once(archive, square):
    trial = small()
    job = square(trials=[trial])
    assert archive.find(job) is None
    assert archive.find(trial) is None
    with pytest.raises(JobError, match="not done"):
        archive.work_out(job, None)
    perform((trial,), Site(archive))
    first = archive.work_out(job, None)
    assert archive.work_out(job, None)["square"] == 9
    assert square.count() == 1
    # What is read is what was computed, weights included, from the archive as from memory.
    assert_close(first["weights"][0], dict(train(trial).weights), rtol=0, atol=0)
    again = Archive(archive.path).find(job)
    assert_close(again["weights"], first["weights"], rtol=0, atol=0)
    assert again.seconds == first.seconds


def test_an_outcome_is_that_of_training(archive):
    trial = small()
    perform((trial,), Site(archive))
    found, alone = archive.find(trial), train(trial)
    assert (found.status, found.reason, found.notes) == ("finished", "", alone.notes)
    assert found.curves == alone.curves
    assert set(found.weights) == set(alone.weights)
    assert_close(dict(found.weights), dict(alone.weights), rtol=0, atol=0)


def test_damaged_results_are_computed_anew(archive, square):
    job, told = square(), Told()
    file = archive.work_out(job, None).file
    file.write_bytes(file.read_bytes()[:-1])
    assert archive.find(job) is None
    assert archive.work_out(job, None, told.note)["square"] == 9
    assert square.count() == 2
    assert str(file) in told.notes[0]
    other = archive.work_out(square(4), None).file
    file.write_bytes(other.read_bytes())  # whole, but of another computation
    assert archive.find(job) is None


def test_only_one_process_computes(archive, square, tmp_path):
    jobs = [compute(gated.wait_for_gate, folder=str(tmp_path), name="x")] * 2
    threads = [threading.Thread(target=archive.work_out, args=(job, None)) for job in jobs]
    for thread in threads:
        thread.start()
    gated.wait_until(lambda: gated.began(tmp_path, "x"))
    (tmp_path / "gate").touch()
    for thread in threads:
        thread.join()
    assert len(gated.began(tmp_path, "x")) == 1


def test_results_move_between_archives(archive, square, tmp_path):
    trial, other = small(), Archive(tmp_path / "other")
    job = square()
    perform((trial,), Site(archive))
    perform((job,), Site(archive))
    for moved in (trial, job, trial):
        other.take(moved, archive.export(moved))
    assert contents(other.record(trial).folder) == contents(archive.record(trial).folder)
    assert other.find(job)["square"] == 9
    assert archive.identity != other.identity == Archive(other.path).identity


def test_what_was_sent_wrongly_is_refused(archive, square, tmp_path):
    trial = small()
    perform((trial,), Site(archive))
    perform((square(),), Site(archive))
    other = Archive(tmp_path / "other")
    with pytest.raises(Damaged):
        other.take(square(4), archive.export(square()))
    files = archive.export(trial)
    with pytest.raises(Damaged):
        other.take(trial, files | {"metrics.jsonl": files["metrics.jsonl"][:-1]})
    assert other.find(square(4)) is None


# Executors ---------------------------------------------------------------------------------------


def test_groups_hold_every_job_once(square):
    trials = [small(seed=seed, lr=lr) for seed in (0, 1) for lr in (0.1, 0.2)]
    jobs = [*trials, square(), trials[0], small(model="mlp:64-5-10"), square()]
    grouped = groups_of(jobs)
    assert sorted(job.key for group in grouped for job in group) == sorted(
        {job.key for job in jobs}
    )
    assert (square(),) in grouped
    assert any(set(trials) <= set(group) for group in grouped)  # these run as one program
    assert grouped == groups_of(jobs)


@pytest.mark.parametrize("processes", [1, 2])
def test_local(archive, square, processes):
    trials = [small(), small(model="mlp:64-5-10")]
    jobs = [*trials, square()]
    with Local(processes) as executor:
        assert executor.width == processes
        finished = list(executor.run(groups_of(jobs), Site(archive)))
    assert {job for one in finished for job in one.group} == set(jobs)
    assert all(one.seconds > 0 for one in finished)
    assert archive.find(square())["square"] == 9
    for trial in trials:
        assert_close(dict(archive.find(trial).weights), dict(train(trial).weights), rtol=0, atol=0)


def test_what_goes_wrong_in_another_process_is_said_here(archive):
    with Local(2) as executor:
        with pytest.raises(JobError, match="by nothing"):
            list(executor.run([(compute(gated.fail),)], Site(archive)))
        with pytest.raises(ExecutorError, match="a worker process died"):
            list(executor.run([(compute(gated.die),)], Site(archive)))
        with pytest.raises(TrialInterrupted, match="stopped") as stopped:
            list(executor.run([(compute(gated.interrupt),)], Site(archive)))
    assert stopped.value.signal == signal.SIGTERM


def test_an_interruption_is_handed_over(archive):
    seconds, interrupted = perform_apart((compute(gated.interrupt),), archive.path, None)
    assert seconds > 0
    assert interrupted == ("SIGTERM: stopped", signal.SIGTERM)


def test_a_signal_while_workers_are_started(archive, monkeypatch):
    """The thread of a pool cannot be waited for while it is being started."""
    start = threading.Thread.start

    def start_late(thread):
        if "Executor" in type(thread).__name__:
            signal.raise_signal(signal.SIGTERM)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    with pytest.raises(TrialInterrupted, match="SIGTERM"), raising():
        list(Local(2).run([(compute(gated.interrupt),)], Site(archive)))


@pytest.mark.parametrize("name", ["slurm", "local:0", "local:x", ""])
def test_unknown_executors_are_named(name):
    with pytest.raises(ExecutorError, match="known are local"):
        executor_named(name)


def test_no_random_numbers_are_taken(archive):
    state = torch.random.get_rng_state()
    perform((small(), small(seed=1)), Site(archive))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_data_folder_reaches_the_training(archive, tmp_path):
    trial = Trial("mlp:784-8-10", "mnist", epochs=1)
    with pytest.raises(ValueError, match=str(tmp_path / "nowhere")):
        list(Local().run([(trial,)], Site(archive, Path(tmp_path / "nowhere"))))
