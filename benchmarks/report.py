"""One benchmark as a program; `pathspace bench NAME` does the same and more."""

import argparse
import time
from collections.abc import Callable, Iterable

import torch

from pathspace.bench import Benchmark, Measurement, results_table

__all__ = ["Measurement", "main"]


def main(description: str | None, measure: Callable[[int], Iterable[Measurement]]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    start = time.perf_counter()
    rows = tuple(measure(repeats))
    title, threads = (description or "").partition("\n")[0], torch.get_num_threads()
    done = Benchmark("", title, rows, repeats, threads, time.perf_counter() - start)
    print(results_table([done]).text(100))
