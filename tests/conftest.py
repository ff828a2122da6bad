"""Shared by all tests: reproducible hypothesis, one torch thread per worker, and Ctrl-C."""

import os
import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's background job ignores Ctrl-C, and so would the programs that tests start and stop.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile(
    "candidly", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fixed", settings.get_profile("candidly"), derandomize=True)
# With CANDIDLY_SEEDED, --hypothesis-seed decides the examples.
settings.load_profile("candidly" if "CANDIDLY_SEEDED" in os.environ else "fixed")


@pytest.fixture
def float64():
    """Double precision by default, for as long as the test lasts."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
