r"""
Basis paths of a toy network, drawn
===================================

A network with :math:`m` weights and :math:`H` hidden units has far more paths than weights, but all
their values follow from :math:`m - H` of them, the *basis paths*. You will see these for a network
that is small enough to draw: the skeleton that chooses them, the matrix that counts them, and one
path written as a quotient of others.
"""

import math

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import ListedColormap
from torch import nn

import pathspace as ps
from pathspace.plot import draw_skeleton

# sphinx_gallery_thumbnail_number = 3

# %%
# A toy network
# -------------
# Three inputs, two layers of four and three hidden units, two outputs, no biases.

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(3, 4, bias=False),
    nn.ReLU(),
    nn.Linear(4, 3, bias=False),
    nn.ReLU(),
    nn.Linear(3, 2, bias=False),
).double()
network = ps.trace(model, torch.ones(1, 3).double())
print(network)
print(f"{ps.count_paths(network)} paths, {network.m - network.H} basis paths")

# %%
# The skeleton
# ------------
# Every hidden unit gets one in-edge and one out-edge, so that both kinds form forests. The
# out-edges are the *free* skeleton weights: they fix the scale of each unit. Every other weight
# names one basis path: back along in-edges to an input, and on along out-edges to an output.

skeleton = ps.choose_skeleton(network, "modulo")
skeleton.draw()
plt.show()

# %%
# Any path is a quotient of basis paths
# -------------------------------------
# A path (blue, left) leaves the skeleton twice, so it is no basis path. Take the basis paths of
# the two weights with which it leaves. Together they have two pieces too many, which are a basis
# path as well: that of an in-edge, a *root*. :meth:`pathspace.BasisPaths.exponents` finds this for
# any path of any network.

basis = ps.BasisPaths(network, skeleton)
path = [("0.weight", (0, 1)), ("2.weight", (2, 0)), ("4.weight", (0, 2))]
powers = basis.exponents(path)
print(powers)

drawn = [[f"{name}{list(index)}" for name, index in path], *(basis.path(k) for k in powers)]
signs = ["=", *("×" if power > 0 else "÷" for power in list(powers.values())[1:])]
titles = ["the path", *(f"{sign} $v_{{{k}}}$" for sign, k in zip(signs, powers, strict=True))]
figure, axes = plt.subplots(1, len(drawn), figsize=(11, 2.8), layout="constrained")
for ax, weights, title in zip(axes, drawn, titles, strict=True):
    draw_skeleton(skeleton, ax, path=weights).set_title(title, pad=30)
    ax.get_legend().remove()
plt.show()

# %%
# In numbers:

value = math.prod(model.get_parameter(name)[index].item() for name, index in path)
values = basis.flat(basis.values())
quotient = math.prod(values[k].item() ** power for k, power in powers.items())
print(f"{value:.10f} = {quotient:.10f}")

# %%
# The structure matrix
# --------------------
# One row per weight, one column per path, a mark where the path runs along the weight. Logarithms
# of path values are linear in those of weights, with this matrix; so its rank, :math:`m - H`, is
# the number of degrees of freedom that rescaling leaves. The columns of the basis paths (blue)
# already have that rank, and all others are combinations of them.

listed = [[basis.graph.name(number) for number in path] for path in ps.paths(network)]
chosen = [listed.index(basis.path(k)) for k in range(len(basis))]
others = [k for k in range(len(listed)) if k not in chosen]
matrix = ps.structure_matrix(network)
picture = torch.cat([2 * matrix[:, chosen], matrix[:, others]], dim=1)

figure, ax = plt.subplots(figsize=(10, 4.6), layout="constrained")
ax.imshow(picture.numpy(), cmap=ListedColormap(["#f4f4f4", "#999999", "#0072b2"]), aspect="auto")
ax.set_xticks(
    [len(chosen) / 2 - 0.5, len(chosen) + len(others) / 2 - 0.5],
    [f"{len(chosen)} basis paths", f"{len(others)} other paths"],
)
for place in (11.5, 23.5):
    ax.axhline(place, color="white", lw=2)
ax.set_yticks([5.5, 17.5, 26.5], ["0.weight", "2.weight", "4.weight"])
ax.tick_params(length=0)
ax.spines[:].set_visible(False)
ax.set_title(
    f"Structure matrix, {network.m} weights × {len(listed)} paths, "
    f"rank {ps.structure_rank(network)}",
    loc="left",
)
plt.show()

# %%
# Another skeleton, another basis
# -------------------------------
# The choice is free. ``"modulo"`` is that of the papers; ``"largest"`` takes the weights that are
# largest when the network is balanced, so that nothing small is divided by.

largest = ps.choose_skeleton(network, "largest")
figure, axes = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained")
for ax, one, name in zip(axes, (skeleton, largest), ("modulo", "largest"), strict=True):
    one.draw(ax).set_title(name, pad=30)
    ax.get_legend().remove()
plt.show()

# %%
# Where the limit is
# ------------------
# Paths are listed one by one only here, to be looked at: their number grows exponentially with
# depth, and :func:`pathspace.paths` refuses above a limit. :class:`pathspace.BasisPaths` never
# lists them; it goes from weights to values and back in a few passes over the weights. Which
# skeleton is chosen does not change what rescaling leaves alone, but it does change the
# coordinates, and with them sizes that are measured in them.

assert math.isclose(quotient, value, rel_tol=1e-12)
assert torch.linalg.matrix_rank(matrix[:, chosen]) == ps.structure_rank(network) == 30 - 7
for one in (skeleton, largest):
    coordinates = ps.BasisPaths(network, one)
    before = coordinates.flat(coordinates.values())
    rescaled = ps.rescale(network, ps.random_rescaling(network), model.state_dict())
    after = coordinates.flat(coordinates.values(rescaled))
    torch.testing.assert_close(after, before, rtol=1e-10, atol=0)
