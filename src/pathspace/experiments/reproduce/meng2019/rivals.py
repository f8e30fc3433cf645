"""The optimizers of Figure 5 with their controls, and the differences that it is about."""

from __future__ import annotations

from pathspace.experiments.reproduce.controls import GSGD, GSGD_NORMALIZED, SGD, SGD_SKELETON

PATHSGD = "Path-SGD"
PATHSGD_SKELETON = "Path-SGD from skeleton weights"
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
# The paper's arms, then the controls: in this order they have their colours.
ARMS = (SGD, PATHSGD, GSGD, SGD_SKELETON, PATHSGD_SKELETON, GSGD_NORMALIZED)
# What is taken from what, and what the difference is due to.
GAPS = {
    "Path-SGD − SGD": (PATHSGD, SGD),
    "G-SGD − Path-SGD": (GSGD, PATHSGD),
    "G-SGD − SGD": (GSGD, SGD),
    "start: SGD from skeleton weights − SGD": (SGD_SKELETON, SGD),
    "start: Path-SGD from skeleton weights − Path-SGD": (PATHSGD_SKELETON, PATHSGD),
    "same start: G-SGD − Path-SGD from skeleton weights": (GSGD, PATHSGD_SKELETON),
    "same start: G-SGD − SGD from skeleton weights": (GSGD, SGD_SKELETON),
    "same start: G-SGD from SGD's start − Path-SGD": (GSGD_NORMALIZED, PATHSGD),
    "same start: G-SGD from SGD's start − SGD": (GSGD_NORMALIZED, SGD),
}
