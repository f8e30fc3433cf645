r"""
Start from an unbalanced network
================================

Two sets of weights can be one function. Does training notice the difference? Neyshabur et al.
(2017, Figure 3) rescale random hidden units of a network before training. You will see SGD fail
from such a start, and Path-SGD and G-SGD train the very same function as if nothing had happened.
"""

import copy

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

import pathspace as ps
from pathspace.experiments import data, models

digits = data.load("digits").apply(data.unit_interval(), data.flatten())
inputs, targets = digits.train.inputs.double(), digits.train.targets

# %%
# Two starts, one function
# ------------------------
# Sixteen times a hidden unit is drawn, and the weights into it are multiplied by about 10, those
# out of it divided by as much. We compute in float64: float32 would round the two starts apart,
# and training lets roundings grow.

balanced = models.build("mlp:64-32-32-10", torch.Generator().manual_seed(0)).double()
unbalanced = copy.deepcopy(balanced)
network = ps.trace(unbalanced, inputs[:1])
c = ps.unbalanced_rescaling(network, picks=16, generator=torch.Generator().manual_seed(0))
ps.rescale_(network, c)

with torch.no_grad():
    apart = (balanced(inputs) - unbalanced(inputs)).abs().max().item()
print(c)
print(
    f"the functions differ by {apart:.1g}, the weights by up to "
    f"{(balanced[1].weight - unbalanced[1].weight).abs().max():.3g}"
)

# %%
# Three optimizers
# ----------------
# Each trains copies of both, on the same batches. All have one rate, 0.1: the question is not
# which is the fastest, but whether the start matters.

OPTIMIZERS = {
    "SGD": lambda p, network: torch.optim.SGD(p, lr=0.1),
    "Path-SGD": lambda p, network: ps.optim.PathSGD(p, lr=0.1, network=network),
    "G-SGD": lambda p, network: ps.optim.GSGD(p, lr=0.1, network=network),
}


def train(model, make_optimizer, epochs=10):
    """The trained copy, and the loss on all training images after each quarter of an epoch."""
    model = copy.deepcopy(model)
    optimizer = make_optimizer(model.parameters(), ps.trace(model, inputs[:1]))
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(epochs):
        for step, (x, y) in enumerate(digits.train.batches(64, generator=generator)):
            if step % 6 == 0:
                with torch.no_grad():
                    losses.append(cross_entropy(model(inputs), targets).item())
            optimizer.zero_grad()
            cross_entropy(model(x.double()), y).backward()
            optimizer.step()
    return model, losses


runs = {
    (name, start): train(model, make)
    for name, make in OPTIMIZERS.items()
    for start, model in {"balanced": balanced, "unbalanced": unbalanced}.items()
}

# %%
# From the unbalanced start SGD stays at ln 10 ≈ 2.3, the loss of guessing. For the two invariant
# optimizers the dashed curve lies on the solid one.

figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True, layout="constrained")
for ax, name in zip(axes, OPTIMIZERS, strict=True):
    for start, colour, style in (("balanced", "#56b4e9", "-"), ("unbalanced", "#d55e00", "--")):
        _, losses = runs[name, start]
        epochs = [10 * k / len(losses) for k in range(len(losses))]
        ax.plot(epochs, losses, style, color=colour, lw=3.5 if style == "-" else 1.6, label=start)
    ax.set(xlabel="epoch", title=name, yscale="log", ylim=(0.1, 4))
    ax.set_yticks([0.1, 0.2, 0.5, 1, 2, 4], ["0.1", "0.2", "0.5", "1", "2", "4"])
    ax.minorticks_off()
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("training loss (nats)")
axes[0].legend(title="start", frameon=False)
plt.show()

# %%
# How far apart are the trained functions? For each optimizer the largest difference of two outputs
# on the test images.


def difference(name):
    with torch.no_grad():
        first, second = (
            runs[name, start][0](digits.test.inputs.double())
            for start in ("balanced", "unbalanced")
        )
    return ((first - second).abs().max() / first.abs().max()).item()


differences = {name: difference(name) for name in OPTIMIZERS}
for name, found in differences.items():
    print(f"{name:<9} {found:.1e}")

# %%
# The weights are *not* the same: each optimizer stays in the scaling in which it started.

verdict = ps.are_equivalent(
    network,
    runs["G-SGD", "balanced"][0].state_dict(),
    runs["G-SGD", "unbalanced"][0].state_dict(),
    rtol=1e-6,
)
print(verdict)

# %%
# What it means, and where the limit is
# -------------------------------------
# An invariant optimizer cannot be hurt by the scaling of its start; nor can it be helped. From a
# balanced start, which is what the usual initialisations give, SGD at its best rate may do as well.
# Two things break the invariance: ``weight_decay``, which looks at the weights (``bp_decay`` of
# :class:`pathspace.optim.GSGD` does not), and rounding: it starts as a difference in the last digit
# and grows as training goes on, faster at large rates, as it does between two machines.

assert apart < 1e-10
assert differences["SGD"] > 0.1
assert max(differences["Path-SGD"], differences["G-SGD"]) < 1e-8
assert verdict
