"""The presets of all experiments on CIFAR: one place, so that equal trainings are one training."""

from __future__ import annotations

from dataclasses import replace

from pathspace.experiments.reproduce.cifar.images import PAPER_NETWORKS, Images

QUICK = Images(
    networks=tuple(
        f"{network}-thin-small" for network in ("plainnet8", "plainnet14", "plainnet20", "resnet8")
    ),
    iterations=400,
    seeds=(0, 1, 2),
    rates=(0.1, 0.3, 1.0),
    batch=50,
    train=2_000,
    validation=1_000,
    test=1_000,
    pixels=16,
    evaluate_every=2,
)
PAPER = Images(
    networks=PAPER_NETWORKS,
    data=("cifar10", "cifar100"),
    iterations=64_000,
    seeds=(0, 1, 2, 3, 4),
    rates=(0.1, 0.3, 1.0, 3.0),
    evaluate_every=5,
)
QUICK_REGULARIZED = replace(
    QUICK, networks=("plainnet8-thin-small", "resnet8-thin-small"), lambdas=(5e-5, 5e-4)
)
PAPER_REGULARIZED = replace(
    PAPER,
    lambdas=tuple(
        float(f"{share}e-{alpha}") for alpha in (3, 4, 5, 6) for share in (0.1, 0.2, 0.5)
    ),
)
