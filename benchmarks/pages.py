"""Write the measured tables of docs/ anew, from the files in benchmarks/results.

python -m benchmarks.pages
"""

import json
from pathlib import Path
from typing import Any

from pathspace.bench import Benchmark
from pathspace.bench.drawing import draw_growth, draw_overview
from pathspace.bench.machine import machine_in_words
from pathspace.bench.measurement import goal, shown
from pathspace.bench.scaling import REFERENCE, Growth

ROOT = Path(__file__).parents[1]
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"
BEGIN, END = "<!-- measured: written by `make bench` -->", "<!-- end of what was measured -->"
SIZES = (9, 10, 11)  # powers of ten


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)


def pages() -> dict[Path, str]:
    """What the pages and pictures should hold, according to the results."""
    benchmarks, growth = read("benchmarks"), read("scaling")
    found = [Benchmark.from_dict(data) for data in benchmarks["benchmarks"]]
    about, about_growth = (machine_in_words(data["machine"]) for data in (benchmarks, growth))
    study = Growth.from_dict(growth)
    texts = {
        "performance.md": performance(found, about),
        "scale.md": scale(study, about_growth),
    }
    return {
        **{DOCS / name: filled((DOCS / name).read_text(), text) for name, text in texts.items()},
        DOCS / "images" / "benchmarks.svg": draw_overview(found, about),
        DOCS / "images" / "scaling.svg": draw_growth(study, about_growth),
    }


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def filled(page: str, text: str) -> str:
    """The page with a text between the two marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def performance(benchmarks: list[Benchmark], about: str) -> str:
    """A table per benchmark."""
    parts = [f"Measured on: {about}."]
    for benchmark in benchmarks:
        parts.append(f"### {benchmark.title}")
        rows = [
            f"| {row.what} | {shown(row)} | {goal(row)} | {row.verdict} | {row.note} |"
            for row in benchmark.rows
        ]
        head = ["| what | measured | goal | | |", "|---|---:|---:|---|---|"]
        parts.append("\n".join([*head, *rows]))
    return "\n\n".join(parts)


def scale(growth: Growth, about: str) -> str:
    """Exponents, and memory now and beyond."""
    head = [
        "| operation | exponent of time in weights | in layers | time at "
        f"{largest(growth):,} weights | extra bytes per weight | "
        + " | ".join(f"at 10^{power}" for power in SIZES)
        + " |",
        "|---|---:|---:|---:|---:|" + "---:|" * len(SIZES),
    ]
    rows = []
    for name in growth.operations:
        last = growth.series("m", name)[-1]
        each = last.bytes / last.weights
        units = name == "trace"  # grows with units, not with weights
        memory = ["–" if units else in_bytes(each * 10.0**power) for power in SIZES]
        rows.append(
            f"| {name}{' (reference)' * (name == REFERENCE)} | {growth.slope('m', name):.2f} "
            f"| {growth.slope('depth', name):.2f} | {last.seconds * 1e3:,.0f} ms | {each:.2g} | "
            + " | ".join(memory)
            + " |"
        )
    left_out = "".join(f"\n\nLeft out: {line}." for line in growth.left_out)
    return f"Measured on: {about}.\n\n" + "\n".join([*head, *rows]) + left_out


def in_bytes(count: float) -> str:
    return f"{count / 1e9:,.3g} GB" if count >= 1e9 else f"{count / 1e6:,.3g} MB"


def largest(growth: Growth) -> int:
    return max(point.weights for point in growth.points if point.series == "m")


if __name__ == "__main__":
    main()
