"""Shared by all tests: quiet, reproducible hypothesis, and one torch thread per worker."""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile(
    "candidly", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("candidly")


@pytest.fixture
def float64():
    """Double precision by default, for as long as the test lasts."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
