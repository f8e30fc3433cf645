r"""
Regularize with the basis-path penalty
======================================

Weight decay pulls all weights towards zero, and how strongly it does depends on the scaling of the
network. The basis-path penalty of Zheng et al. (2019),

.. math:: R = \frac{\lambda_1}{2} \|v_+\|^2 + \frac{\lambda_2}{4} \|\log v_-^2\|^2 ,

pulls the values of basis paths towards zero, and those of *roots*, which others are divided by,
towards ±1. You will see how to add it to any training loop, what it does to a network that would
otherwise learn wrong labels by heart, and that it cannot be dodged by rescaling.
"""

import copy
from itertools import pairwise
from statistics import fmean

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

import pathspace as ps
from pathspace.experiments import data, models

# %%
# A task that asks for regularization
# -----------------------------------
# 300 digits, of which a fifth has a wrong label. A network that fits them all has learned the wrong
# ones, too. Skeleton weights start at 1, as in Meng et al. (2019).

NOISE = 0.2
digits = data.load("digits").apply(
    data.unit_interval(), data.flatten(), data.subset(train=300), data.corrupt_labels(NOISE)
)


def start(seed):
    model = models.build("mlp:64-48-48-10", torch.Generator().manual_seed(seed))
    network = ps.trace(model, digits.train.inputs[:1])
    ps.skeleton_init_(network)
    return model, network


def error(model, split):
    """The share of samples that the model gets wrong, in percent."""
    with torch.no_grad():
        return 100 * (model(split.inputs).argmax(1) != split.targets).double().mean().item()


# %%
# Two ways to use it
# ------------------
# As a term of the loss, as any other regularizer:

model, network = start(seed=0)
penalty = ps.BasisPathPenalty(network, lam1=0.03, lam2=0.03, exact=True)
loss = cross_entropy(model(digits.train.inputs), digits.train.targets) + penalty()
loss.backward()

# %%
# Or, cheaper and with the same gradients, by adding them in closed form to those of the loss. This
# is the loop that we use.


def train(model, optimizer, penalty=None, epochs=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for x, y in digits.train.batches(100, generator=generator):
            optimizer.zero_grad()
            cross_entropy(model(x.to(model[-1].weight)), y).backward()
            if penalty is not None:
                penalty.add_to_gradients_()
            optimizer.step()


# %%
# How strong should it be?
# ------------------------
# SGD with momentum, two seeds, a range of λ; beside it weight decay with a range of its own. In
# the paper's cheap form (``exact=False``) the gradients of skeleton weights are left out.

LAMBDAS = (3e-3, 1e-2, 3e-2, 1e-1)
DECAYS = (3e-3, 1e-2, 3e-2)
SEEDS = (0, 1)


def results(lam=0.0, weight_decay=0.0):
    """Training error, test error and basis-path norm, each the mean over seeds."""
    found = []
    for seed in SEEDS:
        model, network = start(seed)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.05, momentum=0.9, weight_decay=weight_decay
        )
        penalty = ps.BasisPathPenalty(network, lam, lam, exact=True) if lam else None
        train(model, optimizer, penalty, seed=seed)
        norm = float(ps.basis_path_norm(network))
        found.append((error(model, digits.train), error(model, digits.test), norm))
    return tuple(fmean(column) for column in zip(*found, strict=True))


plain = results()
penalized = [results(lam=lam) for lam in LAMBDAS]
decayed = [results(weight_decay=decay) for decay in DECAYS]

# %%
# Where the test error is least, the training error is about the share of wrong labels (dashed): the
# network no longer learns them.

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
series = (
    (LAMBDAS, penalized, "#0072b2", "basis-path penalty"),
    (DECAYS, decayed, "#e69f00", "weight decay"),
)
for strengths, found, colour, name in series:
    training, test, norms = zip(*found, strict=True)
    left.plot(strengths, test, "o-", color=colour, label=f"test, {name}")
    left.plot(strengths, training, ".:", color=colour, label=f"training, {name}")
    right.plot(strengths, norms, "o-", color=colour, label=name)
for ax, place in ((left, 1), (right, 2)):
    ax.axhline(plain[place], color="#333333", lw=1, label="test, none" if place == 1 else "none")
    ax.set(xscale="log", xlabel="λ, or coefficient of weight decay")
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
left.axhline(100 * NOISE, color="#999999", lw=1, ls="--")
left.annotate(
    "wrong\nlabels",
    (1, 100 * NOISE),
    xycoords=("axes fraction", "data"),
    xytext=(3, 0),
    textcoords="offset points",
    va="center",
    fontsize=8,
    color="#666666",
)
left.set(ylabel="error (%)", ylim=(0, 38), title="Errors")
left.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
right.set(ylabel="basis-path norm", yscale="log", title="What the penalty makes small")
right.set_yticks([0.2, 0.5, 1, 2, 5, 10], ["0.2", "0.5", "1", "2", "5", "10"])
right.minorticks_off()
right.legend(frameon=False, fontsize=9)
plt.show()

print(f"no regularizer: test error {plain[1]:.1f} %")
print(f"basis-path penalty, best λ: {min(test for _, test, _ in penalized):.1f} %")
print(f"weight decay, best coefficient: {min(test for _, test, _ in decayed):.1f} %")

# %%
# It cannot be dodged by rescaling
# --------------------------------
# G-SGD has the penalty built in (``bp_decay``). From two sets of weights of one function it trains
# one function; with weight decay instead it does not.

origin, _ = start(seed=0)
origin.double()
moved = copy.deepcopy(origin)
network = ps.trace(moved, digits.train.inputs[:1].double())
ps.rescale_(network, ps.random_rescaling(network, 0.5, generator=torch.Generator().manual_seed(0)))


def distance(**decay):
    """How far the functions trained from the two starts are apart, relative to their size."""
    outputs = []
    for weights in (origin, moved):
        model = copy.deepcopy(weights)
        network = ps.trace(model, digits.train.inputs[:1].double())
        optimizer = ps.optim.GSGD(model.parameters(), lr=0.03, network=network, **decay)
        train(model, optimizer, epochs=20)
        with torch.no_grad():
            outputs.append(model(digits.test.inputs.double()))
    return ((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max()).item()


apart = {name: distance(**{name: 0.01}) for name in ("bp_decay", "weight_decay")}
for name, found in apart.items():
    print(f"{name:<12} {found:.1e}")

# %%
# What it means, and where the limit is
# -------------------------------------
# The penalty does what weight decay does, about as well here, and means the same for every scaling
# of the network. It wants roots near ±1. From ordinary weights they are far from it, and a large
# :math:`\lambda_2` then pulls hard in the first steps: start small, start from skeleton weights as
# here, or use :class:`pathspace.PathNormPenalty`, which knows no skeleton.

best = min(test for _, test, _ in penalized)
assert best < plain[1] - 4
assert all(later[2] < earlier[2] for earlier, later in pairwise(penalized))
assert apart["bp_decay"] < 1e-8 < 1e-3 < apart["weight_decay"]
