"""The package as it is installed: what it needs, which version it says it is, how it starts."""

import ast
import importlib.util
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distribution, version
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pathspace

SRC = Path(__file__).parents[1] / "src"

Run = Callable[[str], subprocess.CompletedProcess[str]]


def closure(name: str) -> set[str]:
    """The distribution and all it requires here, without extras."""
    seen: set[str] = set()
    pending = [name]
    while pending:
        name = canonicalize_name(pending.pop())
        if name in seen:
            continue
        seen.add(name)
        for line in distribution(name).requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return seen


def link_distribution(name: str, target: Path) -> None:
    """Link the top-level packages, modules and metadata of a distribution into `target`."""
    installed = distribution(name)
    for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
        link = target / top
        if not link.exists():  # a namespace package belongs to several distributions
            link.symlink_to(Path(str(installed.locate_file(top))))


@pytest.fixture(scope="module")
def run_with_torch_only(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run code in a fresh interpreter that sees the standard library, torch and our source."""
    packages = tmp_path_factory.mktemp("torch_only")
    for name in closure("torch"):
        link_distribution(name, packages)

    def run(code: str) -> subprocess.CompletedProcess[str]:
        path = f"import sys; sys.path += {[str(packages), str(SRC)]}\n"
        # -I: no environment, no user site; -S: no site-packages, so no virtual environment.
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", path + code],
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_core_needs_torch_only(run_with_torch_only: Run) -> None:
    # Every public name is touched, because some may be imported only when asked for.
    result = run_with_torch_only(
        "import pathspace\n"
        "for name in pathspace.__all__:\n"
        "    getattr(pathspace, name)\n"
        "print(pathspace.__file__)"
    )
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()) == SRC / "pathspace" / "__init__.py"


@pytest.mark.parametrize("module", ["typer", "rich", "matplotlib", "safetensors", "numpy"])
def test_torch_only_interpreter_lacks_the_extras(run_with_torch_only: Run, module: str) -> None:
    # Without this, the test above could pass because everything is importable everywhere.
    assert importlib.util.find_spec(module) is not None
    result = run_with_torch_only(f"import {module}")
    assert result.returncode != 0
    assert f"No module named '{module}'" in result.stderr


def test_type_checkers_see_the_names_that_are_there() -> None:
    stub = ast.parse((SRC / "pathspace" / "__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names}
    (names,) = [
        ast.literal_eval(node.value)
        for node in stub.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert names == pathspace.__all__ == sorted(homes)
    for name, home in homes.items():
        assert getattr(pathspace, name) is getattr(importlib.import_module(str(home)), name)


def test_no_public_name_is_also_a_module() -> None:
    # Importing the module would put it in the place of the function.
    modules = {module.name for module in pkgutil.iter_modules(pathspace.__path__)}
    both = {name for name in pathspace.__all__ if name in modules}
    assert both == {name for name in both if isinstance(getattr(pathspace, name), ModuleType)}
    assert both >= {"optim", "bounds"}


def test_names_are_listed_and_unknown_ones_refused() -> None:
    assert set(pathspace.__all__) <= set(dir(pathspace))
    with pytest.raises(AttributeError, match="has no attribute 'path_norn'"):
        pathspace.path_norn  # noqa: B018
    code = "import pathspace; pathspace.path_norn"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Did you mean: 'path_norm'?" in told.stderr


def test_metadata_version_is_the_packages() -> None:
    assert version("pathspace") == pathspace.__version__, "metadata is stale: install again"


def test_module_shows_help() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pathspace", "--help"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "usage" in result.stdout.lower()
    assert "inspect" in result.stdout


def test_what_commands_leave_is_not_spelled(tmp_path: Path) -> None:
    """``make test`` passes after ``make demo``, whose page has pictures that look like words."""
    codespell = Path(sys.executable).with_name("codespell")
    if not codespell.exists():
        pytest.skip("codespell is not installed; `pip install -e '.[dev]'` brings it")
    shutil.copy(SRC.parent / "pyproject.toml", tmp_path)
    wrong = "rec" + "ieve"  # in two parts, or this file would be found
    for name in ("pathspace-demo/report.html", "reproductions/report.html", "a/landscape.html"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(wrong)
    assert subprocess.run([codespell], cwd=tmp_path, check=False).returncode == 0
    (tmp_path / "notes.md").write_text(wrong)
    assert subprocess.run([codespell], cwd=tmp_path, check=False).returncode != 0
