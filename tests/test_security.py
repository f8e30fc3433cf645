"""Attacks, each with the attack in it: nothing that is read can run code or reach outside.

Further ones stand where the code that they are aimed at is tested: archives in
``test_data_archives.py``, data files in ``test_data_formats.py``, pages in ``test_page.py`` and
``test_browser.py``.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import html.parser
import io
import json
import os
import pickle
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import nn
from typer.testing import CliRunner

import pathspace as ps
from pages import EVIL
from pathspace.cli.application import application
from pathspace.durable.files import SEAL, checksum, sealed
from pathspace.experiments import data
from pathspace.experiments.executors import Archive, compute
from pathspace.experiments.executors.computation import example
from pathspace.experiments.loading import LoadingError, load_model, load_weights
from pathspace.experiments.store import Damaged, Record, TrialStore, pack, unpack
from pathspace.experiments.store.states import BLANK, FIELD
from pathspace.experiments.training import Trial, train
from pathspace.experiments.training.errors import TrialError
from pathspace.losslandscape import Landscape
from pathspace.page import render
from pathspace.summary import read_runs, summarize

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.proof,)


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    """The file that an attack which succeeds leaves behind."""
    return tmp_path / "proof"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one finished trial."""
    folder = tmp_path_factory.mktemp("trained") / "store"
    train(Trial("mlp:64-4-10", "digits", iterations=1), TrialStore(folder), report="quiet")
    return folder


@pytest.fixture
def store(trained: Path, tmp_path: Path) -> Path:
    """A copy of it to be attacked."""
    return Path(shutil.copytree(trained, tmp_path / "store"))


# Nothing is unpickled -----------------------------------------------------------------------------


def zipped_pickle(thing: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def legacy_pickle(thing: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def object_array(thing: Any) -> bytes:
    buffer = io.BytesIO()
    array = numpy.empty(1, dtype=object)
    array[0] = thing
    numpy.savez(buffer, losses=array, t1=array, outside=array, center=array)
    return buffer.getvalue()


PICKLES: dict[str, Callable[[Any], bytes]] = {
    "torch": lambda bomb: zipped_pickle({"1.weight": bomb}),
    "torch, beside tensors": lambda bomb: zipped_pickle({"1.weight": torch.ones(3, 4), "x": bomb}),
    "torch, the model itself": lambda bomb: zipped_pickle(bomb),
    "torch, legacy": lambda bomb: legacy_pickle({"1.weight": bomb}),
    "bare": pickle.dumps,
    "numpy": object_array,
}
UNPICKLE: dict[str, Callable[[bytes], Any]] = {
    "bare": pickle.loads,
    "numpy": lambda content: numpy.load(io.BytesIO(content), allow_pickle=True)["t1"],
}


def as_landscape(content: bytes, folder: Path) -> Any:
    model = nn.Linear(2, 2)
    place = folder / "landscape"
    network = ps.trace(model, torch.ones(1, 2))
    ps.landscape(network, F.cross_entropy, (torch.ones(2, 2), torch.tensor([0, 1])), grid=3).save(
        place
    )
    (place / "landscape.npz").write_bytes(content)
    return Landscape.load(place)


def as_file(name: str) -> Callable[[bytes, Path], Any]:
    def load(content: bytes, folder: Path) -> Any:
        (folder / name).write_bytes(content)
        return load_weights(load_model("mlp:4-3-2").model, folder / name)

    return load


def as_config(content: bytes, folder: Path) -> Any:
    (folder / "trial.toml").write_bytes(content)
    return Trial.read(folder / "trial.toml")


def as_report(content: bytes, folder: Path) -> Any:
    (folder / "report.json").write_bytes(content)
    return read_runs([folder / "report.json"])


def as_computation(content: bytes, folder: Path) -> Any:
    archive, job = Archive(folder), compute(example, number=3)
    archive.take(job, {"anything": content})


READERS: dict[str, Callable[[bytes, Path], Any]] = {
    "weights.pt": as_file("weights.pt"),
    "weights.pth": as_file("weights.pth"),
    "weights.safetensors": as_file("weights.safetensors"),
    "landscape": as_landscape,
    "state of a trial": lambda content, folder: unpack(content),
    "configuration": as_config,
    "report": as_report,
    "computation": as_computation,
}


@pytest.mark.parametrize("kind", PICKLES)
@pytest.mark.parametrize("reader", READERS)
def test_a_pickle_is_refused_and_not_run(
    reader: str, kind: str, tmp_path: Path, proof: Path
) -> None:
    content = PICKLES[kind](Bomb(proof))
    with pytest.raises(ps.PathspaceError):
        READERS[reader](content, tmp_path)
    assert not proof.exists()
    run = UNPICKLE.get(kind, lambda text: torch.load(io.BytesIO(text), weights_only=False))
    run(content)
    assert proof.exists()  # the attack itself works


@pytest.mark.parametrize("kind", PICKLES)
@pytest.mark.parametrize(
    "name", ["weights.safetensors", "training.safetensors", "config.json", "metrics.jsonl"]
)
def test_a_pickle_in_a_store_is_damage(kind: str, name: str, store: Path, proof: Path) -> None:
    """Even where whoever put it there corrected the checksums."""
    (folder,) = (store / "trials").iterdir()
    (folder / name).write_bytes(PICKLES[kind](Bomb(proof)))
    result = json.loads((folder / "result.json").read_text())
    result["files"][name] = checksum(folder / name)
    del result[SEAL]
    (folder / "result.json").write_bytes(sealed(result))
    trial = Trial("mlp:64-4-10", "digits", iterations=1)

    def read_all() -> None:
        record = TrialStore(store).find(trial)
        assert record is not None
        assert all((record.rows, record.weights, record.training))

    with pytest.raises(Damaged):
        read_all()
    assert not proof.exists()


HOSTILE_TREES: dict[str, Any] = {
    "a tensor that is not there": ["tensor", "elsewhere"],
    "a kind that is none": ["object", "os.system", "touch proof"],
    "a key that is a list": ["dict", [[["a"], 1]]],
    "no pairs": ["dict", [1, 2]],
    "a list of one": ["list"],
    "a name in place of a list": ["tuple", 3],
}


@pytest.mark.parametrize("name", HOSTILE_TREES)
def test_a_state_with_the_right_checksum_and_the_wrong_content(name: str) -> None:
    header = json.dumps({"sha256": BLANK, "tree": HOSTILE_TREES[name]})
    content = save({"a": torch.ones(2)}, metadata={FIELD: header})
    digest = hashlib.sha256(content).hexdigest().encode()
    with pytest.raises(Damaged):
        unpack(content.replace(BLANK.encode(), digest, 1))
    assert unpack(pack({"a": 1})) == {"a": 1}


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 100_000 + "1" + "}" * 100_000, "[]", "1", "null"])
def test_json_of_a_hostile_shape(text: str, store: Path, tmp_path: Path) -> None:
    (folder,) = (store / "trials").iterdir()
    (folder / "result.json").write_text(text)
    with pytest.raises(ps.PathspaceError):
        TrialStore(store).find(Trial("mlp:64-4-10", "digits", iterations=1))
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ps.PathspaceError, match=r"report\.json"):
        read_runs([tmp_path / "report.json"])
    (tmp_path / "landscape.json").write_text(text)
    with pytest.raises(ps.PathspaceError, match=r"landscape\.json"):
        Landscape.load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 1, "losses": []}', '{"key": {}}', DEEP])
def test_a_damaged_half_of_a_landscape_is_named(text: str, tmp_path: Path) -> None:
    network = ps.trace(nn.Linear(2, 2), torch.ones(1, 2))
    (tmp_path / "landscape.partial.json").write_text(text)
    with pytest.raises(
        ps.PathspaceError, match=r"landscape\.partial\.json is damaged .* delete it"
    ):
        ps.landscape(
            network, F.cross_entropy, (torch.ones(2, 2), torch.tensor([0, 1])), folder=tmp_path
        )


@pytest.mark.parametrize("removed", ["labels", "name", "marks", "trail", "about", "space"])
def test_a_landscape_that_lacks_something_is_named(removed: str, tmp_path: Path) -> None:
    network = ps.trace(nn.Linear(2, 2), torch.ones(1, 2))
    found = ps.landscape(network, F.cross_entropy, (torch.ones(2, 2), torch.tensor([0, 1])), grid=3)
    file = found.save(tmp_path) / "landscape.json"
    about = json.loads(file.read_text())
    del about[removed]
    file.write_text(json.dumps(about))
    with pytest.raises(ps.PathspaceError, match=r"landscape\.json is damaged"):
        Landscape.load(tmp_path)


# No code but what is asked for --------------------------------------------------------------------

EVIL_MODULE = """
import pathlib
pathlib.Path(__file__).with_name("proof").touch()
from torch import nn
def attack(*_, **__):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
CODE = "__import__('pathlib').Path('proof').touch()"


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module in the current folder whose import leaves the proof behind."""
    (tmp_path / "evil.py").write_text(EVIL_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("evil", None)


def toml(settings: dict[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


REFERENCES = ["evil:attack", "evil.attack", "evil", "evil.py", "./evil.py", CODE, f"lambda: {CODE}"]
TEXTS = [
    "data",
    "augment",
    "init",
    "optimizer",
    "schedule",
    "loss",
    "stop",
    "device",
    "dtype",
    "mixed",
]
TEXTS += ["streams", "on_unknown"]
LISTS = ["preprocess", "penalties", "evaluate_on"]


@pytest.mark.parametrize("setting", [*TEXTS, *LISTS])
def test_settings_are_names_and_not_code(setting: str, evil: Path, proof: Path) -> None:
    base = {"model": "mlp:64-4-10", "data": "digits", "iterations": 1}
    for reference in REFERENCES:
        value = [reference] if setting in LISTS else reference
        with pytest.raises(ps.PathspaceError):
            Trial.from_dict({**base, setting: value})
    (evil / "trial.toml").write_text(toml({**base, setting: value}))
    said = CliRunner().invoke(application(), ["train", "--config", "trial.toml"])
    assert said.exit_code != 0
    assert not isinstance(said.exception, NameError | SyntaxError)
    assert not proof.exists()
    assert "evil" not in sys.modules


@pytest.mark.parametrize("reference", [r for r in REFERENCES if r != "evil:attack"])
def test_a_model_is_a_name_unless_it_is_an_import(reference: str, evil: Path, proof: Path) -> None:
    with pytest.raises(LoadingError):
        load_model(reference, input_shapes=[(1, 64)])
    with pytest.raises((TrialError, LoadingError)):
        train(Trial(reference, "digits", iterations=1), report="quiet")
    for command in ("inspect", "measure", "train"):
        options = [] if command == "inspect" else ["--data", "digits"]
        said = CliRunner().invoke(application(), [command, reference, *options])
        assert said.exit_code != 0
        assert not isinstance(said.exception, NameError | SyntaxError)
    assert not proof.exists()


def test_an_import_is_run_when_it_is_asked_for(evil: Path, proof: Path) -> None:
    """The other side of the coin: the attack itself works, and only this spelling runs it."""
    assert isinstance(load_model("evil:attack", input_shapes=[(1, 64)]).model, nn.Module)
    assert proof.exists()


def test_making_a_trial_imports_nothing(evil: Path, proof: Path) -> None:
    """A configuration can be read, shown and compared; only training runs the model's code."""
    (evil / "trial.toml").write_text(toml({"model": "evil:attack", "data": "digits"}))
    trial = Trial.from_dict(Trial.read(evil / "trial.toml"))
    assert trial.title
    assert trial.key
    assert not proof.exists()
    train(Trial("evil:attack", "digits", iterations=1), report="quiet")
    assert proof.exists()


def test_a_report_runs_no_code_of_its_trials(store: Path, evil: Path, proof: Path) -> None:
    trial = Trial("evil:attack", "digits", iterations=1)
    train(trial, TrialStore(store), report="quiet")
    sys.modules.pop("evil")
    proof.unlink()
    page = render(summarize(read_runs([store])))
    assert "evil:attack" in page
    said = CliRunner().invoke(application(), ["report", str(store), "--out", "page.html"])
    assert said.exit_code == 0, said.output
    assert not proof.exists()


def test_a_result_names_no_function_to_call(evil: Path, proof: Path) -> None:
    """The function of a computation comes from the program, never from the file of the result."""
    archive, job = Archive(evil / "archive"), compute(example, number=3)
    config = {**job.to_dict(), "function": "evil:attack"}
    held = pack({"config": config, "values": {"square": 9}, "seconds": 0.0})
    with pytest.raises(Damaged, match="another computation"):
        archive.take(job, {"x": held})
    assert archive.work_out(job, None)["square"] == 9
    assert not proof.exists()


# Nothing is written outside -----------------------------------------------------------------------


def test_results_of_other_machines_are_written_under_their_own_names(tmp_path: Path) -> None:
    """What a worker sends decides the content of files, and not where they are."""
    home, away = Archive(tmp_path / "a/b/home"), Archive(tmp_path / "away")
    trial = Trial("mlp:64-4-10", "digits", iterations=1)
    train(trial, away.store, report="quiet")
    sent = {"../../../evil": b"x", str(tmp_path / "absolute"): b"x", **away.export(trial)}
    home.take(trial, sent)
    assert home.find(trial) is not None
    found = {path.name for path in tmp_path.rglob("*")}
    assert not {"evil", "absolute"} & found


@pytest.mark.parametrize(
    "name", ["../evil", "/evil", "..", "a/../../evil", "C:\\evil", "\x00evil", ""]
)
def test_a_landscape_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    network = ps.trace(nn.Linear(2, 2), torch.ones(1, 2))
    folder = tmp_path / "a/b"
    states = {name: {k: t.detach() for k, t in network.state().items()}}
    sample = (torch.ones(2, 2), torch.tensor([0, 1]))
    ps.landscapes(network, states, F.cross_entropy, sample, grid=3, folder=folder)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2
    for file in files:
        assert file.resolve().is_relative_to(folder.resolve())
        assert file.parent != folder


def tar_of(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tape:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, target, 1 if kind == tarfile.REGTYPE else 0
        tape.addfile(info, io.BytesIO(b"x"))
    return buffer.getvalue()


def zip_of(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        bundle.writestr(name, b"x")
    return buffer.getvalue()


NAMES = ["../evil", "a/../../evil", "/tmp/evil", "..\\evil", "C:evil", "\\\\host\\evil", ".."]
ARCHIVES: dict[str, tuple[str, bytes]] = {
    **{f"tar {name}": ("a.tar.gz", tar_of(name)) for name in NAMES},
    **{f"zip {name}": ("a.zip", zip_of(name)) for name in NAMES},
    "tar, link": ("a.tar.gz", tar_of("evil", tarfile.SYMTYPE, "/")),
    "tar, hard link": ("a.tar.gz", tar_of("evil", tarfile.LNKTYPE, "../evil")),
    "tar, pipe": ("a.tar.gz", tar_of("evil", tarfile.FIFOTYPE)),
}


@pytest.mark.parametrize("attack", ARCHIVES)
def test_an_archive_stays_in_its_folder(attack: str, tmp_path: Path) -> None:
    name, content = ARCHIVES[attack]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(data.DataError, match=r"outside its folder|link or a device"):
        data.unpack(tmp_path / name, tmp_path / "a/b/c")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [name]


# Pages --------------------------------------------------------------------------------------------


class Reader(html.parser.HTMLParser):
    """Tags, attributes and addresses of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.policy = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        held = dict(attrs)
        if held.get("http-equiv") == "Content-Security-Policy":
            self.policy = held["content"]


def report_of(name: str) -> ps.Report:
    model = nn.Sequential()
    model.add_module(name.replace(".", "·"), nn.Linear(2, 2))
    sample = (torch.ones(2, 2), torch.tensor([0, 1]))
    return ps.measure(model, sample, name=name, self_check=True, progress=False)


def landscape_of(name: str, folder: Path) -> str:
    network = ps.trace(nn.Linear(2, 2), torch.ones(1, 2))
    sample = (torch.ones(2, 2), torch.tensor([0, 1]))
    found = ps.landscape(network, F.cross_entropy, sample, grid=3, name=name)
    return found.to_html(folder / "page.html").read_text(encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class Hostile:
    """A configuration that nobody checked."""

    optimizer: str
    key: str = 64 * "0"

    def to_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "options": {self.optimizer: self.optimizer}}


def trials_of(name: str, folder: Path) -> str:
    kept = TrialStore(folder / "runs")
    with kept.claim(Hostile(name)) as place:
        assert not isinstance(place, Record)
        row = {"epoch": 0, "iteration": 0, "loss": 1.0, name: 1.0, "note": name}
        place.log(row)
        ending = {"status": name, "reason": name, "notes": [name], "final": row, "best": row}
        place.finish(ending, {"w": torch.ones(1)}, {"step": 0})
    return render(summarize(read_runs([kept.path]), name))


def check_of(name: str) -> str:
    check = report_of(name).check
    assert check is not None
    return check.to_html()


PAGES: dict[str, Callable[[str, Path], str]] = {
    "report": lambda name, folder: report_of(name).to_html(),
    "comparison": lambda name, folder: ps.compare(
        report_of(name), report_of("b"), names=[name, "b"]
    ).to_html(),
    "self-check": lambda name, folder: check_of(name),
    "landscape": landscape_of,
    "trials": trials_of,
}


@pytest.mark.parametrize("kind", PAGES)
def test_every_kind_of_page_is_escaped_and_forbids_the_network(kind: str, tmp_path: Path) -> None:
    (tmp_path / "harmless").mkdir()
    harmless = Reader(PAGES[kind]("a name", tmp_path / "harmless"))
    for number, evil in enumerate(EVIL):
        folder = tmp_path / str(number)
        folder.mkdir()
        page = PAGES[kind](evil, folder)
        reader = Reader(page)
        assert evil not in page
        assert reader.tags == harmless.tags
        assert [name for name, _ in reader.attributes] == [n for n, _ in harmless.attributes]
    assert harmless.policy.startswith("default-src 'none'")
    assert "'unsafe-eval'" not in harmless.policy
    assert "http" not in harmless.policy
    for name, value in harmless.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "srcset", "action", "data", "poster"):
            assert value.startswith(("#", "data:"))


def network_of(name: str) -> ps.Network:
    model = nn.Sequential()
    model.add_module(name.replace(".", "·"), nn.Linear(2, 2))
    return ps.trace(model, torch.ones(1, 2))


NOTEBOOK: dict[str, Callable[[str], Any]] = {
    "network": network_of,
    "report": report_of,
    "comparison": lambda name: ps.compare(report_of(name), report_of(name)),
    "self-check": lambda name: report_of(name).check,
    "contributions": lambda name: ps.path_contributions(network_of(name)),
}


@pytest.mark.parametrize("kind", NOTEBOOK)
def test_notebooks_are_shown_escaped_names(kind: str) -> None:
    harmless = Reader(NOTEBOOK[kind]("a name")._repr_html_())
    for evil in EVIL:
        shown = NOTEBOOK[kind](evil)._repr_html_()
        assert evil not in shown
        assert Reader(shown).tags == harmless.tags


def test_only_one_place_writes_pages() -> None:
    """So every page has its policy: whatever is a page goes through `render`."""
    writers = [p for p in SOURCES if re.search("<!doctype|<html", p.read_text(), re.IGNORECASE)]
    assert [path.name for path in writers] == ["rendering.py"]
    assert "Content-Security-Policy" in writers[0].read_text()
    for path in SOURCES:  # plotly would write a page of its own
        assert not re.search(
            r"include_plotlyjs|plotly.*\.write_html|pio\.to_html", path.read_text()
        )


# The source itself --------------------------------------------------------------------------------

FORBIDDEN = frozenset(
    """
    eval exec compile __import__ os.system os.popen os.execv os.execvp os.spawnl
    subprocess.getoutput subprocess.getstatusoutput
    pickle.load pickle.loads pickle.Unpickler marshal.load marshal.loads shelve.open
    dill.load dill.loads joblib.load cloudpickle.load cloudpickle.loads pandas.read_pickle
    yaml.load yaml.unsafe_load torch.hub.load torch.jit.load tempfile.mktemp shutil.unpack_archive
    """.split()
)
NEEDED = {  # a call, and the keyword without which it would be dangerous
    "torch.load": ("weights_only", True),
    "numpy.load": ("allow_pickle", False),
    "np.load": ("allow_pickle", False),
}
IMPORTING = {  # who imports by name, and whose names these are
    "__init__.py": "modules of this package",
    "experiments/loading.py": "what the user wrote as package.module:name",
    "experiments/executors/computation.py": "functions that the program itself handed in",
    "experiments/reproduce/registry.py": "modules of this package",
    "experiments/data/errors.py": "optional dependencies, by literal names",
    "bench/repository.py": "files of the repository's folder of benchmarks",
}


@functools.cache
def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """The calls in a file, by their dotted names."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [(ast.unparse(node.func), node) for node in nodes if isinstance(node, ast.Call)]


def dangers(path: Path) -> list[str]:
    """What is dangerous in a file."""
    found = []
    for name, call in calls(path):
        options = {word.arg: word.value for word in call.keywords}
        place = f"{path.name}:{call.lineno} {name}"
        if name in FORBIDDEN or name.endswith((".extractall", ".extract")):
            found.append(place)
        if name in NEEDED:
            key, value = NEEDED[name]
            given = options.get(key)
            if not isinstance(given, ast.Constant) or given.value is not value:
                found.append(f"{place} without {key}={value}")
        shell = options.get("shell")
        if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
            found.append(f"{place} with a shell")
        if name.startswith("subprocess.") and call.args:
            command = call.args[0]
            if isinstance(command, ast.JoinedStr | ast.BinOp) or (
                isinstance(command, ast.Constant) and isinstance(command.value, str)
            ):
                found.append(f"{place} of a text")
    return found


def test_the_source_calls_nothing_dangerous() -> None:
    assert len(SOURCES) > 200
    assert [danger for path in SOURCES for danger in dangers(path)] == []


@pytest.mark.parametrize(
    "line",
    [
        "eval('1')",
        "os.system('ls')",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls -l')",
        "subprocess.run(f'ls {x}')",
        "subprocess.run(command, shell=flag)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=flag)",
        "numpy.load(path)",
        "pickle.loads(b'')",
        "archive.extractall(folder)",
        "yaml.load(text)",
    ],
)
def test_the_search_finds_what_is_dangerous(line: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(f"def f():\n    return {line}\n")
    assert dangers(tmp_path / "bad.py")


def test_imports_by_name_are_where_they_are_known_to_be() -> None:
    found = {
        path.relative_to(ROOT / "src/pathspace").as_posix()
        for path in SOURCES
        for name, _ in calls(path)
        if name.endswith("import_module")
    }
    assert found == set(IMPORTING)


def test_no_file_is_world_writable(store: Path) -> None:
    """Results are as open as the user's mask says, and no more."""
    mask = os.umask(0)
    os.umask(mask)
    for path in store.rglob("*"):
        assert path.stat().st_mode & 0o777 & mask == 0
