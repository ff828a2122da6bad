"""Memory that a training keeps between its steps, and gives back at its end."""

from pathlib import Path

import numpy as np
import pytest

from candidly.cli import heap


def resident():
    """Megabytes of this process."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(heap.glibc() is None, reason="needs glibc")
def test_freed_memory_is_kept_and_then_given_back():
    with heap.keeping_freed_memory():
        blocks = [np.ones(20 << 20, dtype=np.uint8) for _ in range(5)]
        full = resident()
        del blocks
        assert resident() > full - 10
    assert resident() < full - 80


@pytest.mark.skipif(heap.glibc() is None, reason="needs glibc")
def test_what_fails_inside_gives_memory_back_too():
    with pytest.raises(ZeroDivisionError), heap.keeping_freed_memory():
        blocks = [np.ones(20 << 20, dtype=np.uint8) for _ in range(5)]
        full = resident()
        del blocks
        raise ZeroDivisionError
    assert resident() < full - 80


def test_nothing_happens_without_glibc(monkeypatch):
    monkeypatch.setattr(heap, "glibc", lambda: None)
    with heap.keeping_freed_memory():
        done = True
    assert done
