"""Settings for all tests."""

from importlib.util import find_spec

import torch

# The networks of the tests are tiny: threads would only wait for each other.
torch.set_num_threads(1)

# The driver of `make mutate` needs what the extra `mutation` brings; its tests say so.
collect_ignore_glob = [] if find_spec("mutmut") else ["mutation/*.py"]
