"""Draw one_function.svg: training from two sets of weights that are one function.

The trainings are those of `pathspace demo` with its common rate and first seed; the loss on the
training images is drawn after each epoch. From a clone of the repository:

    python docs/images/one_function.py
"""

from pathlib import Path

import torch

from pathspace.bench.svg import Canvas
from pathspace.experiments.demo import FULL, STARTS
from pathspace.experiments.training import train

PICTURE = Path(__file__).with_suffix(".svg")
PANELS = {"sgd": "SGD", "pathsgd": "Path-SGD", "gsgd": "G-SGD"}
COLOURS = {"balanced": "#0072b2", "unbalanced": "#d55e00"}
WORDS = {
    "balanced": "from balanced weights",
    "unbalanced": "from the same function, hidden units rescaled",
}
WIDE, HIGH, LEFT, TOP, GAP = 240, 200, 44, 84, 32
LARGEST = 2.5  # of the axis of the loss

Curves = dict[str, dict[str, list[float]]]


def main() -> None:
    torch.set_num_threads(1)
    PICTURE.write_text(draw(curves()), encoding="utf-8")


def curves() -> Curves:
    """The losses after each epoch, by optimizer and start."""
    return {
        optimizer: {
            start: [
                float(row["train_loss"])
                for row in train(FULL.trial(optimizer, start, FULL.common, FULL.seeds[0])).curves
            ]
            for start in STARTS
        }
        for optimizer in PANELS
    }


def draw(found: Curves) -> str:
    """A panel per optimizer."""
    canvas = Canvas(LEFT + 3 * WIDE + 2 * GAP + 16, TOP + HIGH + 66, "One function, two starts")
    canvas.text(8, 20, "One function in two sets of weights: does the optimizer notice?", "title")
    about = (
        f"training loss of {FULL.model} on {FULL.data}, rate {FULL.common:g}, {FULL.epochs} epochs"
    )
    canvas.text(8, 40, about, "soft")
    for k, (optimizer, title) in enumerate(PANELS.items()):
        left = LEFT + k * (WIDE + GAP)
        canvas.text(left, TOP - 10, title, "group")
        for level in (0, 1, 2):
            y = TOP + HIGH * (1 - level / LARGEST)
            canvas.line(left, y, left + WIDE, y)
            if k == 0:
                canvas.text(left - 8, y + 4, str(level), "soft", "end")
        for start in STARTS:
            losses = found[optimizer][start]
            step = WIDE / (len(losses) - 1)
            points = [
                (left + step * epoch, TOP + HIGH * (1 - loss / LARGEST))
                for epoch, loss in enumerate(losses)
            ]
            # Dashes, so that a curve which covers the other one lets it be seen.
            canvas.curve(points, COLOURS[start], "" if start == STARTS[0] else "4 6")
        canvas.text(left, TOP + HIGH + 20, apart(found[optimizer]), "soft")
    x = LEFT
    for start in STARTS:
        y = TOP + HIGH + 48
        canvas.curve([(x, y - 4), (x + 32, y - 4)], COLOURS[start], "" if x == LEFT else "4 6")
        canvas.text(x + 42, y, WORDS[start])
        x += WIDE + GAP
    return str(canvas)


def apart(starts: dict[str, list[float]]) -> str:
    """How far apart the two curves come."""
    one, other = (torch.tensor(starts[start], dtype=torch.float64) for start in STARTS)
    largest = float((one - other).abs().max())
    return f"up to {largest:.2f} apart" if largest > 1e-9 else "less than 1e-9 apart"


if __name__ == "__main__":
    main()
