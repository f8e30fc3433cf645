"""One measured number: with its decimal logarithm, or with the reason why there is none.

Capacity measures of real networks leave the range of floats, so the logarithm is what counts.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass

from pathspace.tables import NOTHING

NETWORK = "the network"  # the group of the counts
LARGE = 5  # the logarithm is shown from 10^5 on, and from 10^-5 down


@dataclass(frozen=True)
class Entry:
    """One measured number, or the reason why there is none.

    Attributes:
        name: by which the report gives it: ``report["path norm (p=2)"]``.
        title: what it is, in one line.
        symbol: how it is written.
        group: the heading under which it stands.
        unit: what it is counted in; empty for a pure number.
        invariant: whether rescaling leaves it alone; a text says under which condition.
        value: the number; infinite where only the logarithm fits into a float, ``None`` where it
            could not be measured.
        log10: its decimal logarithm; ``None`` if the number is negative.
        notes: what is to be known about it, such as a theorem's assumptions.
        reason: why it could not be measured.
    """

    name: str
    title: str
    symbol: str
    group: str
    unit: str
    invariant: bool | str
    value: float | None = None
    log10: float | None = None
    notes: tuple[str, ...] = ()
    reason: str | None = None

    def __float__(self) -> float:
        if self.value is None:
            raise ValueError(f"{self.name} was not measured: {self.reason}")
        return self.value

    def __str__(self) -> str:
        return f"{self.name}: {self.reason or ' '.join([number(self), self.unit]).strip()}"


def number(entry: Entry, digits: int = 5) -> str:
    """The value as it is printed: five digits, or a power of ten where a float has no room.

    Example:
        >>> def entry(value, log10=None):
        ...     return Entry("", "", "", "", "", True, value, log10)
        >>> [number(entry(x)) for x in (1234567, 0.5, 2.0 / 3, 1e-7, float("nan"), None)]
        ['1,234,567', '0.5', '0.66667', '1e-07', 'nan', '–']
        >>> number(entry(float("inf"), 345.1234))
        '10^345.12'
    """
    value, log10 = entry.value, entry.log10
    if value is None:
        return NOTHING
    if log10 is not None and math.isfinite(log10) and (math.isinf(value) or value == 0):
        return f"10^{log10:.2f}"
    if math.isfinite(value) and value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def logarithm(entry: Entry) -> str:
    """The decimal logarithm as it is printed, if the number is large or small."""
    log10 = entry.log10
    if log10 is None or not math.isfinite(log10) or abs(log10) < LARGE:
        return ""
    return f"{log10:.2f}"


def claim(invariant: bool | str) -> str:
    """What is said about invariance, in one word."""
    return "partly" if isinstance(invariant, str) else "yes" if invariant else "no"


def mark(invariant: bool | str) -> str:
    """How such a row is coloured."""
    return "invariant" if invariant is True else "moving"


def ratio(entry: Entry | None, base: Entry | None) -> float | None:
    """One value divided by another, both positive; by logarithms, so that nothing overflows."""
    if entry is None or base is None or entry.log10 is None or base.log10 is None:
        return None
    return power_of_ten(entry.log10 - base.log10) if math.isfinite(base.log10) else None


def relative_change(before: Entry, after: Entry) -> float | None:
    """The size of the difference by the larger size; by logarithms beyond the range of floats.

    Example:
        >>> def entry(value, log10=None):
        ...     return Entry("", "", "", "", "", True, value, log10)
        >>> relative_change(entry(4.0), entry(3.0)), relative_change(entry(0.0), entry(0.0))
        (0.25, 0.0)
        >>> round(relative_change(entry(math.inf, 400.0), entry(math.inf, 401.0)), 6)
        0.9
    """
    a, b = before.value, after.value
    if a is None or b is None:
        return None
    if a == b and math.isfinite(a):
        return 0.0
    if math.isfinite(a) and math.isfinite(b):
        return abs(a - b) / max(abs(a), abs(b))
    if before.log10 is None or after.log10 is None:
        return math.nan
    return -math.expm1(-abs(before.log10 - after.log10) * math.log(10))


def power_of_ten(log10: float) -> float:
    """10^log10, infinite beyond the range of floats."""
    return 10.0**log10 if log10 < 308 else math.inf


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: what was probably meant, and what there is."""
    known = list(known)
    lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f"; did you mean {lower[close[0]]!r}?" if close else ""
    return f"{hint}; there are: {', '.join(known)}"
