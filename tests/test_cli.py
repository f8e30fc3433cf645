"""The command line: what it prints, what it loads, and how it says that something is wrong."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner, Result

import pathspace as ps
from pathspace.cli.application import application
from pathspace.experiments import models
from pathspace.experiments.loading import LoadingError, load_model, load_weights

MLP = "mlp:4-3-2"
ZOO = """
import torch
from torch import nn

print("the zoo is open")


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(4, 3), nn.Embedding(5, 3)
        self.head = nn.Linear(6, 1)

    def forward(self, user, item):
        return self.head(torch.cat([self.user(user), self.item(item)], -1).relu())


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return torch.linalg.qr(self.layer(x))[0]


def needs(width):
    return nn.Linear(width, 1)


def three():
    return 3


ready = net()
number = 3
"""

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a command in an empty directory; 80 columns, no colour unless asked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, **env: str) -> Result:
        env = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"} | env
        return CliRunner().invoke(application(), arguments, env=env)

    return run


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with models in the current directory."""
    (tmp_path / "zoo_of_a_user.py").write_text(ZOO)
    monkeypatch.delitem(sys.modules, "zoo_of_a_user", raising=False)
    return "zoo_of_a_user"


def traced(name: str, **options: Any) -> ps.Network:
    return ps.trace(models.build(name), models.example_input(name), **options)


def message(result: Result, code: int = 1) -> str:
    """What went to stderr, on one line and without frames; nothing else may have been said."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.replace("│", " ").split())


# What is shown -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [MLP, "ncf:8", "preact-resnet-small", "unet-small"])
def test_pipe_gets_the_network_as_it_prints(invoke: Invoke, name: str) -> None:
    result = invoke("inspect", name)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{traced(name)}\n"


def test_installed_command_prints_the_network_into_a_pipe() -> None:
    command = [sys.executable, "-m", "pathspace", "inspect", "senet-small", "--streams", "shared"]
    result = subprocess.run(command, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    expected = f"{traced('senet-small', streams='shared')}{os.linesep}"
    assert result.stdout.decode() == expected
    assert expected != f"{traced('senet-small')}{os.linesep}"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_terminal_gets_a_table_that_fits(invoke: Invoke, width: int) -> None:
    result = invoke("inspect", "resnet18-thin", COLUMNS=str(width), FORCE_COLOR="1", TERM="xterm")
    assert result.exit_code == 0, result.output
    assert "\x1b[32m" in result.stdout
    plain = invoke("inspect", "resnet18-thin", COLUMNS=str(width), TTY_COMPATIBLE="1", NO_COLOR="1")
    text = plain.stdout.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= width
    # Folded or not, nothing of the network is lost.
    squeezed = "".join(text.split())
    network = traced("resnet18-thin")
    assert "".join(network.totals().split()) in squeezed
    if width >= 80:
        assert text.splitlines()[1].split() == list(ps.Network.COLUMNS)
        assert all(space.name in text for space in network.spaces)
        assert "16 free*" in text
        assert "* up to eps in train mode: read by batch norm; exact in eval mode" in text


def test_terminal_shows_layer_names_as_they_are(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bracketed.py").write_text(
        "from torch import nn\n"
        "net = nn.Sequential()\n"
        "net.add_module('[red]', nn.Linear(2, 2))\n"  # would be markup if rich were let
    )
    monkeypatch.delitem(sys.modules, "bracketed", raising=False)
    result = invoke("inspect", "bracketed:net", "--input-shape", "1,2", TTY_COMPATIBLE="1")
    assert "[red]" in result.stdout


def test_columns_are_those_of_the_network() -> None:
    assert tuple(str(traced(MLP)).splitlines()[0].split()) == ps.Network.COLUMNS


def test_json_has_rows_and_totals(invoke: Invoke) -> None:
    data = json.loads(invoke("inspect", "resnet18-thin", "--json").stdout)
    network = traced("resnet18-thin")
    assert data["totals"] == {
        "m": network.m,
        "H": network.H,
        "H/m": network.H / network.m,
        "exact": 480,
        "unreached": [],
    }
    assert [row["layer"] for row in data["rows"]] == [row[0] for row in network.rows()]
    assert sum(row["free"] for row in data["rows"]) == network.H
    assert all(row["free"] + row["pinned"] == row["units"] for row in data["rows"])
    assert data["rows"][1] == {
        "layer": "stem.0",
        "operation": "conv2d",
        "weights": [{"parameter": "stem.0.weight", "shape": [16, 3, 3, 3]}],
        "units": 16,
        "free": 16,
        "exact": 0,
        "pinned": 0,
        "reasons": [],
    }
    assert data["rows"][2]["reasons"] == ["added to other units in `stage1.0` (add)"]


def test_json_counts_every_weight(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prelu_net.py").write_text(
        "from torch import nn\n"
        "net = nn.Sequential(nn.Linear(2, 3), nn.PReLU(), nn.Linear(3, 1))\n"
        "net.idle = nn.Linear(1, 1)\n"
        "net.forward = lambda x: net[2](net[1](net[0](x)))\n"
    )
    monkeypatch.delitem(sys.modules, "prelu_net", raising=False)
    result = invoke("inspect", "prelu_net:net", "--input-shape", "1,2", "--json")
    data = json.loads(result.stdout)
    shapes = [weight["shape"] for row in data["rows"] for weight in row["weights"]]
    assert sum(torch.Size(shape).numel() for shape in shapes) == data["totals"]["m"] == 14
    assert data["rows"][-1]["operation"] == "fixed"
    assert data["totals"]["unreached"] == ["idle.weight", "idle.bias"]


def test_list_names_every_model(invoke: Invoke) -> None:
    lines = invoke("inspect", "--list").stdout.splitlines()
    for entry in models.catalogue():
        assert any(line.split() == [entry.name, *entry.description.split()] for line in lines)
        assert any(entry.pattern in line for line in lines)
    listed = json.loads(invoke("inspect", "--list", "--json").stdout)
    assert [entry["name"] for entry in listed] == [entry.name for entry in models.catalogue()]


def test_version_and_help(invoke: Invoke) -> None:
    assert invoke("--version").stdout == f"pathspace {ps.__version__}\n"
    assert "inspect" in invoke().output
    for arguments in (["inspect"], ["inspect", "--help"], ["inspect", "-h"]):
        text = invoke(*arguments).output
        assert "pathspace inspect resnet18 --streams shared" in text
        assert "--input-shape" in text
        assert "[cyan]" not in text


# Models of one's own -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["net", "ready"])
def test_user_model(invoke: Invoke, zoo: str, name: str) -> None:
    result = invoke("inspect", f"{zoo}:{name}", "--input-shape", "1,3,4")
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{ps.trace(model, torch.zeros(1, 3, 4))}\n"
    assert result.stderr == "the zoo is open\n"  # what it prints is not among the results


def test_user_model_with_two_integer_inputs(invoke: Invoke, zoo: str) -> None:
    arguments = ("inspect", f"{zoo}:Recommender", "--input-shape", "2", "--input-shape", "2")
    result = invoke(*arguments, "--input-dtype", "int64")
    assert result.exit_code == 0, result.output
    assert "H = 6 free scales" in result.stdout


def test_unknown_operation_names_the_option(invoke: Invoke, zoo: str) -> None:
    arguments = ("inspect", f"{zoo}:Odd", "--input-shape", "1,3")
    said = message(invoke(*arguments))
    assert "`linalg_qr` is in no table" in said
    assert "--on-unknown pin" in said
    assert "on_unknown=" not in said
    assert "meets `Odd` (linalg_qr)" in invoke(*arguments, "--on-unknown", "pin").stdout


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("rsnet18", "unknown model 'rsnet18'; did you mean 'resnet18'?"),
        ("./zoo_of_a_user.py:net", "written package.module:callable"),
        ("mlp:4-x-2", "expected at least two positive widths"),
        ("resnet33", "expected 18, 34, 50, 101, 152 or 6n + 2"),
        ("absent_module:net", "no Python module 'absent_module'"),
        ("zoo_of_a_user.deeper:net", "no Python module 'zoo_of_a_user.deeper'"),
        ("zoo_of_a_user:nett", "there is no 'nett' there; did you mean 'net'?"),
        ("zoo_of_a_user:number", "is of type int; expected a torch.nn.Module"),
        ("zoo_of_a_user:three", "returned int, not a torch.nn.Module"),
        ("zoo_of_a_user:needs", "TypeError: needs() missing 1 required positional argument"),
        ("zoo_of_a_user:net", "Does --input-shape fit the model"),
    ],
)
def test_wrong_model(invoke: Invoke, zoo: str, reference: str, expected: str) -> None:
    shape = ("--input-shape", "1,7") if reference[-1].isalpha() else ()
    assert expected in message(invoke("inspect", reference, *shape))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import absent_dependency", "No module named 'absent_dependency'"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_failing_import(
    invoke: Invoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    expected: str,
) -> None:
    (tmp_path / "failing.py").write_text(code)
    monkeypatch.delitem(sys.modules, "failing", raising=False)
    said = message(invoke("inspect", "failing:net", "--input-shape", "1"))
    assert "importing 'failing' failed" in said
    assert expected in said


def test_debug_lets_the_error_through(invoke: Invoke) -> None:
    result = invoke("--debug", "inspect", "rsnet18")
    assert isinstance(result.exception, LoadingError)
    assert isinstance(invoke("inspect", "rsnet18").exception, SystemExit)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("inspect", "--json"), "--list shows what is built in"),
        (("inspect", "some.module:net"), "some.module:net is not built in"),
        (("inspect", MLP, "--input-shape", "1,x"), "should be positive numbers"),
        (("inspect", MLP, "--input-shape", "0,4"), "should be positive numbers"),
        (("inspect", MLP, "--input-shape", "1,4", "--batch", "2"), "first number"),
        (("inspect", MLP, "--input-dtype", "int64"), "one per --input-shape"),
        (("inspect", MLP, "--input-shape", "1,4", "--input-dtype", "int65"), "no dtype 'int65'"),
        (("inspect", MLP, "--streams", "wild"), "'wild' is not one of"),
        (("inspekt",), "No such command"),
    ],
)
def test_usage_errors(invoke: Invoke, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in message(invoke(*arguments), code=2)


# Weights -----------------------------------------------------------------------------------------


def save(state: dict[str, Any], path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


def seeded(seed: int) -> nn.Module:
    return models.build("mlp-bn:4-3-2", torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module."])
def test_weights_round_trip(invoke: Invoke, tmp_path: Path, suffix: str, prefix: str) -> None:
    saved = seeded(1).state_dict()
    path = save({prefix + key: value for key, value in saved.items()}, tmp_path / f"w{suffix}")
    model, _ = load_model("mlp-bn:4-3-2", path)
    assert not torch.equal(seeded(2).state_dict()["1.weight"], saved["1.weight"])
    torch.testing.assert_close(dict(model.state_dict()), dict(saved), rtol=0, atol=0)
    result = invoke("inspect", "mlp-bn:4-3-2", "--weights", str(path))
    assert result.exit_code == 0, result.output


def test_weights_of_a_shared_tensor_are_needed_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    state = {name: torch.ones_like(t) for name, t in model.state_dict().items()}
    del state["1.weight"]
    load_weights(model, save(state, tmp_path / "tied.safetensors"))
    assert bool((model[1].weight == 1).all())
    del state["0.weight"]
    with pytest.raises(LoadingError, match=r"missing from the file: 0\.weight, 1\.weight\."):
        load_weights(model, save(state, tmp_path / "untied.pt"))


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_weights_of_another_model(invoke: Invoke, tmp_path: Path, suffix: str) -> None:
    path = save(dict(models.build("mlp:4-5-2").state_dict()), tmp_path / f"other{suffix}")
    said = message(invoke("inspect", MLP, "--weights", str(path)))
    assert path.name in said
    assert "shapes differ: 1.weight (5×4 in the file, 3×4 in the model), 1.bias (5 in" in said
    path = save(dict(models.build("mlp:4-3-2-2-2-2").state_dict()), path)
    said = message(invoke("inspect", MLP, "--weights", str(path)))
    assert re.search(r"not in the model: (5\.\w+, ){2}(7\.\w+, )7\.\w+ and 2 more\.", said)
    said = message(invoke("inspect", "mlp:4-3-2-2-2-2-2", "--weights", str(path)))
    assert "missing from the file: 11.weight, 11.bias." in said


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickle_that_runs_code_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    path = save({"1.weight": Bomb(proof)}, tmp_path / "bomb.pt")
    said = message(invoke("inspect", MLP, "--weights", str(path)))
    assert "bomb.pt is refused" in said
    assert not proof.exists()
    torch.load(path, weights_only=False)  # it would have
    assert proof.exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_damaged_weights(invoke: Invoke, tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"damaged{suffix}").write_bytes(b"not weights at all")
    assert f"damaged{suffix}" in message(invoke("inspect", MLP, "--weights", f"damaged{suffix}"))


@pytest.mark.parametrize("kept", [0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
def test_weights_that_are_cut_off(invoke: Invoke, tmp_path: Path, suffix: str, kept: float) -> None:
    """The message says which file, what may have happened to it, and what to do."""
    state = models.build(MLP, torch.Generator().manual_seed(0)).state_dict()
    path = save(state, tmp_path / f"weights{suffix}")
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    for command in ("inspect", "measure"):
        said = message(invoke(command, MLP, "--weights", str(path)))
        assert f"weights{suffix}" in said
        assert "cut off" in said or "damaged" in said
        assert "save" in said
        assert "internal" not in said  # torch's advice on its own errors


def test_weights_that_are_no_state_dict(invoke: Invoke, tmp_path: Path) -> None:
    checkpoint = {"epoch": 3, "state_dict": models.build(MLP).state_dict()}
    save(checkpoint, tmp_path / "checkpoint.pt")
    said = message(invoke("inspect", MLP, "--weights", "checkpoint.pt"))
    assert "holds 'epoch', 'state_dict', none of which is a tensor" in said
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    assert "holds list; expected a state_dict" in message(
        invoke("inspect", MLP, "--weights", "list.pt")
    )
    (tmp_path / "weights.txt").touch()
    assert ".safetensors, .pt and .pth" in message(
        invoke("inspect", MLP, "--weights", "weights.txt")
    )
    assert "no file absent.pt" in message(invoke("inspect", MLP, "--weights", "absent.pt"))


# Without the extra -------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_missing_extra_is_named(module: str) -> None:
    code = (
        "import sys\n"
        f"sys.modules[{module!r}] = None\n"  # importing it now fails as if it were not installed
        "import pathspace.cli\n"
        "print('imported')\n"
        "pathspace.cli.main()\n"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stdout == "imported\n"
    assert f"no module {module!r}" in result.stderr
    assert "pip install 'pathspace[cli]'" in result.stderr
    assert "Traceback" not in result.stderr
