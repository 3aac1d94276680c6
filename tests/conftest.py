"""What every test process needs, whichever package it tests."""

import hypothesis
import torch

# Two test processes on a small machine: torch's own default of one thread per core makes both slower.
torch.set_num_threads(1)

pytest_plugins = ["tests.redis_server", "tests.running_alone"]

# A shared machine pauses at odd moments: slowness is the per-test timeout's business, not an example's.
hypothesis.settings.register_profile("house", deadline=None, print_blob=True)
hypothesis.settings.load_profile("house")
