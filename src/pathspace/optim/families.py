r"""The optimizers by name: a space times a rule.

All take ``params`` first and then the settings of torch's optimizer of the same rule; behind the
star come ``network``, the options of the space, ``maximize``, and ``nonfinite``: what to do about
gradients that are not finite, ``"skip"`` the step (and warn once) or ``"raise"``; and ``fused``:
whether :func:`torch.compile` makes one pass over each matrix of the step. That pays for layers of
many million weights, takes some seconds at the first step, and rounds differently. The step is
exactly invariant: from any rescaling of a network the same function is trained. ``weight_decay`` is
accepted, and is *not* invariant, because it sees the weights as they are scaled; ``bp_decay`` is.
"""

from __future__ import annotations

from pathspace.optim.balanced import BalancedSpace
from pathspace.optim.basis import BasisSpace
from pathspace.optim.optimizer import InvariantOptimizer
from pathspace.optim.rules import Adagrad, Adam, Momentum
from pathspace.optim.spaces import PathSpace


class PathSGD(InvariantOptimizer, rule=Momentum, space=PathSpace):
    r"""Path-SGD: approximate steepest descent with respect to the path norm.

    .. math:: w_e \leftarrow w_e - \frac{\eta}{\gamma_p(e)} \frac{\partial l}{\partial w_e}, \qquad
        \gamma_p(e) = \Big(\sum_{\text{paths}\ni e} \prod_{e'\ne e} |w_{e'}|^p\Big)^{2/p}

    One pass forward and one back through the network of path sums, on one sample of ones, at every
    k-th step. With momentum, the average is that of :math:`\gamma^{-1/2}\,\partial l/\partial w`,
    which does not change under rescaling. Where no path through a weight is alive, γ = 0 and the
    weight rests. The size of γ is that of the network's path norm, so learning rates are not
    those of SGD.

    Args:
        params: parameters or groups of them, as in torch.
        lr: learning rate η.
        momentum: momentum factor.
        dampening: dampening of momentum.
        weight_decay: coupled weight decay; not invariant.
        nesterov: Nesterov's momentum.
        network: the traced network.
        p: exponent of the path norm, 1 ≤ p < ∞.
        every: γ is computed anew every k-th step.
        maximize: maximise instead.
        nonfinite: ``"skip"`` or ``"raise"``.
        fused: have torch compile steps with momentum, for large layers.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
        ... )
        >>> network = ps.trace(model, torch.ones(1, 4))
        >>> optimizer = ps.optim.PathSGD(model.parameters(), lr=0.1, network=network)
        >>> model(torch.ones(3, 4)).square().mean().backward()
        >>> optimizer.step()

    Reference: Neyshabur et al. 2017, section 5, Eq. (9) and Algorithm 1.
    """


class PathAdagrad(InvariantOptimizer, rule=Adagrad, space=PathSpace):
    r"""AdaGrad on the path-normalised gradients :math:`\gamma_p^{-1/2}\,\partial l/\partial w`.

    Settings are those of :class:`torch.optim.Adagrad` and, for the path norm, of :class:`PathSGD`.
    """


class PathAdam(InvariantOptimizer, rule=Adam, space=PathSpace):
    r"""Adam on the path-normalised gradients :math:`\gamma_p^{-1/2}\,\partial l/\partial w`.

    Settings are those of :class:`torch.optim.Adam` and, for the path norm, of :class:`PathSGD`.
    """


class GSGD(InvariantOptimizer, rule=Momentum, space=BasisSpace):
    r"""G-SGD: gradient descent on basis-path values.

    .. math:: v \leftarrow v - \eta\,u(\partial l/\partial v),

    with u the rule's update; the weights follow by weight allocation, at the cost of one
    elementwise update and, for some of the layers, a product and sum of weight and gradient: what a
    root changes about its units is done to what leaves them or, by rescaling them, to what enters
    them, whichever are fewer weights. No weight is overwritten, and
    ``state_dict`` holds the momentum of the values in the place of their weights.

    The published algorithm is ``metric="paper", roots="additive", skeleton="modulo",
    start="skeleton_init"``: the plain Euclidean metric on v, from skeleton weights that are set to
    1 (this changes the function that training starts from). The default starts from the weights
    as they are. It measures :math:`v_e` in units of the value that the same weight would have with
    weight 1 in the representative in which the weights that enter a unit have He's norm
    :math:`\sqrt2`, so that the first step is that of SGD in this representative; it steps free
    weights too, which the papers hold still and ``metric="diagonal"`` does; and it steps the
    roots' logarithms, which cannot reach zero, limited to a factor of 2 per step. When the value of
    a root has shrunk by more than a factor of 4, its units are measured anew and may get another
    in-edge (``optimizer.space.rechosen`` counts): the function does not move, and momentum is
    carried over.

    A batch norm cuts paths: what enters it is measured relative to its norm, and its weight and
    bias start new paths.

    Args:
        params: parameters or groups of them, as in torch.
        lr: learning rate η.
        momentum: momentum factor.
        dampening: dampening of momentum.
        weight_decay: coupled weight decay; not invariant.
        nesterov: Nesterov's momentum.
        network: the traced network.
        skeleton: ``"modulo"`` (the papers' choice), ``"largest"`` or ``"random"``; see
            :func:`pathspace.choose_skeleton`.
        metric: ``"normalized"``; ``"diagonal"``, the same without steps of free weights; or
            ``"paper"``.
        roots: ``"multiplicative"`` or ``"additive"``.
        start: ``"as_is"`` or ``"skeleton_init"``.
        bp_decay: λ of the basis-path penalty, or λ1 and λ2; see
            :class:`~pathspace.BasisPathPenalty`. Invariant; free weights have no part in it.
        maximize: maximise instead.
        nonfinite: ``"skip"`` or ``"raise"``.
        fused: have torch compile steps with momentum, for large layers.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
        ... )
        >>> network = ps.trace(model, torch.ones(1, 4))
        >>> optimizer = ps.optim.GSGD(model.parameters(), lr=0.1, momentum=0.9, network=network)
        >>> model(torch.ones(3, 4)).square().mean().backward()
        >>> optimizer.step()

    Reference: Meng et al. 2019, sections 4 and 11.1-11.3; docs/theory/meng2019.md has corrections.
    """


class GAdagrad(InvariantOptimizer, rule=Adagrad, space=BasisSpace):
    """AdaGrad on basis-path values.

    Settings are those of :class:`torch.optim.Adagrad` and, for the values, of :class:`GSGD`.
    """


class GAdam(InvariantOptimizer, rule=Adam, space=BasisSpace):
    """Adam on basis-path values.

    Settings are those of :class:`torch.optim.Adam` and, for the values, of :class:`GSGD`.
    """


class BalancedSGD(InvariantOptimizer, rule=Momentum, space=BalancedSpace):
    r"""SGD in the balanced representative of the network (:func:`pathspace.balance`).

    With c the scales that balance the present weights, :math:`w_e \leftarrow w_e - \eta\,
    (c_u/c_v)^2\,\partial l/\partial w_e` for e = u → v: the step that SGD takes after balancing,
    undone afterwards. Balancing takes a few passes over the weights; ``every=k`` does it at every
    k-th step. Gradients so long that the step would be longer than a tenth of all balanced weights
    are shortened, all alike (:mod:`pathspace.optim.balanced`; ``optimizer.space.limited`` counts).
    Settings are those of :class:`torch.optim.SGD`, ``network`` and ``every``.
    """
