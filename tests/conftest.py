"""Settings for all tests."""

from collections import defaultdict
from importlib.util import find_spec

import pytest
import torch

# The networks of the tests are tiny: threads would only wait for each other.
torch.set_num_threads(1)

# The driver of `make mutate` needs what the extra `mutation` brings; its tests say so.
collect_ignore_glob = [] if find_spec("mutmut") else ["mutation/*.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--few",
        type=int,
        metavar="N",
        help="at most N cases of every test: a look at another version of something",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep N cases of every test, evenly apart."""
    most = config.getoption("--few")
    if most is None:
        return
    tests = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    kept = {
        cases[k * len(cases) // min(most, len(cases))]
        for cases in tests.values()
        for k in range(min(most, len(cases)))
    }
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
