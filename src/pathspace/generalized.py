r"""The generalized linear space, in which addition is multiplication and scaling is a power.

In it the value of a path is the inner product of the weights with the path's vector, which has the
entry e where the path runs along a weight and 1 (the zero of this space) elsewhere. On positive
numbers these are the laws of a vector space, with the logarithm as isomorphism. With the sign rule
of the papers, :math:`\alpha \odot w = \mathrm{sgn}(w)|w|^{\ln\alpha}`, the law
:math:`(\alpha\oplus\beta)\odot w = (\alpha\odot w)\oplus(\beta\odot w)` fails for negative w: the
left side is negative, the right side positive. So signs are carried along, not scaled.
"""

from __future__ import annotations

import torch
from torch import Tensor


def add(a: Tensor, b: Tensor) -> Tensor:
    r"""Generalized addition :math:`a \oplus b`: entries are multiplied.

    Reference: Meng et al. 2019, section 3.2.
    """
    return a * b


def scale(alpha: Tensor | float, w: Tensor) -> Tensor:
    r"""Generalized scaling :math:`\alpha \odot w = \mathrm{sgn}(w)\,|w|^{\ln \alpha}`, α > 0.

    Reference: Meng et al. 2019, section 3.2.
    """
    return power(torch.as_tensor(alpha, dtype=w.dtype).log(), w)


def power(c: Tensor | float, w: Tensor) -> Tensor:
    r"""The same with a real scalar: :math:`c \odot w = \mathrm{sgn}(w)\,|w|^c`.

    Reference: Zheng et al. 2019, Theorem 1.
    """
    return w.sign() * w.abs() ** c


def inner(w: Tensor, p: Tensor) -> Tensor:
    r"""The inner product with a path vector of entries 1 and e: the value of the path.

    Example:
        >>> import math, torch
        >>> w = torch.tensor([2.0, -3.0, 5.0])
        >>> inner(w, torch.tensor([math.e, math.e, 1.0]))
        tensor(-6.)

    Reference: Meng et al. 2019, section 3.2.
    """
    chosen = p.log().round()
    return torch.where(chosen == 0, 1.0, power(chosen, w)).prod()


def norm(w: Tensor) -> Tensor:
    r"""The supremum norm of this space, :math:`\max_i |\log|w_i||`.

    Reference: Zheng et al. 2019, Theorem 1.
    """
    return w.abs().log().abs().max()
