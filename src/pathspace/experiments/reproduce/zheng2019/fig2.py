"""Figure 2: capacity measures against the generalization gap of perceptrons on MNIST."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pathspace.experiments.executors import Computation, Result, compute
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.findings import Findings
from pathspace.experiments.reproduce.zheng2019.capacity import capacities
from pathspace.experiments.reproduce.zheng2019.consistency import consistency
from pathspace.experiments.reproduce.zheng2019.sweeps import DEPTH, LABELS, WIDTH, networks_of
from pathspace.experiments.training import Outcome, Trial

PREPROCESS = ("unit_interval", "flatten")


@dataclass(frozen=True)
class Settings:
    """What is trained and measured.

    Attributes:
        labels: numbers of mislabeled images that are added to those with true labels.
        widths: hidden units in each of two layers.
        depths: numbers of hidden layers of 32 units.
        seeds: of each training.
        labels_width: hidden units in each of the two layers of the networks for random labels.
        images: training images of the sweeps over width and depth; 0 for all 60,000.
        epochs: at most; a training ends when its error is zero.
        true_labels: images with true labels in the sweep over random labels.
        depth_width: hidden units per layer in the sweep over depth.
        lr: of SGD, at the beginning.
        momentum: of SGD.
        batch: images per step.
        schedule: of the rate, over all of the epochs.
        evaluate_every: epochs between evaluations, by which zero error is noticed.
        flatness_images: training images that the flatness is measured on.
        flatness_weights: larger networks are left out there.
        epsilon: radius of the ball of the ball flatness.
        sigma: standard deviation of the perturbations of the expected flatness.
    """

    labels: tuple[int, ...]
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    seeds: tuple[int, ...]
    labels_width: int
    images: int
    epochs: int
    true_labels: int = 10_000
    depth_width: int = 32
    lr: float = 0.05
    momentum: float = 0.9
    batch: int = 128
    schedule: str = "cosine"
    evaluate_every: int = 2
    flatness_images: int = 250
    flatness_weights: int = 2_000_000
    epsilon: float = 1e-3
    sigma: float = 1e-3

    def trial(self, hidden: tuple[int, ...], steps: tuple[str, ...], seed: int) -> Trial:
        """SGD to zero training error; without biases, as the paper's theorem has it."""
        widths = "-".join(map(str, (784, *hidden, 10)))
        return Trial(
            f"mlp-nobias:{widths}",
            "mnist",
            preprocess=(*PREPROCESS, *steps),
            lr=self.lr,
            options={"momentum": self.momentum},
            schedule=self.schedule,
            batch=self.batch,
            epochs=self.epochs,
            stop="training-error",
            evaluate_every=self.evaluate_every,
            seed=seed,
        )

    def cases(self) -> Iterator[tuple[str, int, Trial]]:
        """Every training, with its sweep and its place there."""
        part = (f"subset:train={self.images}",) if self.images else ()
        for seed in self.seeds:
            for wrong in self.labels:
                steps = [f"subset:train={self.true_labels + wrong}"]
                steps += [f"corrupt_labels:{wrong}:last=true"] if wrong else []
                hidden = (self.labels_width,) * 2
                yield LABELS.name, wrong, self.trial(hidden, tuple(steps), seed)
            for width in self.widths:
                yield WIDTH.name, width, self.trial((width,) * 2, part, seed)
            for depth in self.depths:
                yield DEPTH.name, depth, self.trial((self.depth_width,) * depth, part, seed)

    def measures(self, trial: Trial) -> Computation:
        """What is measured of a trained network."""
        return compute(
            capacities,
            [trial],
            images=self.flatness_images,
            largest=self.flatness_weights,
            epsilon=self.epsilon,
            sigma=self.sigma,
        )


def plan(settings: Settings) -> Plan[Findings]:
    """Train all networks, then measure them."""
    cases = list(settings.cases())
    outcomes = yield [trial for *_, trial in cases]
    results = yield [settings.measures(trial) for *_, trial in cases]
    places: dict[str, dict[int, list[tuple[Outcome, Result]]]] = {}
    for (sweep, place, _), outcome, result in zip(cases, outcomes, results, strict=True):
        places.setdefault(sweep, {}).setdefault(place, []).append((outcome, result))
    return consistency(networks_of(places), _deviations(settings))


def _deviations(settings: Settings) -> tuple[str, ...]:
    images = f"{settings.images:,}" if settings.images else "60,000"
    return (
        "The paper's figure has no numbers and its appendix, with the training details, is not "
        f"at hand: SGD with rate {settings.lr:g} ({settings.schedule} over all epochs, which deep "
        f"networks need to lose their last errors), momentum {settings.momentum:g} and batches of "
        f"{settings.batch} images is ours, and so are {settings.labels_width} hidden units in each "
        "of two layers in (a, b).",
        f"Sweeps over width and depth train on {images} images (paper: 60,000), up to "
        f"{max(settings.widths):,} units (paper: 8,192).",
        f"A training ends at the first evaluation (every {settings.evaluate_every} epochs) without "
        f"training errors, or after {settings.epochs} epochs; the first statement says which did "
        "not get there.",
        "The path norm is Ω² with the paper's own Ω, and the BP measure its Eq. (4). For weight "
        "norm and spectral norm the paper prints no formula: here they are ∏ 4‖Wᵢ‖² (Frobenius) "
        "and ∏ hᵢ‖Wᵢ‖² (largest singular value). Of these the paper confirms the factors hᵢ only "
        "(“the Πᵢhᵢ in spectral norm”); the rest is our recollection of Neyshabur, Bhojanapalli, "
        "McAllester and Srebro (2017, “Exploring generalization in deep learning”), which we take "
        "to be the source whose settings it follows, and is not checked against that text.",
        "The paper does not speak of margins in its experiments. Figures divide all four measures "
        "by the squared margin, the 5th percentile over the training set; tables have both forms. "
        "The code published with that source (bneyshabur/generalization-bounds) takes the same "
        "percentile, and divides products of the norms themselves by the margin, without the "
        "factors 4 and hᵢ.",
        "How the paper puts curves of such different sizes into one panel is not said: here each "
        "is divided by its largest mean.",
        "Layers have no biases. Φ is for the network without its output layer, as in Theorem 2.",
        "“Random labels” are wrong for sure; the same images are used with every seed.",
        "The interval of Kendall's τ is from 2,000 draws of configurations with replacement, each "
        "with all of its seeds; the paper has no such numbers.",
        f"Flatness (not in the paper's figure) is measured on {settings.flatness_images} training "
        f"images, for networks of at most {settings.flatness_weights:,} weights, with skeletons of "
        f"largest weights, radius {settings.epsilon:g} and standard deviation {settings.sigma:g}.",
    )


QUICK = Settings(
    labels=(0, 1000, 2000, 3000, 5000),
    widths=(16, 32, 64, 128, 256, 512, 1024),
    depths=(1, 2, 3, 4, 5, 6, 7),
    seeds=(0, 1, 2),
    labels_width=256,
    images=10_000,
    epochs=150,
)

PAPER = Settings(
    labels=(0, 1000, 2000, 3000, 4000, 5000),
    widths=(16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
    depths=(1, 2, 3, 4, 5, 6, 7),
    seeds=(0, 1, 2, 3, 4),
    labels_width=512,
    images=0,
    epochs=1000,
    flatness_images=2000,
)


def _lighter(settings: Settings) -> Settings:
    """As many networks, but small ones, and the flatness of the smallest only."""
    widths = tuple(16 * (k + 1) for k in range(len(settings.widths)))
    return replace(
        settings, widths=widths, labels_width=64, flatness_images=20, flatness_weights=15_000
    )


EXPERIMENT = Experiment(
    name="zheng2019 fig2",
    title="Capacity measures against the generalization gap",
    where="Figure 2; section “Empirical verification”",
    shows=(
        "Perceptrons learn MNIST until no training error is left: (a, b) 10,000 images with true "
        "labels and up to 5,000 with wrong ones, (c, d) two hidden layers of 16 to 8,192 units, "
        "(e, f) up to 7 hidden layers of 32 units. Measures of capacity are compared with the test "
        "error. All four grow with the number of wrong labels; over widths and depths only the "
        "basis-path measure Φ falls and rises with the test error, which is least at 512 units and "
        "at 3 layers. Weight norm and spectral norm keep growing, and the path norm keeps falling. "
        "The paper concludes that Φ predicts generalization better than the others."
    ),
    plan=plan,
    quick=Preset(
        QUICK,
        jobs=102,
        time="10 minutes on 2 cores (estimated)",
        rehearsal=_lighter(QUICK),
    ),
    paper=Preset(
        PAPER,
        jobs=220,
        time="about half a day on 2 cores (estimated), most of it for 4,096 and 8,192 units",
        rehearsal=_lighter(PAPER),
    ),
)
