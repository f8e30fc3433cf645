"""What the README shows is what its commands give: the table and the picture."""

import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from pathspace.cli.application import application

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", "")
COMMANDS = re.findall(r"^\$ pathspace ((?:train|measure) .*moves.*)$", README, re.MULTILINE)
ROWS = re.findall(r"^\| (.+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", README, re.MULTILINE)


def run(line: str, *more: str) -> Any:
    words = [str(next(Path().glob(word))) if "*" in word else word for word in shlex.split(line)]
    result = CliRunner().invoke(application(), [*words, *more, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_table_is_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train, measure = COMMANDS
    run(train, "--quiet")
    changes = {row["name"]: row for row in run(measure)["self_check"]["rows"]}
    assert len(ROWS) == 11
    for name, before, after, factor in ROWS:
        found = changes[name]
        assert float(before) == pytest.approx(found["before"], rel=1e-3), name
        assert float(after) == pytest.approx(found["after"], rel=1e-3), name
        assert (factor != "1") == found["moved"], name
        assert float(factor) == pytest.approx(found["after"] / found["before"], rel=0.05), name


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "one_function", ROOT / "docs" / "images" / "one_function.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_what_its_script_draws(script: ModuleType) -> None:
    found = script.curves()
    drawn, kept = script.draw(found), script.PICTURE.read_text(encoding="utf-8")
    number = re.compile(r"\d+(?:\.\d+)?")
    assert number.sub("#", drawn) == number.sub("#", kept)
    # Rounding differs between machines; half a pixel does not show.
    for one, other in zip(number.findall(drawn), number.findall(kept), strict=True):
        assert float(one) == pytest.approx(float(other), abs=0.5)
    # What the picture says in words.
    assert script.apart(found["sgd"]).startswith("up to 0.")
    assert script.apart(found["pathsgd"]) == script.apart(found["gsgd"]) == "less than 1e-9 apart"
