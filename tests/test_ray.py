"""Jobs on a Ray cluster of several nodes, one of which dies, as does a driver."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gated import began, wait_for_gate, wait_until
from pathspace.experiments.executors import (
    Archive,
    ExecutorError,
    JobError,
    RayExecutor,
    Site,
    compute,
    executor_named,
    groups_of,
)
from pathspace.experiments.training import Quiet, train
from trials import contents, small

TESTS = Path(__file__).parent
DRIVER = """
import sys
from pathlib import Path
from gated import wait_for_gate
from pathspace.experiments.executors import Archive, Site, compute, executor_named, groups_of
from trials import small
address, archive, folder = sys.argv[1:]
jobs = [small(), *(compute(wait_for_gate, folder=folder, name=name) for name in "ab")]
with executor_named(f"ray:{address}") as executor:
    list(executor.run(groups_of(jobs), Site(Archive(archive))))
"""


class Told(Quiet):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture(scope="module")
def cluster():
    """A head without cores, and two nodes with one each, on this machine."""
    pytest.importorskip("ray", reason="pip install 'pathspace[ray]' runs it")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))  # for the workers
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        memory = {"object_store_memory": 100 * 2**20}
        head = {"num_cpus": 0, "include_dashboard": False, **memory}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.nodes = [cluster.add_node(num_cpus=1, **memory) for _ in range(2)]
        yield cluster
        cluster.shutdown()


def is_running(pid):
    return Path(f"/proc/{pid}").exists()


def raylet_of(pid):
    """The process of the node that a worker belongs to."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_killed_driver_and_a_lost_node_cost_only_what_was_running(cluster, tmp_path):
    folder, archive = tmp_path / "notes", Archive(tmp_path / "archive")
    folder.mkdir()
    first, second = small(), small(seed=1)
    gated = {name: compute(wait_for_gate, folder=str(folder), name=name) for name in "ab"}

    # A driver that is killed while both nodes work, after one trial is finished.
    arguments = [sys.executable, "-c", DRIVER, cluster.address, archive.path, folder]
    driver = subprocess.Popen(arguments, cwd=TESTS)
    wait_until(lambda: all(began(folder, name) for name in gated))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    finished = archive.record(first).folder / "result.json"
    kept = finished.stat()
    wait_until(lambda: not any(is_running(pid) for name in gated for pid in began(folder, name)))
    before = {name: began(folder, name) for name in gated}

    # The next one, during which a node is lost; what ran there is done again, and nothing else.
    told, lost = Told(), []

    def lose_a_node():
        wait_until(lambda: all(set(began(folder, name)) - set(before[name]) for name in gated))
        fresh = {name: (set(began(folder, name)) - set(before[name])).pop() for name in gated}
        node = cluster.nodes[1]
        raylet = node.all_processes["raylet"][0].process.pid
        lost.extend(name for name, pid in fresh.items() if raylet_of(pid) == raylet)
        cluster.remove_node(node, allow_graceful=False)
        for name in lost:  # as if the power was cut: no worker outlives its node
            with contextlib.suppress(ProcessLookupError):
                os.kill(fresh[name], signal.SIGKILL)
        (folder / "gate").touch()

    jobs = [*gated.values(), second]
    with executor_named(f"ray:{cluster.address}") as executor:
        assert executor.width == 2
        thread = threading.Thread(target=lose_a_node)
        thread.start()
        site = Site(archive, report=told)
        groups = [finished.group for finished in executor.run(groups_of(jobs), site)]
        thread.join()

        assert {job for group in groups for job in group} == set(jobs)
        (again,) = lost
        (still,) = set(gated) - set(lost)
        assert len(began(folder, again)) == len(before[again]) + 2
        assert len(began(folder, still)) == len(before[still]) + 1
        assert any("lost" in note and f"name {again}" in note for note in told.notes)
        assert os.path.samestat(finished.stat(), kept)
        for trial in (first, second):
            train(trial, tmp_path / "alone")
            alone = tmp_path / "alone" / "trials" / trial.key[:16]
            assert contents(archive.record(trial).folder) == contents(alone)

        # The same workers, as if they did not see the archive: results are sent.
        gather = RayExecutor(cluster.address, gather=True)
        apart = Archive(tmp_path / "apart")
        apart.take(first, archive.export(first))
        reading = compute(wait_for_gate, [first], folder=str(folder), name="c")
        done = list(gather.run(groups_of([reading, second]), Site(apart)))
        assert len(done) == 2
        assert apart.find(reading)["outcomes"] == 1
        assert contents(apart.record(second).folder) == contents(archive.record(second).folder)

        # What is wrong with a job is said as it would be here.
        with pytest.raises(JobError, match="wait_for_gate"):
            list(executor.run([(compute(wait_for_gate, folder=str(folder)),)], site))


def test_without_ray_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExecutorError, match=r"pip install 'pathspace\[ray\]'"):
        executor_named("ray")
