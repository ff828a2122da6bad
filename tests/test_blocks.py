"""Blocks of rows: they cover every row once, in order, and stay small."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from candidly.blocks import row_blocks


def test_blocks_by_hand():
    assert list(row_blocks(5, 10, 20)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert list(row_blocks(3, 20, 12)) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert list(row_blocks(0, 7)) == [slice(0, 0)]


@given(n=st.integers(1, 200), width=st.integers(1, 50), entries=st.integers(1, 300))
def test_blocks_cover_every_row_once_and_are_small(n, width, entries):
    blocks = list(row_blocks(n, width, entries))
    assert np.concatenate([np.arange(n)[block] for block in blocks]).tolist() == list(range(n))
    assert all(b.stop - b.start <= max(1, entries // width) for b in blocks)


def test_the_default_can_be_changed(monkeypatch):
    monkeypatch.setattr("candidly.blocks.ENTRIES", 6)
    assert [b.stop - b.start for b in row_blocks(7, 2)] == [3, 3, 1]
    assert list(row_blocks(4, 1)) == [slice(0, 4)]


@pytest.mark.parametrize("width", [0, 1])
def test_an_array_without_columns_is_one_block(width):
    assert list(row_blocks(3, width)) == [slice(0, 3)]
