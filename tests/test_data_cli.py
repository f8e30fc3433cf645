"""``pathspace data``: the list, in a terminal, a pipe and a program, and the downloads."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from data_files import official, samples, serving, svhn
from pathspace.cli.application import application
from pathspace.experiments import data

Invoke = Callable[..., Result]

REAL = dict(data.SOURCES)
HINT = "`pathspace data fetch NAME` downloads the official files, `show NAME` reads them"


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a command on a machine without data; 80 columns, no colour unless asked for."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR", data.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, entry in data.SOURCES.items():
        changed = official(name, {f.name: f.name.encode() for f in entry.files}, system=())
        monkeypatch.setitem(data.SOURCES, name, changed)

    def run(*arguments: str, **env: str) -> Result:
        env = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"} | env
        return CliRunner().invoke(
            application(), ["data", *arguments], env=env, prog_name="pathspace"
        )

    return run


def write(root: Path, name: str) -> Path:
    """The files that the machine of these tests takes for the official ones."""
    entry = data.find_source(name)
    folder = root / entry.folder
    folder.mkdir(parents=True)
    for file in entry.files:
        (folder / file.name).write_bytes(file.name.encode())
    return folder


def states(result: Result) -> dict[str, str]:
    assert result.exit_code == 0, result.output
    return {row["name"]: row["state"] for row in json.loads(result.stdout)}


def test_list_as_json(invoke: Invoke, tmp_path: Path) -> None:
    folder = write(tmp_path, "mnist")
    rows = json.loads(invoke("list", "--json", PATHSPACE_DATA=str(tmp_path)).stdout)
    assert [row["name"] for row in rows] == ["digits", *data.SOURCES]
    by_name = {row["name"]: row for row in rows}
    assert by_name["mnist"]["folder"] == str(folder)
    assert by_name["mnist"]["rows"] == [60_000, 10_000]
    assert by_name["svhn"]["folder"] is None
    assert by_name["svhn"]["rows"] is None
    assert by_name["svhn"]["official_rows"] == [73_257, 26_032]
    assert by_name["cifar10"]["download_bytes"] == 170_052_171
    assert "Krizhevsky" in by_name["cifar10"]["terms"]


def test_states(invoke: Invoke, tmp_path: Path) -> None:
    root = str(tmp_path)
    everything = states(invoke("list", "--json", "--data-dir", root))
    assert everything == {"digits": "embedded"} | dict.fromkeys(data.SOURCES, "missing")
    folder = write(tmp_path, "mnist")
    assert states(invoke("list", "--json", "--data-dir", root))["mnist"] == "present"
    verified = invoke("list", "--json", "--verify", "--data-dir", root)
    assert states(verified)["mnist"] == "verified"
    path = folder / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes().upper())
    assert states(invoke("list", "--json", "--data-dir", root))["mnist"] == "present"
    verified = invoke("list", "--json", "--verify", "--data-dir", root)
    assert states(verified)["mnist"] == "altered"
    path.write_bytes(b"short")
    assert states(invoke("list", "--json", "--data-dir", root))["mnist"] == "altered"
    path.unlink()
    assert states(invoke("list", "--json", "--data-dir", root))["mnist"] == "incomplete"


def test_subsets_are_counted(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(data.SOURCES, "svhn", REAL["svhn"])
    folder = tmp_path / "svhn"
    folder.mkdir()
    for part, count in (("train", 11), ("test", 4)):
        svhn(*samples((count, 3, 32, 32), 10, seed=0), folder / f"{part}_32x32.mat")
    rows = json.loads(invoke("list", "--json", "--data-dir", str(tmp_path)).stdout)
    row = next(row for row in rows if row["name"] == "svhn")
    assert (row["state"], row["rows"]) == ("subset", [11, 4])
    (folder / "test_32x32.mat").write_bytes(b"no such thing")
    assert states(invoke("list", "--json", "--data-dir", str(tmp_path)))["svhn"] == "altered"


def test_list_in_a_pipe(invoke: Invoke, tmp_path: Path) -> None:
    folder = write(tmp_path, "ml-1m")
    result = invoke("list", PATHSPACE_DATA=str(tmp_path))
    _, header, _, *lines = result.stdout.splitlines()
    assert header.split() == "name train + test state download where".split()
    assert lines[-1] == HINT
    assert "\x1b" not in result.stdout
    starts = {
        line.index(state) for line in lines for state in ("missing", "present") if state in line
    }
    assert starts == {header.index("state")}
    (line,) = (line for line in lines if line.startswith("ml-1m"))
    assert line.split() == ["ml-1m", "994,169", "+", "6,040", "present", "5.9", "MB", str(folder)]


def test_list_on_a_terminal(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("list", TTY_COMPATIBLE="1", NO_COLOR="1", PATHSPACE_DATA=str(tmp_path))
    lines = re.sub(r"\x1b\[\d*m", "", result.stdout).splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = (line for line in lines if line.startswith("cifar10 "))
    assert line.split() == ["cifar10", "50,000", "+", "10,000", "missing", "170.1", "MB", "–"]
    assert lines[-1] == HINT


def test_show_images(invoke: Invoke) -> None:
    result = invoke("show", "digits")
    assert result.exit_code == 0, result.output
    facts = dict(re.split(r"  +", line) for line in result.stdout.splitlines()[3:12])
    assert facts["training images"] == "1,442"
    assert facts["shape"] == "1×8×8"
    assert facts["test images per class"] == "34 to 36"
    assert facts["largest value"] == "16"
    assert "every fifth image of each class is for testing" in result.stdout
    shown = json.loads(invoke("show", "digits", "--json").stdout)
    assert shown["shape"] == [1, 8, 8]
    inputs = data.load("digits").train.inputs.double() / 16
    assert shown["mean, from 0 to 1"] == [round(inputs.mean().item(), 4)]
    assert shown["deviation, from 0 to 1"] == [round(inputs.std(correction=0).item(), 4)]


def test_show_pairs(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = data.Interactions(
        users=torch.tensor([0, 0, 1]),
        items=torch.tensor([0, 2, 1]),
        test_items=torch.tensor([1, 2]),
        test_negatives=torch.tensor([[3], [3]]),
        user_ids=torch.tensor([1, 2]),
        item_ids=torch.tensor([10, 20, 30, 40]),
        notes=("few",),
    )
    asked = []
    monkeypatch.setattr(data, "load_movielens", lambda folder: asked.append(folder) or pairs)
    result = invoke("show", "ml-1m", "--data-dir", str(tmp_path))
    assert asked == [tmp_path]
    facts = dict(re.split(r"  +", line) for line in result.stdout.splitlines()[3:10])
    assert facts == {
        "interactions": "5",
        "items": "4",
        "users": "2",
        "sparsity": "37.50 %",
        "training pairs": "3",
        "test users": "2",
        "candidates per test user": "2",
    }
    assert result.stdout.splitlines()[-1] == "few"


def test_show_refuses(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("show", "mnsit")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "did you mean 'mnist'?" in result.stderr
    result = invoke("show", "mnist", "--data-dir", str(tmp_path))
    assert result.exit_code == 1
    assert f"`pathspace data fetch mnist --data-dir {tmp_path}`" in result.stderr


def test_fetch(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        for name in ("mnist", "fashion-mnist"):
            contents = {f.name: f"{name} {f.name}".encode() for f in REAL[name].files}
            entry = official(name, contents, hosts=(f"{server.url}/{name}",))
            monkeypatch.setitem(data.SOURCES, name, entry)
            server.contents |= {f"/{name}/{file}": c for file, c in contents.items()}
        result = invoke("fetch", "digits", "mnist", "fashion-mnist", "--data-dir", str(tmp_path))
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines() == [
            "digits: comes with scikit-learn, nothing to fetch",
            f"mnist: {tmp_path / 'mnist'}, verified; terms: as published by LeCun and Cortes",
            f"fashion-mnist: {tmp_path / 'fashion-mnist'}, verified; terms: MIT",
        ]
        assert len(server.asked) == 8
        listed = invoke("list", "--json", "--verify", "--data-dir", str(tmp_path))
        assert states(listed)["fashion-mnist"] == "verified"


def test_a_wrong_name_stops_before_the_first_download(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("fetch", "mnist", "minst", "--data-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "unknown data set 'minst'; did you mean 'mnist'?" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments", [("-h",), ("list", "-h"), ("fetch", "-h"), ("fetch",), ("show", "-h"), ()]
)
def test_help(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    command = " ".join(("pathspace data", *arguments[:1])).removesuffix(" -h")
    output = invoke(*arguments).output
    assert f"Usage: {command} [OPTIONS]" in output
    assert max(map(len, output.splitlines())) <= 80
