"""Many small trials as one tensor program, against one after another.

20 trainings of [49, h, h, 10] at batch 64 that differ in seed and rate: steps of all of them
together, and the same steps of each alone, both as the engine takes them. Goals: an eighth of the
time at h = 64, half of it at h = 256.
"""

import torch
from benchmarks.engine import random_images

from pathspace.bench import Measurement, interleaved
from pathspace.experiments.together import Fleet
from pathspace.experiments.training import Training, Trial, loading

TRIALS, BATCH = 20, 64
GOALS = {64: 8.0, 256: 2.0}
STEPS = 5


def measure(repeats: int) -> list[Measurement]:
    dataset = random_images()
    loading._dataset = lambda *arguments: dataset  # in place of a file
    return [
        compare(optimizer, width, goal, repeats)
        for width, goal in GOALS.items()
        for optimizer in ("sgd", "adam", "gsgd", "pathsgd")
    ]


def compare(optimizer: str, width: int, goal: float, repeats: int) -> Measurement:
    trials = [
        Trial(
            f"mlp:49-{width}-{width}-10",
            "fashion-mnist",
            optimizer=optimizer,
            lr=1e-3 * (1 + seed),
            seed=seed,
            batch=BATCH,
            epochs=1000,
        )
        for seed in range(TRIALS)
    ]
    single = Training(trials[0])
    together = Fleet([Training(trial) for trial in trials], [torch.Generator()] * TRIALS)
    batches = iter(())

    def alone() -> None:
        nonlocal batches
        for _ in range(STEPS):
            batch = next(batches, None)
            if batch is None:
                single.begin_epoch()
                batches = single.batches()
                batch = next(batches)
            single.advance(batch)

    def at_once() -> None:
        for _ in range(STEPS):
            if together.is_epoch_over:
                together.sync()
                for training in together.trainings:
                    training.begin_epoch()
                together.begin_epoch()
            together.advance()

    seconds = interleaved({"alone": alone, "together": at_once}, 10 * repeats, limit=20)
    one, all_at_once = seconds["alone"], seconds["together"]
    return Measurement(
        f"{TRIALS} trials of {optimizer}, 49-{width}-{width}-10",
        all_at_once / (TRIALS * one),
        "× one by one",
        1 / goal,
        f"{TRIALS * one / all_at_once:.1f} × the throughput",
    )
