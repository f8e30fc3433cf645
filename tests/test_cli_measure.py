"""`pathspace measure`: what it prints, reads and writes, and how it says what is wrong."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import pathspace as ps
from pathspace.cli.application import application
from pathspace.experiments import data, models
from pathspace.experiments.fitting import fit_data
from pathspace.measures import measures
from pathspace.measuring import measure
from pathspace.report import Report

MLP = "mlp:64-8-10"


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Run the command in an empty directory, 80 columns wide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments, **env):
        env = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"} | env
        return CliRunner().invoke(application(), ["measure", *arguments], env=env)

    return run


@pytest.fixture
def weights(tmp_path):
    """A file with weights, so that two runs measure the same network."""
    model = models.build(MLP, torch.Generator().manual_seed(1))
    path = tmp_path / "trained.safetensors"
    save_file(model.state_dict(), path)
    return model, str(path)


def message(result, code=1):
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.replace("│", " ").split())


def test_report_of_weights_on_data(invoke, weights):
    model, path = weights
    result = invoke(MLP, "--weights", path, "--data", "digits")
    assert result.exit_code == 0, result.output
    digits = data.load("digits").apply(data.unit_interval(), data.flatten())
    expected = measure(model, (digits.train.inputs, digits.train.targets), name=MLP)
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{MLP}, streams pinned, skeleton modulo, data digits train (unit_")
    assert lines[2:] == str(expected).splitlines()[1:]
    assert max(map(len, lines)) <= 80
    assert result.stderr == ""


def test_json_is_the_report(invoke, weights):
    model, path = weights
    result = invoke(
        MLP, "--weights", path, "--json", "--skeleton", "largest", "--only", "path norm"
    )
    report = Report.from_dict(json.loads(result.stdout))
    example = models.example_input(MLP)
    expected = measure(
        model, example_input=example, choice="largest", measures=["path norm"], name=MLP
    )
    assert report == expected


def test_fresh_weights_are_those_of_the_seed(invoke):
    def norm(*options):
        result = invoke(MLP, "--only", "path norm", "--json", *options)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)["measures"]

    assert norm() == norm("--seed", "0") != norm("--seed", "1")


def test_self_check(invoke):
    result = invoke(MLP, "--data", "digits", "--limit", "100", "--self-check", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["self_check"]["ok"]
    moved = {row["name"] for row in found["self_check"]["rows"] if row["moved"]}
    assert {"weight norm (p=2)", "spectral norm", "basis-path bound"} <= moved
    assert "path norm (p=2)" not in moved
    assert next(m for m in found["measures"] if m["name"] == "samples")["value"] == 100


def test_self_check_that_fails_is_an_exit_code(invoke, monkeypatch):
    monkeypatch.setattr("pathspace.selfcheck.SelfCheck.ok", False)
    assert invoke(MLP, "--self-check", "--only", "path norm").exit_code == 1


def test_terminal_gets_colour_and_fits(invoke):
    result = invoke(MLP, "--data", "digits", "--self-check", FORCE_COLOR="1", TERM="xterm")
    assert result.exit_code == 0, result.output
    assert "\x1b[36mpath norm (p=2)" in result.stdout
    assert "\x1b[33mweight norm (p=2)" in result.stdout
    plain = invoke(MLP, "--data", "digits", "--self-check", TTY_COMPATIBLE="1", NO_COLOR="1")
    text = plain.stdout
    for code in ("\x1b[0m", "\x1b[1m", "\x1b[2m"):
        text = text.replace(code, "")
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "as claimed" in text
    on_request = ("kernel", "ball", "trace", "expected")
    assert all(one.name in text for one in measures() if not one.name.startswith(on_request))


def test_flatness_on_request(invoke):
    few = ("--data", "digits", "--limit", "50", "--flatness", "--self-check")
    result = invoke("mlp:64-4-10", *few)
    assert result.exit_code == 0, result.output
    assert "trace flatness (paths)" in result.stdout
    assert "trace flatness (weights)" in result.stdout


@pytest.mark.parametrize("suffix", [".html", ".json", ".csv", ".txt", ".png", ".svg", ".pdf"])
def test_files(invoke, suffix):
    result = invoke(MLP, "--out", f"report{suffix}", "--only", "path norm")
    assert result.exit_code == 0, result.output
    content = Path(f"report{suffix}").read_bytes()
    marks = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml", ".html": b"<!doctype html>"}
    assert content.startswith(marks.get(suffix, b""))
    if suffix in (".html", ".json", ".csv", ".txt"):
        assert b"path norm (p=2)" in content


def test_html_option(invoke):
    assert invoke(MLP, "--html", "page.html").exit_code == 0
    assert "basis-path norm" in Path("page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["report.doc", "nowhere/report.html"])
def test_files_that_cannot_be_written_are_refused_first(invoke, name):
    assert "--out" in message(invoke("no such model", "--out", name), code=2)


def test_list(invoke):
    text = invoke("--list").stdout
    assert all(one.name in text and one.title in text for one in measures())
    listed = json.loads(invoke("--list", "--json").stdout)
    assert [row["name"] for row in listed] == [one.name for one in measures()]
    assert {row["invariant"] for row in listed if row["group"] == "path space"} == {True}


def test_the_test_part_has_no_bounds(invoke):
    found = json.loads(invoke(MLP, "--data", "digits", "--split", "test", "--json").stdout)
    groups = {entry["group"] for entry in found["measures"]}
    assert groups == {"the network", "on the data", "path space", "weight space"}
    assert next(m for m in found["measures"] if m["name"] == "samples")["value"] == 355


def test_images_are_made_to_fit(invoke):
    found = json.loads(invoke("mlp:16-8-10", "--data", "digits", "--json").stdout)
    assert "unit_interval, downsample:4, flatten" in found["settings"]["data"]
    steps = ("--preprocess", "average_pool:4,standardize,flatten")
    found = json.loads(invoke("mlp:16-8-10", "--data", "digits", *steps, "--json").stdout)
    assert "average_pool:4, standardize, flatten" in found["settings"]["data"]


def test_errors(invoke):
    said = message(invoke("resnet18", "--data", "digits"))
    assert "digits has images of shape 1×8×8, but the model takes 3×32×32" in said
    assert "--preprocess" in said
    said = message(invoke(MLP, "--data", "digits", "--preprocess", "downsample:4,flatten"))
    assert "1×8×8 and 16 after downsample:4,flatten, but the model takes 64" in said
    assert "did you mean 'digits'" in message(invoke(MLP, "--data", "digit"))
    assert "did you mean 'max norm (p=2)'" in message(invoke(MLP, "--only", "max norm p=2"))
    said = message(invoke("mlp:64-8-5", "--data", "digits"))
    assert "10 classes" in said
    assert "one score per class" in said
    assert "takes 2 inputs" in message(invoke("ncf:8", "--data", "digits"))
    assert "MODEL" in message(invoke("--json"), code=2)


def test_help(invoke):
    text = invoke("--help").output
    assert "--self-check" in text
    assert "[cyan]" not in text


# Fitting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        ((1, 8, 8), ("unit_interval",)),
        ((64,), ("unit_interval", "flatten")),
        ((1, 5, 5), ("unit_interval", "downsample:5")),
        ((9,), ("unit_interval", "downsample:3", "flatten")),
    ],
)
def test_fitting(shape, steps):
    fitted = fit_data(data.load("digits"), shape)
    assert fitted.shape == shape
    assert fitted.steps == steps


@pytest.mark.parametrize("shape", [(3, 8, 8), (65,), (1, 16, 16), (1, 4, 8), (8, 8), (256,), ()])
def test_shapes_that_do_not_fit(shape):
    with pytest.raises(ps.PathspaceError, match="1×8×8, but the model takes"):
        fit_data(data.load("digits"), shape)
