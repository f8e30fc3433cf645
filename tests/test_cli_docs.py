"""The command line as documented: every command, real examples, exit codes, help that fits."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import pathspace.cli.completion as completion
from pathspace.citing import WORKS
from pathspace.cli.application import COMMANDS, application
from pathspace.cli.data import COMMANDS as DATA_COMMANDS
from pathspace.cli.help import examples, help_text
from pathspace.experiments import data, models
from pathspace.experiments.training import OPTIMIZERS

PAGE = (Path(__file__).parents[1] / "docs" / "cli.md").read_text(encoding="utf-8")
COMMAND: Any = typer.main.get_command(application())
FUNCTIONS = [*COMMANDS, *DATA_COMMANDS.values()]
NAMES = [
    *(one.__name__ for one in COMMANDS),
    *(f"data {name}" for name in DATA_COMMANDS),
    "data",
]

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, columns: int = 80) -> Result:
        monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", columns)
        return CliRunner().invoke(application(), arguments, env={"COLUMNS": str(columns)})

    return run


def parse(line: str) -> None:
    """Read a command line as the application would, and run nothing."""
    words = shlex.split(line.partition(" >> ")[0], comments=True)
    words = words[words.index("pathspace") + 1 :]
    command, context = COMMAND, typer.Context(COMMAND, info_name="pathspace")
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name, *words = words
        assert name in command.commands, line
        command = command.commands[name]
        context = typer.Context(command, info_name=name, parent=context)
    if words != ["--install-completion"]:
        with command.make_context(command.name, words, parent=context.parent):
            pass


def shown_commands(text: str) -> Iterator[str]:
    """The commands in the console blocks of a page."""
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", "").splitlines():
            if line.startswith("$ ") and "pathspace" in shlex.split(line, comments=True):
                yield line.removeprefix("$ ")


# The page ----------------------------------------------------------------------------------------


def test_the_page_has_every_command_and_no_other() -> None:
    headings = re.findall(r"^#{3,4} (.+)$", PAGE, re.MULTILINE)
    assert sorted(headings) == sorted(NAMES)
    assert set(COMMAND.commands) == {name for name in NAMES if " " not in name}


def test_every_command_has_an_example_on_the_page() -> None:
    lines = list(shown_commands(PAGE))
    for name in set(NAMES) - {"data"}:
        assert any(f"pathspace {name}" in line for line in lines), name


def test_parsing_notices_what_is_wrong() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse("pathspace inspect resnet18 --stream shared")
    with pytest.raises(AssertionError):
        parse("pathspace inspekt resnet18")


def test_the_page_has_the_variable_of_the_data_folder() -> None:
    assert f"| `{data.VARIABLE}` |" in PAGE


# Exit codes --------------------------------------------------------------------------------------


def meaning(code: int) -> str:
    (found,) = re.findall(rf"^\| {code} \| (.+) \|$", PAGE, re.MULTILINE)
    return found


def test_exit_code_0(invoke: Invoke) -> None:
    assert "diverged" in meaning(0)
    wild = ("--data", "digits", "--lr", "1e30", "--epochs", "1", "--quiet")
    result = invoke("train", "mlp:64-8-10", *wild)
    assert (result.exit_code, "diverged" in result.stdout) == (0, True), result.output


def test_exit_code_1(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be done" in meaning(1)
    for arguments in (("inspect", "rsnet18"), ("report", "nowhere"), ("data", "show", "mnits")):
        result = invoke(*arguments)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: ")
    assert "--self-check" in meaning(1)
    monkeypatch.setattr("pathspace.selfcheck.SelfCheck.ok", False)
    arguments = ("measure", "mlp:4-3-2", "--self-check", "--only", "path norm")
    assert invoke(*arguments).exit_code == 1


@pytest.mark.parametrize("arguments", [(), ("inspekt",), ("inspect", "--no"), ("train", "mlp:4-2")])
def test_exit_code_2(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    assert "command line is wrong, or incomplete" in meaning(2)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.output


def test_exit_code_130(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    assert "Ctrl-C" in meaning(128 + signal.SIGINT)
    assert "SIGTERM" in meaning(128 + signal.SIGTERM)  # seen in the tests of `train`
    monkeypatch.setattr("pathspace.cli.inspect.trace", interrupted)
    result = invoke("inspect", "mlp:4-3-2")
    assert (result.exit_code, result.stdout) == (128 + signal.SIGINT, "")


# Help --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_examples_in_the_help_are_real(function: Callable[..., None]) -> None:
    assert examples(function)
    for line in examples(function):
        parse(line)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", ["", *NAMES])
def test_help_is_whole(invoke: Invoke, name: str, columns: int) -> None:
    result = invoke(*name.split(), "--help", columns=columns)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in result.stdout  # no name is cut off
    assert "[/]" not in result.stdout
    assert "<bool>" not in result.stdout
    function = {one.__name__: one for one in COMMANDS}.get(name)
    if function is not None:
        # What can be copied is on lines of its own, none of them wrapped.
        wanted = [re.sub(r"\[/?\w*\]", "", line) for line in help_text(function).splitlines()]
        shown = [line.strip() for line in lines]
        commands = [line.strip().replace("\\\\", "\\") for line in wanted if line.startswith("  ")]
        assert commands
        assert all(command in shown for command in commands)


# Completion --------------------------------------------------------------------------------------


def offered(*words: str) -> list[str]:
    """What a shell offers after these words."""
    result = CliRunner().invoke(
        application(),
        [],
        prog_name="pathspace",
        env={
            "_PATHSPACE_COMPLETE": "complete_bash",
            "COMP_WORDS": shlex.join(["pathspace", *words]),
            "COMP_CWORD": str(len(words)),
        },
    )
    return result.stdout.split()


def test_shells_are_offered_names() -> None:
    assert offered("insp") == ["inspect"]
    assert offered("measure", "--skel") == ["--skeleton"]
    assert offered("inspect", "resnet1") == ["resnet18", "resnet152-imagenet"]
    assert offered("train", "mlp:4-2", "--optimizer", "g") == ["gsgd", "gadagrad", "gadam"]
    assert offered("landscape", "m", "--data", "cifar") == ["cifar10", "cifar100"]
    assert offered("data", "fetch", "mn") == ["mnist"]
    assert offered("reproduce", "yi") == ["yi2019"]
    assert "fig4" in offered("reproduce", "meng2019", "fig")
    assert offered("reproduce", "all", "--preset", "") == ["quick", "paper"]
    assert offered("cite", "") == list(WORKS)


def test_every_kind_of_name_is_offered() -> None:
    def names(offers: completion.Offers) -> list[str]:
        assert all(text for _, text in offers)
        return [name for name, _ in offers]

    assert names(completion.models("")) == [entry.name for entry in models.catalogue()]
    assert names(completion.data_sets("")) == [data.EMBEDDED, *data.SOURCES]
    assert names(completion.optimizers("")) == list(OPTIMIZERS)
    assert "unbalanced" in names(completion.initialisations("unb"))
    assert "constant" in names(completion.schedules("const"))
    assert "overfitting" in names(completion.stopping_rules("over"))
    assert "basis-path" in names(completion.penalties("basis"))
    assert "cross-entropy" in names(completion.losses("cross"))
    assert "scaling" in names(completion.benchmarks("sc"))


def test_installed_command_prints_its_completion_script() -> None:
    command = [sys.executable, "-m", "pathspace", "--show-completion", "bash"]
    variables = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "_PATHSPACE_COMPLETE=complete_bash" in result.stdout
