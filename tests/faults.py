"""Commands that are killed at random moments, small disks, and an experiment to run on them."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

from torch.testing import assert_close
from typer.main import get_command

from pathspace.cli.application import application
from pathspace.experiments.executors import compute
from pathspace.experiments.reproduce import Claim, Experiment, Findings, Plan, Preset, registry
from pathspace.experiments.store import Lock, unpack
from pathspace.losslandscape import partial, strategies
from trials import contents, end_of, small

NO_SERVER = 99  # the server of the workers died of a command that was killed while it asked it
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
COMMAND = get_command(application())  # once, as that takes longer than what it is to do here


# A small experiment ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """How many trials are of a kind of their own, so that each runs alone; two run together."""

    trials: int = 5


def weigh(outcomes, data_dir, number):
    """A computation that reads what was trained."""
    weights = [tensor.double() for outcome in outcomes for tensor in outcome.weights.values()]
    return {"sum": float(sum(tensor.sum() for tensor in weights)), "weights": weights[0] * number}


def plan(settings: Settings) -> Plan[Findings]:
    trials = [small(model=f"mlp:64-{4 + width}-10") for width in range(settings.trials)]
    together = [small(seed=seed, dtype="float64") for seed in (0, 1)]
    outcomes = yield [*trials, *together]
    weighed = yield [compute(weigh, [trial], number=n) for n, trial in enumerate(trials)]
    errors = [outcome.final["test_error"] for outcome in outcomes]
    sums = [result["sum"] for result in weighed]
    return Findings(
        claims=(Claim("sum of weights", 1.5, sum(sums)), Claim("errors", 0.5, sum(errors))),
        statements=("It was done.",),
    )


EXPERIMENT = Experiment(
    name="meng2019 small",
    title="A small one",
    where="Nowhere",
    shows="That it goes on.",
    plan=plan,
    quick=Preset(Settings(), jobs=12, time="a second"),
    paper=Preset(Settings(8), jobs=16, time="two seconds"),
)


def only_the_small_one(monkeypatch):
    """Let the command know that experiment and no other."""
    monkeypatch.setattr(registry, "find_experiments", lambda: (EXPERIMENT,))
    package = sys.modules["pathspace.experiments.reproduce"]
    monkeypatch.setattr(package, "find_experiments", lambda: (EXPERIMENT,))


# Processes ---------------------------------------------------------------------------------------


class Server(forkserver.ForkServer):
    """Forks the workers of all commands of a test, so that each need not import torch anew."""

    def __enter__(self):
        lazy = ["sklearn.datasets", "torch._dynamo", "safetensors.torch"]
        self.set_forkserver_preload(["pathspace.experiments.executors.local", *lazy])
        self.ensure_running()
        return self

    def __exit__(self, *error):
        self._stop()

    def serve(self):
        """Called in the process of a command: workers are forked by this server."""
        self.ensure_running = lambda: None  # as it does, but it can be asked by its parent only
        forkserver.connect_to_new_process = self.connect_to_new_process

    @property
    def workers(self):
        """The processes that it forked and that are still there."""
        pid = self._forkserver_pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except FileNotFoundError:  # it died, see NO_SERVER
            return []
        return [int(pid) for pid in children if not _is_zombie(int(pid))]


def _is_zombie(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def start(arguments, log, server=None):
    """Run a command in a process of its own: nothing is cached, checkpoints are frequent."""
    if server is not None:
        server.ensure_running()
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # it was faster
            os.setpgid(pid, pid)
        return pid
    status, began = 1, False
    try:
        os.setpgid(0, 0)  # as a shell does, so that Ctrl-C is for this one
        sys.stdout = sys.stderr = log.open("w")
        if server is not None:
            server.serve()
        os.fsync = lambda handle: None  # for power cuts; the death of a process loses no file
        partial.INTERVAL = -1.0
        strategies.MEMORY = 1  # one point at a time
        began = True
        COMMAND(list(map(str, arguments)), prog_name="pathspace")
    except SystemExit as end:
        status = end.code or 0
    except BaseException as error:
        if isinstance(error, ConnectionRefusedError) and server is not None:
            status = NO_SERVER
        elif isinstance(error, KeyboardInterrupt) and not began:
            status = 128 + signal.SIGINT  # before there was a command
        else:
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(status)


@dataclass
class Deaths:
    """What became of a command that was killed again and again, and then once more.

    Attributes:
        by_signal: how often each killed it.
        finished: how often it was done before the signal came, each time in a new folder.
        codes: how it ended.
    """

    by_signal: Counter
    finished: int
    codes: Counter

    def __str__(self):
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.by_signal.items()))
        return f"{sum(self.by_signal.values())} deaths ({counts}), {self.finished} came too late"


def kill_often(deaths, command, keep, check, folder, *, seed=0, server=None):
    """Give a command until it is done, ending it at random moments; so often until it died enough.

    Args:
        deaths: how many there have to be.
        command: gives the arguments for a folder.
        keep: gives what is finished in a folder, as something that never changes any more.
        check: is given a folder in which the command is done, and the one of the whole run.
        folder: for all of it.
        server: of the workers, some of which are killed instead, if there are any.
    """
    log, chance = folder / "log", random.Random(seed)
    places = warm, served, whole = [folder / name for name in ("warm", "served", "whole")]
    for place in places:
        place.mkdir()
    # In this process, so that those that it forks have all modules; without workers.
    alone = [str(one).replace("local:2", "local") for one in command(warm)]
    COMMAND(alone, prog_name="pathspace", standalone_mode=False)
    if server is not None:  # which has to import, too
        assert end_of(start(command(served), log, server)) == 0, log.read_text()
    began = time.monotonic()
    assert end_of(start(command(whole), log, server)) == 0, log.read_text()
    duration = time.monotonic() - began
    found = Deaths(Counter(), 0, Counter())
    while sum(found.by_signal.values()) < deaths:
        place = folder / f"round{found.finished}"
        place.mkdir(exist_ok=True)
        kept = keep(place)
        number = SIGNALS[sum(found.by_signal.values()) % len(SIGNALS)]
        pid = start(command(place), log, server)
        time.sleep(chance.uniform(0, 0.8 * duration))
        name, code = _strike(pid, number, server, chance)
        said = log.read_text()
        after = keep(place)
        assert {key: after.get(key) for key in kept} == kept, said  # neither lost nor done again
        if code == NO_SERVER:
            continue
        if code == 0:
            check(place, whole)
            found.finished += 1
            continue
        expected = {
            "SIGKILL": (-signal.SIGKILL,),
            "SIGTERM": (-signal.SIGTERM, 128 + signal.SIGTERM),
            "SIGINT": (128 + signal.SIGINT,),
            "SIGKILL of a worker": (1,),
        }[name]
        assert code in expected, (code, said)
        assert "Traceback" not in said, said
        found.by_signal[name] += 1
        found.codes[code] += 1
    place.mkdir(exist_ok=True)
    while (code := end_of(start(command(place), log, server))) == NO_SERVER:
        pass
    assert code == 0, log.read_text()
    check(place, whole)
    return found


def _strike(pid, number, server, chance):
    """Send the signal to the command, or to one of its workers; how it ended."""
    name = number.name
    workers = [] if server is None else server.workers
    if number == signal.SIGKILL and workers and chance.random() < 0.5:
        name = "SIGKILL of a worker"
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(workers), number)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
    code = end_of(pid)
    if server is not None:  # workers end with the command, whatever ended it
        latest = time.monotonic() + 60
        while server.workers:
            assert time.monotonic() < latest, f"left behind: {server.workers}"
            time.sleep(0.005)
    return name, code


# What is finished --------------------------------------------------------------------------------


def stamps(*files):
    """When files were written, and which they are: anything that is done again changes that."""
    return {str(file): (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def finished_trials(store):
    return stamps(*store.glob("trials/*/result.json"))


def finished_jobs(archive):
    return finished_trials(archive / "store") | stamps(*archive.glob("computations/*.safetensors"))


def same_trials(one, other):
    """See that two stores hold the same bytes, and nothing that was damaged.

    Trials that ran together are the same up to rounding, as their company may differ.
    """
    for store in (one, other):
        assert not (store / "damaged").exists()
        assert not any((store / "running").iterdir())
        free_locks(store)
    names = sorted(path.name for path in (one / "trials").iterdir())
    assert names == sorted(path.name for path in (other / "trials").iterdir())
    for name in names:
        mine, others = one / "trials" / name, other / "trials" / name
        if json.loads((mine / "config.json").read_text())["dtype"] == "float64":
            assert_close(metrics(mine), metrics(others), rtol=1e-9, atol=0)
        else:
            assert contents(mine) == contents(others)
        assert json.loads((mine / "timings.json").read_text())["seconds"] > 0
    return names


def free_locks(folder):
    """See that whoever comes next has every lock; the file of a killed process may be there."""
    for path in folder.rglob("*.lock"):
        lock = Lock(path)
        assert lock.acquire(), path
        lock.release()


def metrics(folder):
    """All numbers of a trial."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [[value for value in row.values() if isinstance(value, int | float)] for row in rows]


def computed(archive):
    """What computations came to; not how long they took."""
    files = sorted(archive.glob("computations/*.safetensors"))
    held = {file.name: unpack(file.read_bytes()) for file in files}
    return {name: (one["config"], one["values"]["sum"]) for name, one in held.items()} | {
        f"{name} weights": one["values"]["weights"].tolist() for name, one in held.items()
    }


# Disks -------------------------------------------------------------------------------------------

NO_MOUNT = (
    "small disks cannot be mounted here: needs Linux and the right to mount; it runs as root, in a "
    "container with --cap-add SYS_ADMIN"
)


@contextlib.contextmanager
def small_disk(path, size):
    """A disk of its own at a path; None if that is not permitted."""
    path.mkdir()
    option = f"size={size}"
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", option, "tmpfs", path], capture_output=True, check=False
        )
    except FileNotFoundError:
        done = None
    if done is None or done.returncode:
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)  # also if a test left a file open


@contextlib.contextmanager
def read_only(disk):
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


@contextlib.contextmanager
def little_space(disk, pages):
    """Fill a disk but for so many pages of 4 KiB."""
    ballast = disk / "ballast"
    free = os.statvfs(disk).f_bavail - pages
    ballast.write_bytes(b"x" * 4096 * max(0, free))
    try:
        yield
    finally:
        ballast.unlink()


# Damage ------------------------------------------------------------------------------------------


def flip(path, chance):
    """Turn one bit of a file."""
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut(path, chance):
    """Leave the beginning of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))])
