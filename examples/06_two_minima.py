r"""
Look at the landscapes of two minima
====================================

Small batches are said to find flat minima and large ones sharp minima. Yi et al. (2019, Figure 3)
draw both in basis-path space, where a network and its rescaled copies are one point. You will see
two such landscapes, and how a rescaling turns the comparison around in weight space, but not in
path space.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

import pathspace as ps
from pathspace.experiments import data, models
from pathspace.plot.landscape import side_by_side

digits = data.load("digits").apply(data.unit_interval(), data.flatten())
inputs, targets = digits.train.inputs.double(), digits.train.targets

# %%
# Two trainings
# -------------
# The same start, the same rate, batches of 16 or of all 1,442 images, each until the training loss
# is at most 0.055. The start is that of Meng et al. (2019): He's with the skeleton weights
# set to 1, so that no basis-path value that others are divided by is small.

model = models.build("mlp:64-32-32-10", torch.Generator().manual_seed(0)).double()
network = ps.trace(model, inputs[:1])
ps.skeleton_init_(network)
start = {name: w.clone() for name, w in model.state_dict().items()}


def train(batch, lr=0.2, goal=0.055):
    """The weights at which the loss on all training images has reached the goal."""
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(0)
    steps, loss = 0, float("inf")
    while loss > goal:
        for x, y in digits.train.batches(batch, generator=generator):
            if steps % 5 == 0:
                with torch.no_grad():
                    loss = cross_entropy(model(inputs), targets).item()
                if loss <= goal:
                    break
            optimizer.zero_grad()
            cross_entropy(model(x.double()), y).backward()
            optimizer.step()
            steps += 1
    with torch.no_grad():
        wrong = model(digits.test.inputs.double()).argmax(1) != digits.test.targets
    print(
        f"batch {batch:>4}: loss {loss:.4f} after {steps} steps, "
        f"test error {100 * wrong.double().mean():.1f} %"
    )
    return {name: w.clone() for name, w in model.state_dict().items()}


minima = {"small batch": train(16), "large batch": train(1442)}

# %%
# The landscapes
# --------------
# :math:`f(t_1, t_2) = l(v + t_1 \xi + t_2 \eta)` with :math:`v` the values of the 3,402 basis paths
# and :math:`\xi, \eta \sim 0.05 \cdot N(0, I)`. Both networks are moved along the same directions,
# and drawn on one scale.

landscapes = ps.landscapes(network, minima, cross_entropy, (inputs, targets), grid=19)
side_by_side(list(landscapes.values()))
plt.show()

# %%
# Rescale the flat one
# --------------------
# Nothing about the function changes. We add the rescaled network to the two and walk along one
# random direction in each space.

c = ps.random_rescaling(network, spread=1.0, generator=torch.Generator().manual_seed(0))
minima["small batch, rescaled"] = ps.rescale(network, c, minima["small batch"])

STYLES = {
    "small batch": ("#56b4e9", "-", 4),
    "large batch": ("#333333", "-", 2),
    "small batch, rescaled": ("#d55e00", "--", 2),
}
lines = {
    space: ps.landscapes(
        network, minima, cross_entropy, (inputs, targets), space=space, dims=1, grid=41, seed=1
    )
    for space in ("weights", "paths")
}
figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
for ax, (space, found) in zip(axes, lines.items(), strict=True):
    for name, (colour, style, width) in STYLES.items():
        line = found[name]
        ax.plot(line.axes[0], line.losses, style, color=colour, lw=width, label=name)
    ax.set(xlabel=f"$t$ ({line.labels[0]})", title=f"In the space of {space}", yscale="log")
    ax.set_yticks([0.05, 0.1, 0.2, 0.5], ["0.05", "0.1", "0.2", "0.5"])
    ax.minorticks_off()
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("training loss (nats)")
axes[0].legend(frameon=False, loc="upper center")
plt.show()

# %%
# Flatness as a number
# --------------------
# A picture shows one or two directions out of 3,402. The trace of the Hessian counts all of them; a
# larger one means a sharper minimum.

values = {
    space: {
        name: ps.flatness(
            network, cross_entropy, (inputs, targets), space=space, kind="trace", state=state
        ).value
        for name, state in minima.items()
    }
    for space in ("weights", "paths")
}
for space, found in values.items():
    print(f"{space:>7}:", ", ".join(f"{name} {value:.4g}" for name, value in found.items()))

# %%
# What it means, and where the limit is
# -------------------------------------
# In weight space "the small batch found the flatter minimum" is true of the weights as trained and
# false of others that compute the same function. In path space it is true of the function. Still,
# flat is not the same as good: on the test images the flatter one is no better here. Path-space
# values depend on the skeleton that chooses the coordinates (``skeletons=8`` of
# :func:`pathspace.flatness` measures by how much), so compare networks with one skeleton, as
# :func:`pathspace.landscapes` does. From ordinary weights, roots may be so small that the
# directions of the papers do not fit; the landscape is then drawn along shorter ones, and its
# ``notes`` say so.

paths, weights = values["paths"], values["weights"]
assert paths["small batch"] < paths["large batch"]
assert weights["small batch"] < weights["large batch"] < weights["small batch, rescaled"]
assert abs(paths["small batch, rescaled"] / paths["small batch"] - 1) < 1e-6
torch.testing.assert_close(
    lines["paths"]["small batch, rescaled"].losses, lines["paths"]["small batch"].losses
)
