"""Which tests run which lines, and how long they take."""

from __future__ import annotations

import json
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import coverage

SLOW = 3.0  # seconds of one core: tests that take longer are not used


@dataclass
class Reach:
    """What one run of all tests tells."""

    seconds: dict[str, float] = field(default_factory=dict)  # by test, of those that pass
    failed: list[str] = field(default_factory=list)  # or took longer than SLOW
    lines: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # file, test: lines

    def tests(self, file: Path, lines: Iterable[int]) -> list[str]:
        """The tests that run one of the lines: a case of each first, quickest first."""
        wanted = {str(line) for line in lines}
        found = [
            test
            for test, reached in self.lines.get(str(file), {}).items()
            if test in self.seconds and not wanted.isdisjoint(reached)
        ]
        cases: dict[str, int] = defaultdict(int)
        order = {}
        for test in sorted(found, key=lambda test: self.seconds[test]):
            function = test.partition("[")[0]
            order[test] = (cases[function], self.seconds[test])
            cases[function] += 1
        return sorted(order, key=lambda test: order[test])

    def add(self, other: Reach) -> None:
        """Take in what other tests tell."""
        self.seconds |= other.seconds
        self.failed += other.failed
        for file, reached in other.lines.items():
            self.lines.setdefault(file, {}).update(reached)

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> Reach:
        return cls(**json.loads(file.read_text(encoding="utf-8")))


def measure(
    names: Sequence[str], passes: Callable[[str, str | None], bool], files: Sequence[Path]
) -> Reach:
    """Run every test once and note the lines."""
    reach = Reach()
    signal.signal(signal.SIGPROF, _stop)
    tracer = coverage.Coverage(data_file=None, include=[str(file) for file in files])
    tracer.set_option("run:disable_warnings", ["no-data-collected"])  # not of every test file
    tracer.start()
    for place, name in enumerate(names):
        tracer.switch_context(str(place))
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SLOW)
        following = names[place + 1] if place + 1 < len(names) else None
        if passes(name, following):
            reach.seconds[name] = time.process_time() - start
        else:
            reach.failed.append(name)
    signal.setitimer(signal.ITIMER_PROF, 0)
    tracer.stop()
    data = tracer.get_data()
    for file in data.measured_files():
        by_test: dict[str, list[str]] = defaultdict(list)
        for line, contexts in data.contexts_by_lineno(file).items():
            for context in contexts:
                if context:
                    by_test[names[int(context)]].append(str(line))
        reach.lines[file] = dict(by_test)
    return reach


def _stop(*_: object) -> None:
    raise TimeoutError("this test is too slow to be used")
