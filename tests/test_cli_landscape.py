"""``pathspace landscape``: files, pictures, interruptions and errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from typer.testing import CliRunner, Result

import pathspace as ps
from pathspace.cli.application import application
from pathspace.experiments import data, models
from pathspace.losslandscape import Landscape, landscape
from pathspace.losslandscape.strategies import ManyPoints

MLP = "mlp:64-12-10"
FEW = ("--data", "digits", "--limit", "40", "--grid", "5")

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run the command in a directory with the weights `a.pt` and `b.pt`."""
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for seed, name in enumerate(("a", "b")):
        torch.save(weights(seed), f"{name}.pt")

    def run(*arguments: str) -> Result:
        env = {"COLUMNS": "200", "TERMINAL_WIDTH": "200"}
        return CliRunner().invoke(application(), ["landscape", *arguments], env=env)

    return run


def weights(seed: int) -> dict[str, Tensor]:
    return dict(models.build(MLP, torch.Generator().manual_seed(seed)).state_dict())


def expected(which: int, /, **options: Any) -> Landscape:
    """What the library says."""
    model = models.build(MLP)
    model.load_state_dict(weights(which))
    digits = data.load("digits").apply(data.unit_interval(), data.flatten())
    pair = digits.train.inputs[:40], digits.train.targets[:40]
    network = ps.trace(model, pair[0][:1])
    return landscape(network, F.cross_entropy, pair, grid=5, **options)


def said(result: Result, code: int = 0) -> str:
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.stderr
    return " ".join((result.stdout if code == 0 else result.stderr).replace("│", " ").split())


def test_writes_arrays_and_pictures(invoke: Invoke) -> None:
    text = said(invoke(MLP, "--weights", "a.pt", *FEW, "--out", "new/around"))
    assert "a: loss" in text
    assert "5×5 points in the space of paths, 40 samples" in text
    folder = Path("new/around")
    names = ["contour.png", "landscape.html", "landscape.json", "landscape.npz", "surface.png"]
    assert sorted(path.name for path in folder.iterdir()) == names
    found = Landscape.load(folder)
    assert found.name == "a"
    assert torch.equal(found.losses, expected(0).losses)


def test_options_reach_the_library(invoke: Invoke) -> None:
    options = ("--space", "weights", "--directions", "filter-normalized", "--scale", "0.5")
    result = invoke(MLP, "--weights", "b.pt", *FEW, "--out", "w", *options, "--seed", "3", "--json")
    about = json.loads(said(result))["landscapes"][0]
    alone = expected(1, space="weights", directions="filter-normalized", scale=0.5, seed=3, dims=2)
    assert about["center"] == pytest.approx(alone.center)
    assert about["key"]["directions"] == alone.about["key"]["directions"]
    assert torch.equal(Landscape.load("w").losses, alone.losses)


def test_fresh_weights_are_those_of_the_seed(invoke: Invoke) -> None:
    """So that the same command goes on, and another seed is another landscape."""
    texts = [said(invoke(MLP, *FEW, "--out", "fresh")) for _ in range(2)]
    assert texts[0] == texts[1]
    text = said(invoke(MLP, *FEW, "--out", "fresh", "--seed", "1"), 1)
    assert "fresh holds a landscape of something else: it differs in weights" in text


def test_several_weights_are_drawn_side_by_side(invoke: Invoke) -> None:
    text = said(invoke(MLP, "--weights", "a.pt", "--weights", "b.pt", *FEW, "--out", "both"))
    assert "both/side-by-side.png" in text
    assert Path("both/landscape.html").exists()
    a, b = (Landscape.load(f"both/{name}") for name in ("a", "b"))
    assert a.about["key"]["directions"] == b.about["key"]["directions"]
    assert a.about["key"]["skeleton"] == b.about["key"]["skeleton"]
    assert not torch.allclose(a.losses, b.losses)


def test_line_and_trajectory(invoke: Invoke) -> None:
    line = ("--towards", "b.pt", "--space", "weights")
    assert "line.png" in said(invoke(MLP, "--weights", "a.pt", *FEW, "--out", "line", *line))
    found = Landscape.load("line")
    assert found.marks == {"b": (1.0,)}
    assert float(found.losses[3]) == pytest.approx(expected(1).center, rel=1e-5)  # at t = 1
    run = ("--checkpoint", "b.pt", "--dims", "1", "--space", "weights")
    said(invoke(MLP, "--weights", "a.pt", *FEW, "--out", "run", *run))
    assert len(Landscape.load("run").trail) == 1


def test_interrupted_command_goes_on(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (MLP, "--weights", "a.pt", *FEW, "--out", "around")
    said(invoke(*command[:-1], "whole"))
    losses = ManyPoints.losses
    calls = []

    def interrupted(self: ManyPoints, points: Tensor) -> Tensor:
        calls.append(len(points))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return losses(self, points)

    def in_small_steps(*arguments: Any) -> Any:
        from pathspace.losslandscape.strategies import choose_strategy

        return choose_strategy(*arguments[:-1], 4)

    monkeypatch.setattr("pathspace.losslandscape.computing.choose_strategy", in_small_steps)
    with monkeypatch.context() as patch:
        patch.setattr(ManyPoints, "losses", interrupted)
        text = said(invoke(*command), 130)
    assert "stopped at 8 of 25 points" in text
    assert "the same command goes on" in text
    assert "differs in directions" in said(invoke(*command, "--seed", "1"), 1)
    said(invoke(*command))
    assert not list(Path("around").glob("*partial*"))
    said(invoke(*command[:-1], "again"))  # all at once, in the same small steps
    assert torch.equal(Landscape.load("around").losses, Landscape.load("again").losses)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((MLP, "--out", "x"), 2, "--data is missing; try digits"),
        (("--out", "x"), 2, "MODEL is missing; try mlp:64-32-10"),
        ((MLP, "--data", "digit", "--out", "x"), 1, "digit"),
        (("mlp:7-3-10", *FEW, "--out", "x"), 1, "the model takes 7"),
        (("mlp:64-3-2", *FEW, "--out", "x"), 1, "one score per class"),
        ((MLP, *FEW, "--out", "x", "--towards", "a.pt", "--checkpoint", "b.pt"), 2, "choose one"),
        ((MLP, *FEW, "--out", "x", "--weights", "c.pt"), 1, "no file c.pt"),
        ((MLP, *FEW, "--out", "x", "--weights", "a.pt", "--towards", "b.pt"), 1, "another sign"),
    ],
)
def test_errors(invoke: Invoke, arguments: tuple[str, ...], code: int, message: str) -> None:
    assert message in said(invoke(*arguments), code)
