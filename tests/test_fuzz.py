"""The laws on a few random networks; `make fuzz` puts many more to them."""

import warnings
from collections import Counter
from typing import Any

import pytest

from architectures import Act, Map, Spec
from fuzz import laws
from fuzz.__main__ import shrink
from fuzz.drawing import draw, smaller
from fuzz.laws import Broken, check
from fuzz.layers import Op

FEW = range(10_018, 10_058)  # seeds that belong to this test


@pytest.mark.parametrize("start", FEW[::8])
def test_networks_keep_the_laws_or_are_refused_by_name(start: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(start, start + 8):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about paddings
            try:
                check(draw(seed), seed, counts)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {draw(seed)!r}") from error
    refused = sum(number for name, number in counts.items() if name.startswith("refused"))
    assert counts["traced"] + refused == 8
    assert counts["function kept"] > 0


def test_drawn_networks_are_the_same_each_time_and_unlike_each_other() -> None:
    drawn = [draw(seed) for seed in FEW]
    assert drawn == [draw(seed) for seed in FEW]
    assert len(set(map(repr, drawn))) == len(drawn)
    words = " ".join(map(repr, drawn))
    for layer in ("Conv", "Residual", "Join", "Concat", "Sharing", "Raw", "Op", "Window"):
        assert f"{layer}(" in words


def test_a_broken_law_is_noticed_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tracer that takes tanh for the identity."""
    wrong = Spec((3,), (Map(4), Act(), Map(3), Op("tanh"), Map(3), Act(), Map(2)))
    check(wrong, 0, Counter())
    right = laws.ps.trace

    def mistaken(model: Any, x: Any, **options: Any) -> Any:
        for place, layer in enumerate(wrong.layers):
            if layer == Op("tanh") and len(model) == len(wrong.layers):
                model[place].function, kept = (lambda x: x), model[place].function
                network = right(model, x, **options)
                model[place].function = kept
                return network
        return right(model, x, **options)

    monkeypatch.setattr(laws.ps, "trace", mistaken)
    with pytest.raises(Broken, match="a rescaling keeps the function"):
        check(wrong, 0, Counter())
    assert all(len(repr(spec)) < len(repr(wrong)) for spec in smaller(wrong))
    assert shrink(wrong, 0, seconds=0.5)[1].startswith("Broken")
