"""The optimizers inside other people's training loops."""

import contextlib
import pickle
import types

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

import pathspace as ps
from optimizers import (
    KINDS,
    Net,
    assert_identical,
    backward,
    batch,
    fill,
    loss_of,
    setting,
    snapshot,
    stored,
    train,
)
from pathspace.optim import GSGD, GAdam, InvariantOptimizer, PathSGD

FEW = [  # every space and every rule, where a test is slow
    kind
    for kind in KINDS
    if kind.name in ("PathSGD", "PathAdam", "GSGD-momentum", "GAdagrad", "BalancedSGD-nesterov")
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
a_few_kinds = pytest.mark.parametrize("kind", FEW, ids=lambda kind: kind.name)


# Mixed precision, clipping, accumulation ----------------------------------------------------------


@every_kind
def test_scaled_losses(kind):
    model, optimizer = setting(kind, dtype=torch.float32)
    twin, reference = setting(kind, dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # a power of 2: nothing is rounded
    for number in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, number)).backward()
        scaler.step(optimizer)
        scaler.update()
        train(twin, reference, [number])
    assert_identical(snapshot(model), snapshot(twin))
    before = snapshot(model)
    scaler.scale(loss_of(model, 3) * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert_identical(snapshot(model), before)
    assert scaler.get_scale() == 512
    assert optimizer.skipped == 0  # the scaler did not even ask for the step


@every_kind
def test_autocast(kind):
    model, optimizer = setting(kind, dtype=torch.float32)
    with torch.no_grad():
        before = loss_of(model, 0)
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, 0)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        assert loss_of(model, 0) < before
    assert all(p.dtype == torch.float32 for p in model.parameters())


@every_kind
@pytest.mark.parametrize("clip", [clip_grad_norm_, clip_grad_value_])
def test_clipped_gradients_are_the_gradients(kind, clip):
    model, optimizer = setting(kind)
    twin, reference = setting(kind)
    for number in range(3):
        backward(model, number)
        clip(model.parameters(), 0.01)
        optimizer.step()
        for p, q in zip(twin.parameters(), model.parameters(), strict=True):
            p.grad = q.grad.clone()
        reference.step()
    assert_identical(snapshot(model), snapshot(twin))
    assert all(p.grad.abs().max() <= 0.01 for p in model.parameters())


@every_kind
def test_accumulated_gradients_are_those_of_the_joint_batch(kind):
    model, optimizer = setting(kind)
    twin, reference = setting(kind)
    for number in range(3):
        optimizer.zero_grad()
        x, y = batch(number)
        for half in (slice(None, 4), slice(4, None)):
            logits = model(x[half]) * model.temperature.exp()
            (F.cross_entropy(logits, y[half]) / 2).backward()
        optimizer.step()
        train(twin, reference, [number])
    torch.testing.assert_close(snapshot(model), snapshot(twin), rtol=1e-8, atol=1e-11)


@every_kind
def test_averaged_weights(kind):
    model, optimizer = setting(kind)
    average = AveragedModel(model)
    moving = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    seen = []

    def after():
        average.update_parameters(model)
        moving.update_parameters(model)
        seen.append(model.b.weight.detach().clone())

    train(model, optimizer, range(3), after)
    torch.testing.assert_close(average.module.b.weight.detach(), torch.stack(seen).mean(0))
    expected = 0.25 * seen[0] + 0.25 * seen[1] + 0.5 * seen[2]
    torch.testing.assert_close(moving.module.b.weight.detach(), expected)
    before = snapshot(average)
    model.load_state_dict(average.module.state_dict())  # training goes on from the average
    train(model, optimizer, range(3, 5))
    assert_identical(snapshot(average), before)
    assert optimizer.skipped == 0


# torch.compile ------------------------------------------------------------------------------------


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@a_few_kinds
@pytest.mark.usefixtures("fresh_compiler")
def test_the_step_compiles_once(kind):
    rates = [torch.tensor(kind.rule["lr"], dtype=torch.float64) for _ in range(2)]
    model, optimizer = setting(kind, lr=rates[0])  # a rate that is a number is compiled in
    twin, reference = setting(kind, lr=rates[1])
    schedules = [ExponentialLR(o, 0.9) for o in (optimizer, reference)]
    step = torch.compile(lambda: optimizer.step(), backend="aot_eager")
    seen = []
    for number in range(4):
        backward(model, number)
        step()
        train(twin, reference, [number])
        for schedule in schedules:
            schedule.step()
        breaks, stats = sum(counters["graph_break"].values()), counters["stats"]
        seen.append((breaks, stats["unique_graphs"], stats["calls_captured"]))
    torch.testing.assert_close(snapshot(model), snapshot(twin), rtol=1e-9, atol=1e-12)
    assert seen[0][1] >= 1, "nothing was compiled"
    assert len(set(seen[2:])) == 1, (
        "compiled again at a later step"
    )  # the second learns what varies


@pytest.mark.parametrize("make", [GSGD, PathSGD])
@pytest.mark.parametrize("traced", ["model", "compiled model"])
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_model_trains_as_it_did(make, traced):
    results = []
    for is_compiled in (False, True):
        model = Net().double()
        compiled = torch.compile(model, backend="aot_eager") if is_compiled else model
        x = batch(0)[0]
        network = ps.trace(compiled if traced == "compiled model" else model, x)
        optimizer = make(compiled.parameters(), 0.05, network=network)
        before = None
        for number in range(4):
            train(compiled, optimizer, [number])
            breaks = sum(counters["graph_break"].values())
            assert before in (None, breaks)
            before = breaks
        results.append(snapshot(model))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


# Data parallel ------------------------------------------------------------------------------------


def ddp_worker(rank, file, queue):
    """Train on half of each batch, the model traced bare or wrapped."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    results = {}
    for place, kind in enumerate(FEW):
        model = Whole().double()
        bare = None if place % 2 else ps.trace(model, batch(0)[0])
        wrapped = DistributedDataParallel(model)
        network = bare if bare is not None else ps.trace(wrapped, batch(0)[0])
        optimizer = kind(wrapped.parameters(), network)
        for number in range(3):
            x, y = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(wrapped(x[rank::2]), y[rank::2]).backward()
            optimizer.step()
        results[kind.name] = {n: p.tolist() for n, p in snapshot(model).items()}
    queue.put((rank, results))
    dist.barrier()
    dist.destroy_process_group()


class Whole(nn.Sequential):
    """4-5-6-3, all of whose parameters ``forward`` uses."""

    def __init__(self):
        hidden = (nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU())
        super().__init__(*hidden, nn.Linear(6, 3))
        fill(self)


def test_two_processes_equal_one_with_the_joint_batch(tmp_path):
    queue = torch.multiprocessing.get_context("spawn").Queue()
    workers = torch.multiprocessing.spawn(
        ddp_worker, (str(tmp_path / "rendezvous"), queue), nprocs=2, join=False
    )
    found = dict([queue.get(timeout=300), queue.get(timeout=300)])
    for process in workers.processes:
        process.join(30)
        process.kill()  # they have said all; gloo may wait for a rank that is gone
    assert found[0] == found[1]
    for kind in FEW:
        model = Whole().double()
        optimizer = kind(model.parameters(), ps.trace(model, batch(0)[0]))
        for number in range(3):
            x, y = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        for name, values in found[0][kind.name].items():
            expected = model.get_parameter(name).detach()
            values = torch.tensor(values, dtype=torch.float64)
            torch.testing.assert_close(values, expected, rtol=1e-7, atol=1e-9)


# Lightning ----------------------------------------------------------------------------------------


class Derived:
    """What Lightning does to an optimizer: an object of a class derived from the optimizer's."""

    def __init__(self, optimizer):
        bases = (Derived, type(optimizer))
        self.__class__ = type(f"Derived{type(optimizer).__name__}", bases, {})
        self.__dict__.update(optimizer.__dict__)
        self._inner = optimizer

    def step(self, closure):
        return self._inner.step(closure)


@every_kind
def test_a_derived_class_with_closures_as_in_lightning(kind):
    model, optimizer = setting(kind)
    twin, reference = setting(kind)
    derived = Derived(optimizer)
    schedule = LambdaLR(derived, lambda k: 1 / (1 + k))
    by_hand = LambdaLR(reference, lambda k: 1 / (1 + k))

    def closure(number):
        loss = loss_of(model, number)
        derived.zero_grad()
        loss.backward()
        return loss

    for number in range(3):
        derived.step(lambda number=number: closure(number))
        schedule.step()
        train(twin, reference, [number], by_hand.step)
    assert isinstance(derived, InvariantOptimizer)
    assert_identical(snapshot(model), snapshot(twin))
    checkpoint = stored(optimizer.state_dict())
    assert_identical(derived.state_dict()["state"], checkpoint["state"])
    setting(kind)[1].load_state_dict(checkpoint)


@pytest.mark.filterwarnings("ignore")  # Lightning's own, about itself and its defaults
@pytest.mark.parametrize("make", [GSGD, PathSGD, GAdam])
def test_lightning(make, tmp_path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Whole()

        def training_step(self, pair, _):
            return F.cross_entropy(self.net(pair[0]), pair[1])

        def configure_optimizers(self):
            network = ps.trace(self.net, batch(0, dtype=torch.float32)[0])
            optimizer = make(self.net.parameters(), 0.05, network=network)
            return {"optimizer": optimizer, "lr_scheduler": ExponentialLR(optimizer, 0.9)}

    module = Module()
    before = snapshot(module)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, gradient_clip_val=1.0,
        accumulate_grad_batches=2,
    )  # fmt: skip
    data = DataLoader([batch(k, dtype=torch.float32) for k in range(4)], batch_size=None)
    trainer.fit(module, data)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    lightning.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    ).fit(Module(), data, ckpt_path=tmp_path / "last.ckpt", weights_only=True)  # fmt: skip
    assert all(not torch.equal(p, before[n]) for n, p in module.named_parameters())


# Hugging Face -------------------------------------------------------------------------------------


class Holder(torch.optim.Optimizer):
    """What accelerate does to an optimizer: it holds it, and loads its state back at once."""

    def __init__(self, optimizer, scaler=None):
        self.optimizer, self.scaler = optimizer, scaler
        optimizer.load_state_dict(moved(optimizer.state_dict()))

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)
    defaults = property(lambda self: self.optimizer.defaults)

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict):
        self.optimizer.load_state_dict(state_dict)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        if self.scaler is None:
            return self.optimizer.step(closure)
        plain, calls = self.optimizer.step, []

        def counted(_, *args, **kwargs):
            calls.append(1)
            return plain(*args, **kwargs)

        self.optimizer.step = types.MethodType(counted, self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.step = plain
        return None


def moved(value):
    """All tensors copied, in containers made anew."""
    if isinstance(value, dict):
        return {key: moved(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(moved(item) for item in value)
    return value.to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


@every_kind
@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_holder_with_a_schedule_as_in_hugging_faces_trainer(kind, is_scaled):
    def groups(model):
        decayed = [p for n, p in model.named_parameters() if "bias" not in n]
        others = [p for n, p in model.named_parameters() if "bias" in n]
        return [
            {"params": decayed, "weight_decay": 0.01},
            {"params": others, "weight_decay": 0.0},
        ]

    model, twin = Net().float(), Net().float()
    x = batch(0, dtype=torch.float32)[0]
    optimizer = kind(groups(model), ps.trace(model, x))
    reference = kind(groups(twin), ps.trace(twin, x))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0) if is_scaled else None
    holder = Holder(optimizer, scaler)
    schedule = LambdaLR(holder, lambda k: max(0.0, 1 - k / 10))
    by_hand = LambdaLR(reference, lambda k: max(0.0, 1 - k / 10))
    checkpoint = {}
    for number in range(4):
        if number == 2:
            checkpoint = stored({"model": model.state_dict(), "optimizer": holder.state_dict()})
        holder.zero_grad()
        loss = loss_of(model, number)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        holder.step()
        schedule.step()
        backward(twin, number)
        clip_grad_norm_(twin.parameters(), 1.0)
        reference.step()
        by_hand.step()
    assert_identical(snapshot(model), snapshot(twin))
    assert pickle.loads(pickle.dumps(optimizer)).plain == optimizer.plain
    resumed = Net(1).float()
    resumed.load_state_dict(checkpoint["model"])
    new = Holder(kind(groups(resumed), ps.trace(resumed, x)))
    new.load_state_dict(checkpoint["optimizer"])
    for number in range(2, 4):
        backward(resumed, number)
        clip_grad_norm_(resumed.parameters(), 1.0)
        new.step()
        for group in new.param_groups:
            group["lr"] = group["initial_lr"] * (1 - (number + 1) / 10)
    assert_identical(snapshot(resumed), snapshot(model))


@pytest.mark.parametrize("make", [GSGD, PathSGD, GAdam])
def test_hugging_face(make, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Whole()

        def forward(self, x, labels):
            logits = self.net(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    model = Model()
    x, y = batch(0, 32, dtype=torch.float32)
    network = ps.trace(model.net, x)
    optimizer = make(model.parameters(), 0.05, network=network)
    arguments = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=2, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="epoch",
    )  # fmt: skip
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=[{"x": a, "labels": b} for a, b in zip(x, y, strict=True)],
        optimizers=(optimizer, LambdaLR(optimizer, lambda k: 0.9**k)),
    )
    before = snapshot(model)
    with contextlib.redirect_stdout(None):
        trainer.train()
    assert all(not torch.equal(p, before[n]) for n, p in model.named_parameters())
