r"""
Rescale a network and see what moves
====================================

Multiply the weights into a ReLU unit (its bias too) by :math:`c > 0` and divide those out of it by
:math:`c`. The network computes the same function, because :math:`\max(cz, 0) / c = \max(z, 0)`. You
will see which of the numbers that people read off a network stay where they are when all its hidden
units are rescaled in this way, and which do not.
"""

import math

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pathspace as ps
from pathspace.experiments import data

# %%
# A trained network
# -----------------
# A small perceptron on handwritten digits. It is trained in float64, so that "the same" can be told
# from "nearly the same" by ten digits.

digits = data.load("digits").apply(data.unit_interval(), data.flatten())
inputs, targets = digits.train.inputs.double(), digits.train.targets

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
model.double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
generator = torch.Generator().manual_seed(0)
for _ in range(15):
    for x, y in digits.train.batches(64, generator=generator):
        optimizer.zero_grad()
        cross_entropy(model(x.double()), y).backward()
        optimizer.step()

# %%
# What can be rescaled
# --------------------
# :func:`pathspace.trace` finds the units that can. Each of the 64 hidden units has a free scale;
# inputs and outputs are pinned, since their size is part of the function.

network = ps.trace(model, inputs[:1])
print(network)

# %%
# Other weights, the same function
# --------------------------------
# :func:`pathspace.rescale` returns new weights and leaves the model alone. The factors are drawn
# log-normally: two thirds of them lie between 1/e and e.


def rescaled_by(spread):
    """The weights of the same function after a rescaling with log c ~ N(0, spread²)."""
    generator = torch.Generator().manual_seed(1)
    c = ps.random_rescaling(network, spread, generator=generator)
    return ps.rescale(network, c, model.state_dict())


rescaled = rescaled_by(1.0)

with torch.no_grad():
    outputs = model(inputs)
    same = torch.func.functional_call(model, rescaled, inputs)
print(f"weights differ by up to {(rescaled['2.weight'] - model[2].weight).abs().max():.3g}")
print(f"outputs differ by up to {(same - outputs).abs().max():.1g}")

# %%
# Eight numbers people read off a network
# ---------------------------------------
# Each is taken for the given weights and for weights that are rescaled more and more: the same
# draw of factors, ever further from 1.


def gradient_norm(state):
    """The norm of the gradient of the loss with respect to all weights."""
    weights = {name: w.clone().requires_grad_() for name, w in state.items()}
    loss = cross_entropy(torch.func.functional_call(model, weights, inputs), targets)
    gradients = torch.autograd.grad(loss, list(weights.values()))
    return math.sqrt(sum(float(g.square().sum()) for g in gradients))


def sharpness(state, space):
    """The trace of the loss's Hessian, in one of the two spaces."""
    found = ps.flatness(
        network,
        cross_entropy,
        (inputs[:400], targets[:400]),
        kind="trace",
        space=space,
        state=state,
        method="hutchinson",
        rtol=0,
        max_probes=12,
    )
    return found.value


quantities = {
    "loss": lambda s: float(cross_entropy(torch.func.functional_call(model, s, inputs), targets)),
    "path norm": lambda s: float(ps.path_norm(network, 2, state=s)),
    "basis-path norm": lambda s: float(ps.basis_path_norm(network, state=s)),
    "sharpness, paths": lambda s: sharpness(s, "paths"),
    "weight norm": lambda s: float(ps.weight_norm(network, 2, state=s)),
    "gradient norm": gradient_norm,
    "spectral norm": lambda s: float(ps.spectral_norm(network, state=s)),
    "sharpness, weights": lambda s: sharpness(s, "weights"),
}
spreads = torch.linspace(0, 1.5, 7).tolist()
states = [rescaled_by(spread) for spread in spreads]
factors = {}
for name, quantity in quantities.items():
    values = [quantity(state) for state in states]
    factors[name] = [value / values[0] for value in values]

# %%
# The blue lines are four measures on top of each other, at exactly 1. The orange ones leave it at
# once: by rescaling, anybody can make this network look a hundred times as sharp.

BLUE, ORANGE = "#0072b2", "#e69f00"
moving = [name for name, found in factors.items() if abs(found[-1] - 1) > 1e-6]
still = [name for name in factors if name not in moving]

figure, ax = plt.subplots(figsize=(8, 4.4), layout="constrained")
for name, found in factors.items():
    ax.plot(spreads, found, "o-", ms=4, color=ORANGE if name in moving else BLUE)
for name in moving:
    ax.annotate(
        name,
        (spreads[-1], factors[name][-1]),
        xytext=(8, 0),
        va="center",
        textcoords="offset points",
        color="#9c6500",
    )
ax.annotate(
    "\n".join(still),
    (spreads[-1], 1),
    xytext=(8, 0),
    va="center",
    textcoords="offset points",
    color=BLUE,
)
ax.set_yscale("log")
ax.set_xlabel("how far the network is rescaled: standard deviation of log c")
ax.set_ylabel("value / value before")
ax.set_title("One function, many weights: what moves", loc="left")
ax.grid(axis="y", alpha=0.3)
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# What it means, and where the limit is
# -------------------------------------
# A number that moves here says something about the weights that happened to be found, not about
# the function that was learned; compare two networks by it only if both are scaled in the same way
# (:func:`pathspace.balance_` does that). A number that stays need not be a *good* measure: that it
# cannot be fooled by rescaling is the least one can ask. And the sharpness in path space depends
# on which basis paths are the coordinates; ``skeletons=8`` of :func:`pathspace.flatness` says how
# much.

torch.testing.assert_close(same, outputs, rtol=1e-10, atol=1e-10)
assert still == ["loss", "path norm", "basis-path norm", "sharpness, paths"]
assert all(abs(factor - 1) < 1e-8 for name in still for factor in factors[name])
assert factors["sharpness, weights"][-1] > 100
