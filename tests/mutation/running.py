"""Runs tests against mutants: one process per mutant, forked when all tests are collected."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

from mutation.mutants import Mutant
from mutation.reach import Reach, measure
from mutation.transplant import transplant

MEMORY = 8 * 2**30  # bytes: a mutant that wants more is killed
PATIENCE = 1800  # seconds on the clock: enough on any machine


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    fate: str  # "killed", "timed out", "survived", or "left out": it cannot be put in
    by: str = ""  # the test that noticed
    tests: int = 0  # how many run the changed lines


class Tests:
    """All collected tests, as a plugin of pytest that gives them to ``work``.

    Args:
        work: what to do with them.
    """

    def __init__(self, work: Callable[[Tests], None]) -> None:
        self.work = work
        self.items: dict[str, pytest.Item] = {}
        self.alone: dict[str, bool] = {}
        self.failed = False

    def pytest_configure(self, config: pytest.Config) -> None:
        import hypothesis  # not before pytest has seen to it

        hypothesis.settings.register_profile("mutation", database=None, derandomize=True)
        hypothesis.settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def passes(self, name: str, following: str | None) -> bool:
        """Run one test."""
        item = self.items[name]
        after = self.items[following] if following is not None else None
        self.failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        return not self.failed

    def reach(self, files: Sequence[Path], kept: Callable[[Path], Path]) -> Reach:
        """Run all tests once and note what they reach, unless that was done before.

        Args:
            files: the sources that are looked at.
            kept: where to keep what the tests of a file reach.
        """
        by_file: dict[Path, list[str]] = {}
        for name, item in self.items.items():
            by_file.setdefault(item.path, []).append(name)
        reach = Reach()
        for path, names in by_file.items():
            if not kept(path).is_file():
                code, said = _in_child(partial(self._measure, names, files, kept(path)))
                if code:
                    raise RuntimeError(f"{path.name} ended with code {code}: {said}")
            reach.add(Reach.load(kept(path)))
        return reach

    def _measure(self, names: Sequence[str], files: Sequence[Path], kept: Path) -> str:
        for file in files:  # every module exchanged for itself, as mutants will be
            transplant(_module(file), file.read_text(encoding="utf-8"))
        measure(names, self.passes, files).save(kept)
        return ""

    def warm_up(self, reach: Reach) -> None:
        """Run the quickest test of every file, so that what torch imports late is there."""
        quickest: dict[Path, str] = {}
        for name in sorted(self.items.keys() & reach.seconds, key=lambda name: reach.seconds[name]):
            quickest.setdefault(self.items[name].path, name)
        for name in quickest.values():
            self.passes(name, None)

    def outcome(self, mutant: Mutant, reach: Reach, seconds: float) -> Outcome:
        """Run tests against a mutant until one fails, for so many seconds of one core."""
        names = reach.tests(mutant.file, mutant.lines)
        while True:
            tests = [name for name in names if name in self.items]
            code, said = _in_child(partial(self._try, mutant, tests, reach, seconds))
            if code in (-signal.SIGPROF, -signal.SIGALRM):
                return Outcome("timed out", tests=len(tests))
            if code == 1:
                raise RuntimeError(f"{mutant.name}: {said}")
            if code:
                return Outcome("killed", f"signal {-code}", len(tests))
            fate, _, by = said.partition(": ")
            if by not in self.items or self._passes_alone(by):
                return Outcome(fate, by, len(tests))
            print(f"{by} fails alone, without a mutant: it is not used any more", flush=True)
            del self.items[by]

    def _try(self, mutant: Mutant, tests: list[str], reach: Reach, seconds: float) -> str:
        try:
            if not transplant(_module(mutant.file), mutant.source):
                return "left out"
        except Exception as error:  # a mistake may raise anything; whatever it is, it is noticed
            return f"killed: {type(error).__name__} at import"
        signal.alarm(PATIENCE)
        start = time.process_time()
        for name, following in zip(tests, [*tests[1:], None], strict=False):
            signal.setitimer(signal.ITIMER_PROF, 5 + 10 * reach.seconds[name])
            if not self.passes(name, following):
                return f"killed: {name}"
            if time.process_time() - start > seconds:
                break
        return "survived"

    def _passes_alone(self, name: str) -> bool:
        """Whether a test passes without a mutant, whatever ran before it; looked at once."""
        if name not in self.alone:
            code, said = _in_child(lambda: str(self.passes(name, None)))
            self.alone[name] = not code and said == "True"
        return self.alone[name]


def _in_child(work: Callable[[], str]) -> tuple[int, str]:
    """Do something in a process of its own; its exit code (negative: a signal) and its answer."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _work_and_leave(work, writing)
    os.close(writing)
    with open(reading, encoding="utf-8") as answer:
        said = answer.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said


def _work_and_leave(work: Callable[[], str], writing: int) -> NoReturn:
    code = 1
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.write(writing, work().encode())
        code = 0
    except BaseException:
        os.write(writing, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _module(file: Path) -> ModuleType:
    parts = file.with_suffix("").parts
    names = parts[parts.index("pathspace", len(parts) - 3) :]
    return sys.modules[".".join(names).removesuffix(".__init__")]
