"""Imports point one way: downwards, through the layers that the architecture page draws."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

PATH = Path(__file__).parents[1] / "docs" / "layers.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("layers", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


layers = load()
IMPORTS = layers.imports()


def test_every_module_has_a_layer_and_every_part_a_module() -> None:
    parts = {layers.part_of(module) for module in layers.modules()}
    named = [part for layer in layers.LAYERS for part in layer.parts]
    assert sorted(parts) == sorted(named)


def test_imports_point_downwards() -> None:
    assert layers.upward(IMPORTS) == []


def test_no_parts_import_each_other() -> None:
    assert layers.circle(IMPORTS) == []


def test_imports_are_found(tmp_path: Path) -> None:
    package = tmp_path / "house"
    package.mkdir()
    (package / "__init__.py").write_text("from house.roof import tiles\n")
    (package / "cellar.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "import torch\n"
        "from house import __version__\n"
        "if TYPE_CHECKING:\n    from house import roof\n"
        "def open():\n    import house.door\n"
    )
    (package / "roof.py").write_text("from house import cellar, tiles\n")
    (package / "door.py").write_text("")
    assert layers.imports(package) == {
        ("house", "house.roof"),
        ("house.cellar", "house.door"),
        ("house.roof", "house.cellar"),
        ("house.roof", "house"),
    }


def test_upward_imports_and_circles_are_noticed() -> None:
    wrong = ("pathspace.network", "pathspace.cli.train")
    assert layers.upward({*IMPORTS, wrong}) == [
        "pathspace.network imports pathspace.cli.train, which is above it"
    ]
    assert "network" in layers.circle({*IMPORTS, wrong})
    with pytest.raises(LookupError, match="is in no layer"):
        layers.part_of("pathspace.unheard")


def test_picture_and_lists_have_every_part() -> None:
    picture = layers.picture(IMPORTS)
    texts = [node.text for node in ElementTree.fromstring(picture).iter() if node.text]
    lists = layers.lists(IMPORTS)
    for layer in layers.LAYERS:
        assert layer.title in texts
        for part in layer.parts:
            assert part.removeprefix("experiments.") in texts
            assert f"\n`{part}`\n: " in lists
    assert 'class="arc"' in picture
    assert 'class="arc up"' not in picture
    assert 'class="arc up"' in layers.picture({("pathspace.network", "pathspace.cli")})
