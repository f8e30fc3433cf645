"""Every experiment, both presets: they start, their analysis works on what comes, pages are made.

The data are a few random images in the shapes of the real ones, so that this needs no download;
trainings take two steps. Numbers mean nothing here.
"""

import re
from dataclasses import replace

import pytest
import torch

from pathspace.experiments import data
from pathspace.experiments.data import Dataset, Split
from pathspace.experiments.reproduce import find_experiments, rehearse
from pathspace.experiments.reproduce.markdown import table_text
from pathspace.experiments.training import loading
from trials import few_pairs

SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28)}
TRAIN, TEST, BATCH = 48, 24, 8


def few_images(name, *_, **__):
    """Random images of a data set's shape, with all of its labels."""
    if name == "digits":
        return real(name)
    generator = torch.Generator().manual_seed(0)
    classes, shape = data.find_source(name).classes, SHAPES.get(name, (3, 32, 32))

    def split(count):
        images = torch.randint(256, (count, *shape), generator=generator, dtype=torch.uint8)
        return Split(images, torch.arange(count) % classes)

    return Dataset(name, split(TRAIN), split(TEST), classes=classes, maximum=255)


real = data.load


def adapt(trial):
    """The trial on few images: small batches, and no numbers of images beyond what there is.

    Layers of 4,000 units are made narrower, networks of 34 layers shorter, and a grid of λ is one;
    `test_reproduce_neyshabur2017` and `test_reproduce_cifar` start full ones.
    """
    steps = []
    for step in trial.preprocess:
        kind = step.partition(":")[0]
        if kind == "validation_split":
            steps.append("validation_split:0.5")
        elif kind == "corrupt_labels":
            steps.append("corrupt_labels:0.1")
        elif kind != "subset":
            steps.append(step)
    model = re.sub(r"-4000(?=-)", "-512", trial.model)
    model = re.sub(r"^(plainnet|resnet)34$", r"\g<1>8-thin", model)
    return replace(
        trial,
        model=model.replace("plainnet34.", "plainnet8_thin."),
        preprocess=tuple(steps),
        batch=min(trial.batch, BATCH),
        options={k: 1e-4 if k == "bp_decay" else v for k, v in trial.options.items()},
        weight_decay=1e-4 if trial.weight_decay else 0.0,
        penalties=tuple(text.partition(":")[0] + ":1e-4" for text in trial.penalties),
    )


@pytest.fixture
def few_data(monkeypatch):
    monkeypatch.setattr(data, "load", few_images)
    monkeypatch.setattr(data, "load_movielens", lambda *_, **__: few_pairs())
    loading._dataset.cache_clear()
    loading._interactions.cache_clear()
    yield
    loading._dataset.cache_clear()
    loading._interactions.cache_clear()


@pytest.mark.parametrize(
    ("experiment", "preset"),
    [
        pytest.param(one, preset, id=f"{one.slug}-{preset}")
        for one in find_experiments()
        for preset in one.presets
    ],
)
def test_rehearsal(experiment, preset, few_data):
    stated = experiment.preset(preset)
    found = rehearse(experiment, preset, adapt=adapt)
    assert found.jobs <= stated.jobs <= 2 * found.jobs  # fewer if a best rate is the common one
    findings = found.findings
    assert findings.claims
    assert findings.statements
    assert findings.deviations
    names = [figure.name for figure in findings.figures]
    assert len(set(names)) == len(names)
    for figure in findings.figures:
        assert figure.render("png").startswith(b"\x89PNG")
        assert figure.alt
        assert figure.caption
    for table in (findings.table(), *(block.table for block in findings.tables)):
        assert table_text(table)
    assert stated.time
