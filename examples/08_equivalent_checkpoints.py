r"""
Are two checkpoints the same network?
=====================================

Two files of weights, not one number in common: do they compute the same function, because one is a
rescaling of the other? Comparing outputs on samples can only say "not on these". You will see
:func:`pathspace.are_equivalent` decide it from the weights, give back the scales, or name the first
path that differs.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import pathspace as ps

# %%
# Two files
# ---------
# A small convolutional network, and a copy that somebody has rescaled; in float32, as checkpoints
# are.

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3),
    nn.ReLU(),
    nn.Conv2d(8, 12, 3),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(12, 10),
)
images = torch.randn(64, 1, 10, 10)
network = ps.trace(model, images)
c = ps.random_rescaling(network, spread=1.5, generator=torch.Generator().manual_seed(1))

folder = Path(tempfile.mkdtemp())
save_file(model.state_dict(), folder / "a.safetensors")
save_file(ps.rescale(network, c, model.state_dict()), folder / "b.safetensors")

# %%
# The verdict
# -----------
# It is true or false as a condition, and carries its evidence. The test is exact up to rounding: it
# compares the values of all basis paths and the signs of the free skeleton weights, which together
# determine a network up to rescaling. Its cost is that of reading the weights a few times.

a, b = (load_file(folder / f"{name}.safetensors") for name in "ab")
verdict = ps.are_equivalent(network, a, b)
print(verdict)
print(verdict.rescaling)

# %%
# Weight by weight the files have little to do with each other. The values of the basis paths lie on
# the diagonal, and the scales that were recovered are those that were applied.

basis = ps.BasisPaths(network, "largest", state=a)
weights = [torch.cat([w.flatten() for w in state.values()]).abs() for state in (a, b)]
values = [basis.flat(basis.values(state)).abs() for state in (a, b)]

figure, axes = plt.subplots(1, 3, figsize=(11, 3.7), layout="constrained")
panels = (
    (*weights, "#e69f00", "Weights, |w|", "file a", "file b"),
    (*values, "#0072b2", "Basis-path values, |v|", "file a", "file b"),
    (c.factors, verdict.rescaling.factors, "#009e73", "Scales", "applied", "recovered"),
)
for ax, (x, y, colour, title, across, up) in zip(axes, panels, strict=True):
    ends = [float(torch.cat([x, y]).min()) / 2, float(torch.cat([x, y]).max()) * 2]
    ax.plot(ends, ends, color="#bbbbbb", lw=1, zorder=0)
    ax.scatter(x, y, s=26, color=colour, alpha=0.6, edgecolor="white", lw=0.4)
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    ax.set(xlabel=across, ylabel=up, title=title)
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The first path that differs
# ---------------------------
# Now somebody changes one weight of the second file by one percent. The outputs hardly move; the
# verdict names the basis path whose value is another one.

changed = {name: w.clone() for name, w in b.items()}
changed["2.weight"][5, 3, 1, 1] *= 1.01
with torch.no_grad():
    first, second = (torch.func.functional_call(model, s, images) for s in (a, changed))
altered = ps.are_equivalent(network, a, changed)
print(f"outputs differ by at most {(first - second).abs().max():.1g}")
print(altered)

# %%
# Negating the last layer changes the size of no path. The signs tell.

negated = {name: w.clone() for name, w in b.items()}
negated["6.weight"] *= -1
sign = ps.are_equivalent(network, a, negated)
print(sign)

# %%
# Where the limit is
# ------------------
# "Not equivalent" means: no *rescaling* takes one to the other. There are other ways to be the same
# function. The simplest is to number the units of a layer otherwise, which the test does not look
# for.

order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
permuted = dict(a)
permuted["0.weight"], permuted["0.bias"] = a["0.weight"][order], a["0.bias"][order]
permuted["2.weight"] = a["2.weight"][:, order]
with torch.no_grad():
    same = torch.func.functional_call(model, permuted, images)
renumbered = ps.are_equivalent(network, a, permuted)
print(f"outputs differ by at most {(first - same).abs().max():.1g}")
print(renumbered)

# %%
# To undo a rescaling, load ``ps.rescale(network, verdict.rescaling.inverse(), b)``. To compare many
# files, bring each into a canonical form first: :func:`pathspace.balance_`.

undone = ps.rescale(network, verdict.rescaling.inverse(), b)
for name, weight in a.items():
    torch.testing.assert_close(undone[name], weight, rtol=1e-4, atol=1e-6)
assert verdict
torch.testing.assert_close(verdict.rescaling.factors, c.factors, rtol=1e-4, atol=0)
assert not altered
assert "2.weight" in altered.difference
assert not sign
assert not renumbered
torch.testing.assert_close(same, first)
