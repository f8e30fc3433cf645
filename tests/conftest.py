"""Settings for all tests."""

import torch

# The networks of the tests are tiny: threads would only wait for each other.
torch.set_num_threads(1)
