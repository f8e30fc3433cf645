r"""
Train with G-SGD
================

G-SGD takes its steps in the values of *basis paths*: products of weights along paths through the
network, which do not change when the network is rescaled. To use it, one line of a training loop
changes. You will see that line, training curves and errors beside those of SGD over a range of
learning rates, and which weights the papers' algorithm leaves alone.
"""

from statistics import fmean

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

import pathspace as ps
from pathspace.experiments import data, models

digits = data.load("digits").apply(data.unit_interval(), data.flatten())

# %%
# One line changes
# ----------------
# The optimizer is a :class:`torch.optim.Optimizer` and needs to know, besides the parameters, what
# :func:`pathspace.trace` found out about the model. It starts from the weights as they are.


def build_model(seed):
    """A perceptron with the initialisation of He et al."""
    return models.build("mlp:64-32-32-10", torch.Generator().manual_seed(seed))


def train(model, optimizer, epochs=8, seed=0):
    """The mean loss of every epoch, and the error on the test images in percent."""
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(epochs):
        found = []
        for x, y in digits.train.batches(64, generator=generator):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(fmean(found))
    with torch.no_grad():
        wrong = model(digits.test.inputs).argmax(1) != digits.test.targets
    return losses, 100 * wrong.double().mean().item()


model = build_model(seed=0)
network = ps.trace(model, digits.train.inputs[:1])

optimizer = ps.optim.GSGD(model.parameters(), lr=0.1, momentum=0.9, network=network)
losses, error = train(model, optimizer)
print(optimizer)
print(f"test error {error:.1f} % after 8 epochs")

# %%
# Weights that need not move
# --------------------------
# The network has :math:`m` weights, but only :math:`m - H` basis paths. The difference is one
# *free skeleton weight* per hidden unit. These only say how the network is scaled, so in the papers
# training never touches them. ``metric="diagonal"`` does the same: of the weights that leave hidden
# units, exactly 64 are the same bits as before. It can learn every function all the same, but more
# slowly, so by default all weights move.

LEAVING = ("3.weight", "5.weight")
unchanged = {}
for metric in ("diagonal", "normalized"):
    model = build_model(seed=0)
    start = {name: model.get_parameter(name).detach().clone() for name in LEAVING}
    network = ps.trace(model, digits.train.inputs[:1])
    train(model, ps.optim.GSGD(model.parameters(), lr=0.1, network=network, metric=metric))
    unchanged[metric] = sum(
        int((model.get_parameter(name) == start[name]).sum()) for name in LEAVING
    )
    print(f"{metric}: {unchanged[metric]} weights did not move; H = {network.H} free scales")

# %%
# A range of learning rates
# -------------------------
# A comparison at one learning rate shows which optimizer that rate suits. So both get the same
# five rates, with three seeds each; both start from the same weights and see the same batches.

OPTIMIZERS = {
    "SGD": lambda model, network, lr: torch.optim.SGD(model.parameters(), lr=lr),
    "G-SGD": lambda model, network, lr: ps.optim.GSGD(model.parameters(), lr=lr, network=network),
}
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
SEEDS = (0, 1, 2)

curves, errors = {}, {}
for name, make in OPTIMIZERS.items():
    for lr in RATES:
        for seed in SEEDS:
            model = build_model(seed)
            network = ps.trace(model, digits.train.inputs[:1])
            curves[name, lr, seed], errors[name, lr, seed] = train(
                model, make(model, network, lr), seed=seed
            )

# %%
# Points are seeds, lines their means.

COLOURS = {"SGD": "#e69f00", "G-SGD": "#0072b2"}
COMMON = 0.1
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for name, colour in COLOURS.items():
    epochs = range(1, 9)
    runs = [curves[name, COMMON, seed] for seed in SEEDS]
    for run in runs:
        left.plot(epochs, run, color=colour, alpha=0.35, lw=1)
    left.plot(epochs, [fmean(point) for point in zip(*runs, strict=True)], color=colour, lw=2.2)
    for seed in SEEDS:
        right.plot(RATES, [errors[name, lr, seed] for lr in RATES], ".", color=colour, alpha=0.5)
    means = [fmean(errors[name, lr, seed] for seed in SEEDS) for lr in RATES]
    right.plot(RATES, means, color=colour, lw=2.2, label=name)
left.set(xlabel="epoch", ylabel="training loss (nats)", title=f"Training at rate {COMMON}")
right.set(xlabel="learning rate", ylabel="test error (%)", xscale="log", title="After 8 epochs")
right.legend(frameon=False)
left.set_ylim(0, None)
right.set_yscale("log")
right.set_yticks([5, 10, 20, 50, 100], ["5", "10", "20", "50", "100"])
right.minorticks_off()
for ax in (left, right):
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

best = {
    name: min((fmean(errors[name, lr, seed] for seed in SEEDS), lr) for lr in RATES)
    for name in OPTIMIZERS
}
for name, (found, lr) in best.items():
    print(f"{name}: best mean test error {found:.1f} %, at rate {lr}")

# %%
# What it means, and where the limit is
# -------------------------------------
# From an initialisation that is balanced already, as this one nearly is, the first step of G-SGD
# is about that of SGD, and at rates that suit both they train alike. Do not expect a gain for
# free: what G-SGD guarantees is that the scaling of the weights plays no part, which matters when
# they are *not* balanced (next example). Meng et al. (2019) saw larger gains from their own start,
# in which skeleton weights are set to 1: ``metric="paper", roots="additive",
# start="skeleton_init"``. That start is another function, so compare with SGD from the same one. A
# step costs one product and sum of weights and gradients more than SGD's, which shows on networks
# as small as this.

assert unchanged["diagonal"] == network.H == 64
assert unchanged["normalized"] < 64  # what leaves a dead unit has no gradient
assert all(error < 15 for error, _ in best.values())
