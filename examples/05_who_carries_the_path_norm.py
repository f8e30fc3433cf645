r"""
Find what carries the path norm
===============================

The path norm is a sum over all paths. Which units do they run through?
:func:`pathspace.path_contributions` says it for every unit at the cost of one forward and one
backward pass. You will see the largest shares as bars, that they do not change under rescaling, and
what happens to the error if the units with the smallest shares are removed.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import pathspace as ps
from pathspace.experiments import data

digits = data.load("digits").apply(data.unit_interval(), data.flatten())

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
generator = torch.Generator().manual_seed(0)
for _ in range(15):
    for x, y in digits.train.batches(64, generator=generator):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

# %%
# The shares
# ----------
# A share is the part of :math:`\phi_2^2 = \sum_{\text{paths}} \prod_e w_e^2` that lies on the paths
# through a unit. The shares of a layer sum to 1, less the paths that start at a bias behind it.

network = ps.trace(model, digits.train.inputs[:1])
shares = ps.path_contributions(network, p=2)
print(shares)

# %%
# An even distribution over the 48 units of a layer would be 2 % each.

shares.plot(top=16)
plt.show()

# %%
# Rescaled, the shares are the same
# ---------------------------------
# The size of the weights into a unit, which is what magnitude pruning looks at, is not.

c = ps.random_rescaling(network, spread=1.0, generator=torch.Generator().manual_seed(0))
given = model.state_dict()
rescaled = ps.rescale(network, c, given)
shares_rescaled = ps.path_contributions(network, p=2, state=rescaled)


def sizes(state):
    """The norm of the weights into every hidden unit."""
    return torch.cat([state[name].norm(dim=1) for name in ("0.weight", "2.weight")])


def by_unit(found):
    return torch.cat([found.units["0"], found.units["2"]])


figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
panels = (
    (left, sizes(given), sizes(rescaled), "#e69f00", "Norm of the incoming weights"),
    (right, by_unit(shares), by_unit(shares_rescaled), "#0072b2", "Share of the path norm"),
)
for ax, before, after, colour, title in panels:
    ax.axline((float(before.mean()),) * 2, slope=1, color="#bbbbbb", lw=1, zorder=0)
    ax.scatter(before, after, s=22, color=colour, edgecolor="white", lw=0.5)
    ax.set(xscale="log", yscale="log", xlabel="as trained", ylabel="rescaled", title=title)
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# Remove the units with the smallest shares
# -----------------------------------------
# Setting the weights out of a unit to zero removes it. We remove more and more of the 96 units, in
# the order of their shares or of the norms of their incoming weights, from the network as trained
# and from the rescaled one.

READERS = ("2.weight", "4.weight")  # the weights out of the units of the two hidden layers


def error_without(state, units):
    """The test error in percent without some units, numbered through both layers."""
    gone = torch.zeros(96, dtype=torch.bool)
    gone[units] = True
    state = dict(state)
    for readers, removed in zip(READERS, gone.split(48), strict=True):
        state[readers] = torch.where(removed, 0.0, state[readers])
    with torch.no_grad():
        outputs = functional_call(model, state, digits.test.inputs)
    return 100 * (outputs.argmax(1) != digits.test.targets).double().mean().item()


counts = range(0, 91, 3)
orders = {
    "share of the path norm, as trained": (given, by_unit(shares).argsort()),
    "share of the path norm, rescaled": (rescaled, by_unit(shares_rescaled).argsort()),
    "incoming norm, as trained": (given, sizes(given).argsort()),
    "incoming norm, rescaled": (rescaled, sizes(rescaled).argsort()),
}
errors = {
    name: [error_without(state, order[:count]) for count in counts]
    for name, (state, order) in orders.items()
}

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
styles = (("#0072b2", "-", 4), ("#56b4e9", "--", 1.6), ("#e69f00", "-", 2), ("#d55e00", "--", 1.6))
for (name, found), (colour, style, width) in zip(errors.items(), styles, strict=True):
    ax.plot(counts, found, style, color=colour, lw=width, label=name)
ax.set(xlabel="units removed, smallest first", ylabel="test error (%)", ylim=(0, None))
ax.legend(frameon=False, title="order of removal")
ax.grid(alpha=0.3)
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# What it means, and where the limit is
# -------------------------------------
# The blue curves lie on each other: what the shares say does not depend on how the network happens
# to be scaled, while the order by incoming norms is another one after rescaling. Here the shares
# are also the better guide, and a quarter of the units can go at no cost. But they know the
# weights alone. A unit that the data never activate may carry many paths; a measure that looks at
# the data can see that, this one cannot.

blue, blue_rescaled, orange, orange_rescaled = (torch.tensor(found) for found in errors.values())
torch.testing.assert_close(by_unit(shares_rescaled), by_unit(shares), rtol=1e-4, atol=1e-9)
assert (blue - blue_rescaled).abs().max() < 1
assert (orange - orange_rescaled).abs().max() > 5
assert blue[list(counts).index(24)] < blue[0] + 2
