"""Ranks that train together come to what one process comes to, and never to anything else."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from pathspace.cli.application import application
from pathspace.experiments.models.residual import resnet
from pathspace.experiments.store import StoreError, TrialStore
from pathspace.experiments.training import (
    RankError,
    Training,
    Trial,
    TrialError,
    TrialInterrupted,
    engine,
    joined,
    loading,
    train,
)
from pathspace.experiments.training.distributed import ALONE, fingerprints
from pathspace.experiments.training.jointnorm import normalise_jointly_
from trials import contents, end_of, few_pairs, fork, small

IMAGES = ("unit_interval", "subset:train=160:test=50")


def thin(batch_norm=True):
    """A PlainNet for images of one channel: 8 layers of 4 to 16 channels."""
    return resnet(8, residual=False, batch_norm=batch_norm, width=0.25, channels=1)


class Idle(nn.Module):
    """Has parameters that do nothing."""

    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(64, 10), nn.Linear(3, 3)

    def forward(self, inputs):
        return self.used(inputs)


class Counting(nn.Module):
    """Keeps a buffer of its own examples alone, which no rank can make joint."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs):
        if self.training:
            self.seen += inputs.sum()
        return self.layer(inputs)


@pytest.fixture(scope="module", autouse=True)
def _ready():
    """Have everything imported before processes are forked, each of which would do it again."""
    train(vectors(epochs=1))


@pytest.fixture(autouse=True)
def _zoo(monkeypatch):
    zoo = types.ModuleType("zoo_of_a_test")
    zoo.plain, zoo.normed = lambda: thin(batch_norm=False), thin
    zoo.idle, zoo.counting = Idle, Counting
    zoo.forgetful = lambda: nn.Sequential(
        nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(64, 10)
    )
    monkeypatch.setitem(sys.modules, "zoo_of_a_test", zoo)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # for power cuts, and slow


def launch(function, size=2, timeout=60.0):
    """Fork ranks that do this, as a launcher would; their process ids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(rank):
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        with joined(timeout=timeout) as ranks:
            function(ranks)

    return [fork(lambda rank=rank: run(rank)) for rank in range(size)]


def together(function, size=2, **options):
    """Run ranks to their end, which has to be a good one."""
    ends = [end_of(pid) for pid in launch(function, size, **options)]
    assert ends == [0] * size


def assert_close(joint, alone, tolerance=1e-9):
    """The same result but for rounding."""
    assert (joint.status, joint.trial.key) == (alone.status, alone.trial.key)
    assert len(joint.curves) == len(alone.curves)
    for one, other in zip(joint.curves, alone.curves, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            near = pytest.approx(value, rel=tolerance, abs=tolerance) if value is not None else None
            assert one[name] == near, name
    assert joint.weights.keys() == alone.weights.keys()
    for name, weight in alone.weights.items():
        torch.testing.assert_close(
            joint.weights[name], weight, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: n + m
        )


def images(model="plain", **settings):
    """A trial with images, and with a last batch that is not full: 160 = 3 · 45 + 25."""
    plain = {"preprocess": IMAGES, "epochs": 2, "batch": 45, "dtype": "float64"}
    return small(model=f"zoo_of_a_test:{model}", **plain | settings)


def vectors(**settings):
    return small(**{"epochs": 2, "batch": 45, "dtype": "float64"} | settings)


# The same as one process -------------------------------------------------------------------------

CASES = {
    "cnn, sgd": images(options={"momentum": 0.9}, augment="crop_and_flip:1"),
    "cnn, gsgd": images(optimizer="gsgd"),
    "cnn, pathsgd": images(optimizer="pathsgd"),
    "cnn, gsgd, batch norm": images("normed", optimizer="gsgd", options={"momentum": 0.9}),
    "cnn, pathsgd, batch norm": images("normed", optimizer="pathsgd", lr=0.01),
    "cnn, batch norm, last batch of one": images("normed", batch=53),
    "mlp, gsgd": vectors(optimizer="gsgd", weight_decay=1e-3),
    "mlp, pathsgd": vectors(optimizer="pathsgd", schedule="cosine"),
    "mlp, adam, penalties": vectors(optimizer="adam", penalties=["basis-path:1e-3"]),
    "parameters that do nothing": vectors(model="zoo_of_a_test:idle", weight_decay=1e-3),
}


@pytest.mark.parametrize("case", CASES)
def test_the_result_is_that_of_one_process(case, tmp_path):
    trial = CASES[case]
    together(lambda ranks: train(trial, tmp_path, ranks=ranks))
    joint = train(trial, tmp_path)
    assert joint.was_there
    assert_close(joint, train(trial))


def test_three_ranks(tmp_path):
    trial = images("normed", optimizer="gsgd", epochs=1, batch=53)  # 18 + 18 + 17, and one alone
    together(lambda ranks: train(trial, tmp_path, ranks=ranks), size=3)
    assert_close(train(trial, tmp_path), train(trial))
    assert TrialStore(tmp_path).find(trial).environment["processes"] == 3


def test_float32_is_as_close_as_it_can_be(tmp_path):
    trial = images(optimizer="gsgd", dtype="float32")
    together(lambda ranks: train(trial, tmp_path, ranks=ranks))
    assert_close(train(trial, tmp_path), train(trial), 1e-3)


def test_ranking(monkeypatch, tmp_path):
    pairs = few_pairs(users=31)
    monkeypatch.setattr(loading, "_interactions", lambda *_: pairs)
    trial = small(
        model="ncf:4", data="ml-1m", preprocess=(), optimizer="adam", lr=0.01, epochs=2, batch=65,
        dtype="float64",
    )  # fmt: skip
    together(lambda ranks: train(trial, tmp_path, ranks=ranks))
    assert_close(train(trial, tmp_path), train(trial))


def test_without_a_store_all_ranks_know_the_outcome(tmp_path):
    trial = vectors(epochs=1)

    def run(ranks):
        torch.save(dict(train(trial, ranks=ranks).weights), tmp_path / str(ranks.rank))

    together(run)
    first, second = (torch.load(tmp_path / name) for name in "01")
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("mixed", ["bfloat16", "float16"])
def test_mixed_precision_keeps_ranks_the_same(mixed, tmp_path):
    trial = images("normed", dtype="float32", mixed=mixed, lr=0.01, epochs=1)
    together(lambda ranks: train(trial, tmp_path, ranks=ranks))
    assert train(trial, tmp_path).final["test_loss"] == pytest.approx(
        train(trial).final["test_loss"], rel=0.05
    )


def test_divergence_is_seen_by_all(tmp_path):
    trial = vectors(lr=1e20, dtype="float32", epochs=4)
    together(lambda ranks: train(trial, tmp_path, ranks=ranks))
    assert train(trial, tmp_path).status == "diverged"


def test_the_joint_gradient_of_batch_norm(tmp_path):
    """All that a batch norm can be, against the module itself on the joint batch."""
    generator = torch.Generator().manual_seed(0)
    cases = [
        (nn.BatchNorm2d(3), (7, 3, 2, 4)),
        (nn.BatchNorm1d(3, affine=False), (7, 3)),
        (nn.BatchNorm1d(3, momentum=None), (7, 3, 2)),
    ]

    def check(ranks):
        for norm, shape in cases:
            norm.double()
            whole = torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 5
            weights = torch.randn(shape, generator=generator, dtype=torch.float64)
            expected, (inputs, joint) = joint_and_plain(ranks, norm, whole, weights)
            part = ranks.part(len(whole))
            torch.testing.assert_close(joint[0], expected[0][part])
            torch.testing.assert_close(inputs.grad, expected[1][part])
            for found, right in zip(joint[1], expected[2], strict=True):
                torch.testing.assert_close(ranks.sum(found.grad), right)
            for name, buffer in joint[2].items():
                torch.testing.assert_close(buffer, expected[3][name], msg=name)

    def joint_and_plain(ranks, norm, whole, weights):
        copy = type(norm)(3, momentum=norm.momentum, affine=norm.affine).double()
        part = ranks.part(len(whole))
        normalise_jointly_(copy, lambda: True)
        for _ in range(2):  # running statistics, twice
            full, inputs = (x.clone().requires_grad_() for x in (whole, whole[part]))
            norm.zero_grad(), copy.zero_grad()
            outputs, joint = norm(full), copy(inputs)
            (outputs * weights).sum().backward()
            (joint * weights[part]).sum().backward()
        plain = [p.grad for p in norm.parameters()]
        expected = outputs, full.grad, plain, dict(norm.named_buffers())
        return expected, (inputs, (joint, list(copy.parameters()), dict(copy.named_buffers())))

    together(check)


# Dropout -----------------------------------------------------------------------------------------


def stop_after(*iterations, rank=1):
    """Send a signal to one rank after these steps."""
    advance = Training.advance

    def advance_and_signal(self, batch):
        advance(self, batch)
        if self.ranks.rank == rank and self.iteration in iterations:
            signal.raise_signal(signal.SIGTERM)

    Training.advance = advance_and_signal


def interrupted(trial, store, step, *, size=2):
    """Ranks of which one gets a signal after a step."""

    def run(ranks):
        stop_after(step)
        with pytest.raises(TrialInterrupted, match="SIGTERM: stopped after step"):
            train(trial, store, ranks=ranks)

    together(run, size)


def test_dropout_is_the_ranks_own_and_goes_on_as_it_was(tmp_path):
    trial = vectors(dropout=0.5, options={"momentum": 0.9})
    together(lambda ranks: train(trial, tmp_path / "whole", ranks=ranks))
    whole = train(trial, tmp_path / "whole")
    assert any("2 ranks drew dropout masks of their own" in note for note in whole.notes)
    assert not torch.equal(whole.weights["1.weight"], train(trial).weights["1.weight"])
    interrupted(trial, tmp_path / "resumed", 3)
    together(lambda ranks: train(trial, tmp_path / "resumed", ranks=ranks))
    assert contents(train(trial, tmp_path / "resumed").folder) == contents(whole.folder)


def test_ranks_do_not_draw_the_same_masks(tmp_path):
    def run(ranks):
        training = Training(vectors(dropout=0.5), ranks=ranks)
        states = ranks.gather(torch.get_rng_state())
        assert not torch.equal(*states)
        rest = training.rest()
        training.load(training.weights(), rest)
        assert not torch.equal(*ranks.gather(torch.get_rng_state()))
        del rest["ranks"]  # as of a single process
        training.load(training.weights(), rest)
        assert not torch.equal(*ranks.gather(torch.get_rng_state()))

    together(run)


# Interruptions and deaths ------------------------------------------------------------------------


def test_a_signal_to_one_rank_stops_all_and_any_number_goes_on(tmp_path):
    trial = images("normed", optimizer="gsgd", options={"momentum": 0.9}, epochs=3)
    interrupted(trial, tmp_path, 2)
    assert len(list((tmp_path / "running").iterdir())) == 1
    interrupted(trial, tmp_path, 5, size=3)
    assert_close(train(trial, tmp_path), train(trial))
    assert TrialStore(tmp_path).find(trial).timings["sessions"] == 3


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_others_and_the_checkpoint_stays(victim, tmp_path):
    trial = vectors(optimizer="pathsgd", epochs=4)

    def run(ranks):
        advance = Training.advance

        def advance_and_die(self, batch):
            if ranks.rank == victim and self.iteration == 9:
                os.kill(os.getpid(), signal.SIGKILL)
            advance(self, batch)

        Training.advance = advance_and_die
        train(trial, tmp_path, ranks=ranks, checkpoint_every=0)

    ends = [end_of(pid) for pid in launch(run)]
    assert ends[victim] == -signal.SIGKILL
    assert ends[1 - victim] == 1
    assert len(list((tmp_path / "running").iterdir())) == 1
    resumed = train(trial, tmp_path)
    assert not resumed.was_there
    assert_close(resumed, train(trial))


def test_a_rank_that_does_not_answer_counts_as_gone(tmp_path, capfd):
    def run(ranks):
        advance = Training.advance

        def advance_and_sleep(self, batch):
            if ranks.rank == 1 and self.iteration == 3:
                os.kill(os.getpid(), signal.SIGSTOP)
            advance(self, batch)

        Training.advance = advance_and_sleep
        train(vectors(), tmp_path, ranks=ranks)

    first, second = launch(run, timeout=1)
    try:
        assert end_of(first) == 1
    finally:
        os.kill(second, signal.SIGKILL)
    assert end_of(second) == -signal.SIGKILL
    said = capfd.readouterr().err
    assert "RankError: rank 0: another rank is gone, or does not answer (Timed out" in said
    assert "the same command goes on from the last checkpoint" in said


def test_ranks_that_differ_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "COMPARE", 3)

    def run(ranks):
        advance = Training.advance

        def advance_and_differ(self, batch):
            advance(self, batch)
            if ranks.rank == 1 and self.iteration == 4:
                weight = self.model[1].weight.data  # by one unit in the last place
                weight[2, 5] = weight[2, 5].nextafter(torch.tensor(9.0, dtype=weight.dtype))

        Training.advance = advance_and_differ
        with pytest.raises(RankError, match="after step 6 rank 1 is not the same as rank 0") as e:
            train(vectors(optimizer="gsgd"), tmp_path, ranks=ranks)
        assert "1.weight" in str(e.value)

    together(run)
    assert not list(tmp_path.rglob("checkpoint.safetensors"))


def test_a_checkpoint_is_never_of_ranks_that_differ(tmp_path):
    def run(ranks):
        trial = vectors(model="zoo_of_a_test:counting")
        with pytest.raises(RankError, match=r"after step 1 .* in seen; does the model"):
            train(trial, tmp_path, ranks=ranks, checkpoint_every=0)

    together(run)
    assert not list(tmp_path.rglob("checkpoint.safetensors"))


def test_models_that_are_built_differently_are_an_error(monkeypatch):
    class Chance(nn.Linear):
        def __init__(self):
            super().__init__(64, 10)
            self.bias.data.fill_(float(os.getpid()))

    sys.modules["zoo_of_a_test"].chance = Chance

    def run(ranks):
        with pytest.raises(RankError, match=r"after step 0 rank 1 .* in bias;"):
            train(vectors(model="zoo_of_a_test:chance"), ranks=ranks)

    together(run)


# What all ranks must agree on --------------------------------------------------------------------


def test_what_one_rank_refuses_all_refuse(tmp_path):
    (tmp_path / "thesis.tex").touch()

    def run(ranks):
        with pytest.raises(StoreError, match="is no trial store"):
            train(vectors(), tmp_path, ranks=ranks)
        with pytest.raises(TrialError, match="1 examples cannot be divided among 2 ranks"):
            train(vectors(batch=1), ranks=ranks)
        with pytest.raises(TrialError, match=r"model: 0 \(BatchNorm2d\) keeps no running stat"):
            train(images("forgetful"), ranks=ranks)
        with pytest.raises(RankError, match="rank 1: there is nothing here"):
            ranks.each(lambda: refuse(ranks))

    def refuse(ranks):
        if ranks.rank:
            raise TrialError("there is nothing here")

    together(run)


def test_ranks_wait_for_another_process(tmp_path, monkeypatch):
    monkeypatch.setattr("pathspace.experiments.training.places.POLL", 0.05)
    trial, store = vectors(epochs=1), TrialStore(tmp_path)
    with store.claim(trial):
        refused = launch(lambda ranks: train(trial, tmp_path, ranks=ranks, wait=False))
        assert [end_of(pid) for pid in refused] == [1, 1]
        waiting = launch(lambda ranks: train(trial, tmp_path, ranks=ranks))
        time.sleep(0.3)
        assert all(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in waiting)
    assert [end_of(pid) for pid in waiting] == [0, 0]
    assert train(trial, tmp_path).was_there


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("cuda:1", "cuda:1 is one device, but each rank takes its own; write cuda instead"),
        ("mps", "ranks train on cpu or cuda, not on mps"),
        ("cuda", "no cuda:77 for local rank 77; launch fewer processes"),
    ],
)
def test_devices_that_cannot_be_shared_out(device, words, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "77")
    with pytest.raises(TrialError, match=words), joined(device):
        pass


def test_a_process_by_itself_is_alone(monkeypatch):
    with joined("cuda:5") as ranks:
        assert ranks is ALONE
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")  # torchrun --nproc-per-node 1
    with joined() as ranks:
        assert ranks is ALONE


def test_fingerprints_see_every_bit():
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool):
        tensor = (torch.randn(5, 3, generator=generator) * 10).to(dtype)
        for index in range(tensor.numel()):
            other = tensor.clone()
            other.view(-1).view(torch.uint8)[index * tensor.element_size()] ^= 1
            assert len(fingerprints([tensor, other]).unique()) == 2
        assert len(fingerprints([tensor, tensor.clone()]).unique()) == 1
    order = torch.arange(4.0)
    assert len(fingerprints([order, order.flip(0), order.view(2, 2).T]).unique()) == 3
    assert fingerprints([torch.ones(2, dtype=torch.complex64), torch.empty(0)]).shape == (2,)


# The command -------------------------------------------------------------------------------------

COMMAND = """\
model = "thin_of_a_test:net"
data = "digits"
preprocess = ["unit_interval", "subset:train=160:test=50"]
optimizer = "gsgd"
lr = 0.05
epochs = 60
evaluate_every = 20
batch = 45
dtype = "float64"
"""

MODULE = """\
import os
from pathlib import Path
from torch import nn

if "RANK" in os.environ:
    Path(__file__).with_name(f"rank{os.environ['RANK']}").write_text(str(os.getpid()))


def net():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(16, 10),
    )
"""


def torchrun(folder, log, *arguments):
    """The command as one types it."""
    run = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-m", "pathspace", "train", "--config", "trial.toml", "--store", "runs", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    with log.open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", *run, *command],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=file,
        )


def test_torchrun_a_death_and_the_same_command_again(tmp_path, monkeypatch):
    (tmp_path / "trial.toml").write_text(COMMAND)
    (tmp_path / "thin_of_a_test.py").write_text(MODULE)
    log = tmp_path / "log"
    process = torchrun(tmp_path, log, "--checkpoint-every", "0")
    latest = time.monotonic() + 60
    while not list(tmp_path.rglob("checkpoint.safetensors")):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < latest, log.read_text()
        time.sleep(0.005)
    os.kill(int((tmp_path / "rank1").read_text()), signal.SIGKILL)
    assert process.wait(60) != 0
    assert not list((tmp_path / "runs" / "trials").iterdir())
    process = torchrun(tmp_path, log, "--json")
    assert process.wait(60) == 0, log.read_text()
    assert "going on after step" in log.read_text()
    monkeypatch.syspath_prepend(tmp_path)
    trial = Trial.from_dict(Trial.read(tmp_path / "trial.toml"))
    joint = train(trial, tmp_path / "runs")
    assert joint.was_there
    assert_close(joint, train(trial))
    said = log.read_text()
    (record,) = (json.loads(said[said.index("{\n") : said.rindex("}\n") + 2]),)  # said once
    assert record["status"] == "finished"


def test_signals_to_the_command(tmp_path):
    """As a launcher passes on Ctrl-C, and passes it on twice."""
    store, logs = tmp_path / "runs", [tmp_path / "0", tmp_path / "1"]
    arguments = "mlp:64-32-10 --data digits --lr 0.05 --epochs 500 --checkpoint-every 0 --store"

    def run(ranks):
        sys.stdout = sys.stderr = logs[ranks.rank].open("w", buffering=1)
        torch.distributed.destroy_process_group()  # the command joins by itself
        try:
            application()(["train", *arguments.split(), str(store)], prog_name="pathspace")
        except SystemExit as end:
            os._exit(end.code)

    pids = launch(run)
    latest = time.monotonic() + 60
    while not list(tmp_path.rglob("checkpoint.safetensors")):
        assert time.monotonic() < latest, logs[0].read_text()
        time.sleep(0.005)
    for pid in (*pids, *pids):
        os.kill(pid, signal.SIGINT)
    assert [end_of(pid) for pid in pids] == [128 + signal.SIGINT] * 2, logs[0].read_text()
    assert "SIGINT: stopped after step" in " ".join(logs[0].read_text().split())
    assert "2 ranks train together" in logs[0].read_text()
    assert logs[1].read_text() == ""
    assert list(Path(store).rglob("checkpoint.safetensors"))
