"""Settings that every test process needs."""

import os
import signal
import tempfile

import hypothesis
import torch

# Several test processes on a small machine: torch's own default of one thread per core makes both slower.
torch.set_num_threads(1)

# Started in the background by a script we would ignore it, and so would whatever we start to interrupt it.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.redis_server", "tests.running_alone", "tests.forked", "tests.fleets"]

# Workers keep there what they measured at start. All processes of a run share it, and nobody else does.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _CACHE = tempfile.TemporaryDirectory(prefix="baton-cache-")
    os.environ["XDG_CACHE_HOME"] = _CACHE.name

# A shared machine pauses at odd moments: slowness is the per-test timeout's business, not an example's. The
# examples are the same in every run, so a change is judged by what it changes; `make explore` takes others.
_SETTINGS = hypothesis.settings(
    deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("house", _SETTINGS, derandomize=True)
hypothesis.settings.register_profile("explore", _SETTINGS)
hypothesis.settings.load_profile("house")
