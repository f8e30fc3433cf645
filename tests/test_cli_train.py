"""`pathspace train`: what it prints, where results are, and how it says what is wrong."""

import json
import os
import signal
import sys
import time

import pytest
from typer.testing import CliRunner

from pathspace.cli.application import application
from pathspace.experiments.store import TrialStore
from pathspace.experiments.training import OPTIMIZERS, Trial, train
from trials import contents, end_of, fork

SHORT = ("mlp:64-8-10", "--data", "digits", "--epochs", "2", "--lr", "0.5")


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Run the command in an empty directory, 80 columns wide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments, command="train"):
        env = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
        return CliRunner().invoke(application(), [command, *arguments], env=env)

    return run


def message(result, code=1):
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.replace("│", " ").split())


def test_a_trial_and_its_result_again(invoke, tmp_path):
    first = invoke(*SHORT)
    assert first.exit_code == 0, first.output
    trial = Trial("mlp:64-8-10", "digits", lr=0.5, epochs=2)
    outcome = train(trial)
    lines = first.stdout.splitlines()
    assert lines[0] == "mlp:64-8-10 on digits, sgd, lr 0.5, seed 0"
    cells = {line.rsplit(maxsplit=1)[0]: line.rsplit(maxsplit=1)[1] for line in lines[3:9]}
    assert cells["train loss"] == f"{outcome.final['train_loss']:.4f}"
    assert f"test error      {outcome.final['test_error'] * 100:.2f} %" in first.stdout
    assert lines[-1].endswith(f"runs/trials/{trial.key[:16]}")
    assert TrialStore(tmp_path / "runs").find(trial) is not None
    progress = first.stderr.splitlines()
    assert progress[1].split() == "epoch loss train error test error".split()
    assert len(progress) == 5
    again = invoke(*SHORT)
    assert "from the store" in again.stdout
    assert again.stderr == ""


def test_json_and_quiet(invoke):
    result = invoke(*SHORT, "--json", "--quiet", "--store", "elsewhere")
    assert result.stderr == ""
    data = json.loads(result.stdout)
    assert data["status"] == "finished"
    assert data["trial"]["optimizer"] == "sgd"
    assert len(data["curves"]) == 3
    assert data["folder"].startswith("elsewhere/trials/")


def test_weights_can_be_measured(invoke):
    folder = json.loads(invoke(*SHORT, "--json").stdout)["folder"]
    weights = f"{folder}/weights.safetensors"
    result = invoke("mlp:64-8-10", "--weights", weights, command="measure")
    assert result.exit_code == 0, result.output


def test_file_and_flags(invoke, tmp_path):
    (tmp_path / "trial.toml").write_text(
        'model = "mlp:64-8-10"\ndata = "digits"\niterations = 3\nlr = 1\n'
        'preprocess = ["unit_interval", "flatten"]\n[options]\nmomentum = 0.5\n'
    )
    data = json.loads(invoke("--config", "trial.toml", "--json").stdout)["trial"]
    assert (data["iterations"], data["lr"], data["options"]) == (3, 1.0, {"momentum": 0.5})
    flags = ("--epochs", "1", "--option", "nesterov=true", "--optimizer", "sgd", "--seed", "4")
    data = json.loads(invoke("--config", "trial.toml", *flags, "--json").stdout)["trial"]
    assert (data["iterations"], data["epochs"], data["seed"]) == (None, 1, 4)
    assert data["options"] == {"momentum": 0.5, "nesterov": True}


def test_flags_reach_the_trial(invoke):
    flags = {
        "--preprocess": "unit_interval, validation_split:100, flatten",
        "--init": "balanced",
        "--optimizer": "adam",
        "--option": "betas=0.8,0.99",
        "--schedule": "cosine:warmup=2",
        "--loss": "truncated-softmax",
        "--weight-decay": "0.01",
        "--penalty": "path-norm:1e-4",
        "--dropout": "0.25",
        "--batch": "100",
        "--stop": "overfitting:3",
        "--evaluate-every": "2",
        "--dtype": "float64",
    }
    words = [word for pair in flags.items() for word in pair]
    result = invoke(*SHORT, *words, "--drop-last", "--no-deterministic", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    trial = data["trial"]
    steps = ["unit_interval", "validation_split:100:seed=0", "flatten"]
    assert trial["preprocess"] == steps
    assert trial["options"] == {"betas": [0.8, 0.99]}
    assert trial["penalties"] == ["path-norm:1e-4"]
    assert (trial["drop_last"], trial["deterministic"]) == (True, False)
    for flag in ("init", "optimizer", "schedule", "loss", "stop", "dtype"):
        assert trial[flag] == flags[f"--{flag}"]
    assert data["best"]["validation_error"] <= 1


def test_best_validation_is_shown(invoke):
    steps = "unit_interval,validation_split:100,flatten"
    result = invoke(*SHORT, "--preprocess", steps)
    assert "best validation" in result.stdout
    assert "validation error" in result.stdout


def test_divergence_is_a_result_and_no_error(invoke):
    result = invoke("mlp:64-8-10", "--data", "digits", "--lr", "1e30", "--epochs", "2")
    assert result.exit_code == 0
    assert "diverged" in result.stdout
    assert "the loss is not finite" in result.stdout


def test_names_are_listed(invoke):
    result = invoke("--list")
    for name in (*OPTIMIZERS, "truncated-softmax", "diminishing:[decay=0.99]", "overfitting"):
        assert name in result.stdout
    table = json.loads(invoke("--list", "--json").stdout)
    assert set(table["optimizers"]) == set(OPTIMIZERS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*SHORT, "--optimizer", "gsdg"], "did you mean 'gsgd'"),
        ([*SHORT, "--option", "momentun=1"], "did you mean 'momentum'"),
        ([*SHORT, "--iterations", "5"], "both given"),
        ([*SHORT, "--config", "none.toml"], "none.toml cannot be read: No such file"),
        ([*SHORT, "--device", "cuda:99"], "there is no cuda:99 on this machine"),
        ([*SHORT, "--tensorboard", "tb"], "pip install tensorboard"),
    ],
)
def test_what_is_wrong_is_named(invoke, monkeypatch, arguments, words):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert words in message(invoke(*arguments))


def test_wrong_keys_of_a_file_are_named(invoke, tmp_path):
    for text, words in {
        'model = "mlp:64-8-10"\noptimiser = "sgd"': "trial.toml: unknown setting 'optimiser'; did",
        'model = "mlp:64-8-10"\nbatch = "64"': "trial.toml: batch should be a whole number",
        "model = ": "trial.toml is not TOML",
    }.items():
        (tmp_path / "trial.toml").write_text(text)
        assert words in message(invoke("--config", "trial.toml", "--data", "digits"))


def test_what_is_left_out_is_named(invoke, tmp_path):
    assert "--data is missing; try digits" in message(invoke("mlp:64-8-10"), code=2)
    assert "MODEL is missing; try mlp:64-32-10" in message(invoke("--data", "digits"), code=2)
    (tmp_path / "trial.toml").write_text('model = "mlp:64-8-10"')
    assert "trial.toml: data is missing" in message(invoke("--config", "trial.toml"))


def test_an_option_without_value(invoke):
    assert "should be KEY=VALUE" in message(invoke(*SHORT, "--option", "momentum"), code=2)


def test_a_folder_of_something_else(invoke, tmp_path):
    (tmp_path / "thesis.tex").touch()
    assert "is no trial store" in message(invoke(*SHORT, "--store", "."))


def start(arguments, log):
    """Run the command in a process of its own, its output in a file."""

    def run():
        sys.stdout = sys.stderr = log.open("w")
        try:
            application()(["train", *arguments], prog_name="pathspace")
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code)

    return fork(run)


def test_signals_leave_a_trial_that_can_go_on(tmp_path, monkeypatch):
    """Ended by SIGTERM and by Ctrl-C, then finished."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # for power cuts, and slow
    trial = Trial("mlp:64-32-10", "digits", lr=0.05, epochs=60, evaluate_every=20)
    store, log = tmp_path / "runs", tmp_path / "log"
    arguments = [
        "mlp:64-32-10", "--data", "digits", "--lr", "0.05", "--epochs", "60", "--evaluate-every",
        "20", "--store", str(store),
    ]  # fmt: skip
    checkpoint = store / "running" / trial.key[:16] / "checkpoint.safetensors"
    for number in (signal.SIGTERM, signal.SIGINT):
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        pid = start([*arguments, "--checkpoint-every", "0"], log)
        latest = time.monotonic() + 60
        while not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before:
            assert time.monotonic() < latest, log.read_text()
            time.sleep(0.001)  # until it is under way
        os.kill(pid, number)
        assert end_of(pid) == 128 + number, log.read_text()
        said = " ".join(log.read_text().split())
        assert f"{signal.Signals(number).name}: stopped after step" in said
        assert "the same command goes on from there" in said
    assert "going on after step" in said
    assert end_of(start([*arguments, "--json", "--quiet"], log)) == 0
    assert json.loads(log.read_text())["status"] == "finished"
    resumed = TrialStore(store).find(trial)
    assert resumed.timings["sessions"] == 3
    whole = train(trial, tmp_path / "whole")
    assert contents(resumed.folder) == contents(whole.folder)
