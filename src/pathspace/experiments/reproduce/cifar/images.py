"""Trainings of PlainNets and ResNets on CIFAR: their settings, and comparisons of optimizers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from pathspace.experiments.reproduce.controls import Comparison, compare, sgd_and_gsgd
from pathspace.experiments.reproduce.experiment import Plan, side_by_side
from pathspace.experiments.reproduce.words import listed
from pathspace.experiments.training import Trial

DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
PAPER_NETWORKS = ("plainnet34", "resnet34")


class Case(NamedTuple):
    """A network and what it learns."""

    data: str
    network: str

    @property
    def is_residual(self) -> bool:
        """Whether the network has shortcuts."""
        return self.network.startswith("resnet")

    @property
    def title(self) -> str:
        """The case in words.

        Example:
            >>> Case("cifar10", "plainnet8-thin").title
            'thin PlainNet-8, CIFAR-10'
        """
        return f"{network_title(self.network)}, {DATA[self.data]}"


def network_title(network: str) -> str:
    """A network as papers write it.

    Example:
        >>> network_title("resnet34"), network_title("plainnet20-thin-small")
        ('ResNet-34', 'thin PlainNet-20')
    """
    found = re.fullmatch(r"(plainnet|resnet)(\d+)(-thin)?(-small)?", network)
    if found is None:
        return network
    kind, depth, thin, _ = found.groups()
    return f"{'thin ' if thin else ''}{'PlainNet' if kind == 'plainnet' else 'ResNet'}-{depth}"


@dataclass(frozen=True)
class Images:
    """What is trained on images, the same in all experiments that use it.

    Attributes:
        networks: by name.
        iterations: of each training; the rate falls to a tenth after a half and after three
            quarters of them.
        seeds: of each final training.
        data: the sets of images.
        rates: the grid from which each arm takes its best rate; the seed that it is chosen by is
            the first.
        common: the papers' rate.
        lambdas: the grid of each regularizer.
        batch: images per step.
        validation: training images set aside, while rates are chosen; for good if ``train`` is
            given.
        train: how many training images are used, besides those for validation; None for all.
        test: how many test images; None for all.
        pixels: the side of the images, which are averaged to it; None for as they are.
        evaluate_every: epochs between evaluations.
    """

    networks: tuple[str, ...]
    iterations: int
    seeds: tuple[int, ...]
    data: tuple[str, ...] = ("cifar10",)
    rates: tuple[float, ...] = (0.1, 0.3, 1.0)
    common: float = 1.0
    lambdas: tuple[float, ...] = ()
    batch: int = 128
    validation: int = 5_000
    train: int | None = None
    test: int | None = None
    pixels: int | None = None
    evaluate_every: int = 1

    @property
    def cases(self) -> tuple[Case, ...]:
        """Every network on all data."""
        return tuple(Case(data, network) for data in self.data for network in self.networks)

    @property
    def held_out(self) -> int | None:
        """Images that only the choice of rates sets aside; None if all trainings do."""
        return self.validation if self.train is None else None

    def trial(self, case: Case) -> Trial:
        """SGD at the papers' rate."""
        steps, augment = ["unit_interval"], "crop_and_flip"
        if self.pixels is not None:
            steps += [f"average_pool:{self.pixels}"]
            augment += f":{self.pixels // 8}"
        if self.train is not None:
            kept = f"subset:train={self.train + self.validation}"
            kept += "" if self.test is None else f":test={self.test}"
            steps = [kept, *steps, f"validation_split:{self.validation}"]
        return Trial(
            case.network,
            case.data,
            preprocess=tuple(steps),
            augment=augment,
            lr=self.common,
            batch=self.batch,
            iterations=self.iterations,
            schedule=f"steps:{self.iterations // 2}:{3 * self.iterations // 4}",
            evaluate_every=self.evaluate_every,
        )

    def comparisons(self) -> Plan[dict[Case, Comparison]]:
        """SGD against G-SGD with all controls, one comparison per case."""
        found = yield from side_by_side(
            {
                case: compare(
                    sgd_and_gsgd(self.trial(case)),
                    seeds=self.seeds,
                    rates=self.rates,
                    common=self.common,
                    validation=self.held_out,
                )
                for case in self.cases
            }
        )
        return found

    def deviations(self, data: tuple[str, ...], seeds: int | None) -> tuple[str, ...]:
        """Where this is not what a paper did.

        Args:
            data: what the paper trained with.
            seeds: how many trainings its numbers are means of; None if it does not say.
        """
        said = []
        other = [network_title(n) for n in self.networks if n not in PAPER_NETWORKS]
        if other:
            said.append(
                f"Networks are {', '.join(other)} with 4, 8 and 16 channels (papers: PlainNet-34 "
                "and ResNet-34 with 64 to 512), so that errors are far above the papers' and only "
                "directions can be compared."
            )
        if self.train is not None:
            test = "all" if self.test is None else f"{self.test:,}"
            said.append(
                f"{self.train:,} training and {test} test images (papers: 50,000 and 10,000), "
                f"{self.iterations:,} iterations of {self.batch} images (papers: 64,000 of 128); "
                "the rate falls after the same shares of the training. Few test images and steps "
                "make differences uncertain, as the intervals say."
            )
        if self.pixels is not None:
            said.append(
                f"Images are averaged to {self.pixels}×{self.pixels} pixels (papers: 32×32), and "
                f"cropped after a padding of {self.pixels // 8} (papers: 4)."
            )
        missing = [DATA[name] for name in data if name not in self.data]
        if missing:
            said.append(f"{' and '.join(missing)} is left out.")
        if seeds is None:
            said.append("The paper does not say how many trainings its numbers are means of.")
        elif len(self.seeds) != seeds:
            said.append(f"{len(self.seeds)} seeds (paper: {seeds}).")
        chosen = (
            f"by the error on {self.validation:,} images that no training sees, for the first seed"
            if self.held_out is None
            else f"by the error on {self.validation:,} of the training images after training on "
            "the others, for the first seed; final trainings use all"
        )
        said += [
            "Weights begin by He's rule (normal, variance 2 / fan-in), so that every arm can start "
            "from the same ones; the papers took PyTorch's default.",
            "The papers have neither control: SGD from G-SGD's initial weights, and G-SGD from "
            f"SGD's. They tune no rate; best rates here are those of {listed(self.rates)}, "
            f"{chosen}.",
            "Residual streams are not rescaled, as in the papers (section 11.2): scales are those "
            "inside of blocks.",
        ]
        return tuple(said)
