"""Packed boolean matrices."""

import pytest
import torch

from candidly.tensors import bits
from candidly.tensors.bits import Bits


@pytest.mark.parametrize("width", [1, 7, 8, 9, 10, 100])
def test_rows_come_out_as_they_went_in(width, monkeypatch):
    monkeypatch.setattr(bits, "PACKED_TOGETHER", 3 * width)  # several blocks
    dense = torch.rand(50, width, generator=torch.Generator().manual_seed(width)) < 0.5
    packed = Bits(dense)
    assert packed.packed.nbytes == 50 * -(-width // 8)
    assert len(packed) == 50
    assert packed.shape == (50, width)
    assert torch.equal(packed[:], dense)
    assert torch.equal(packed[10:20], dense[10:20])
    index = torch.tensor([3, 3, 49, 0])
    assert torch.equal(packed[index], dense[index])
    assert packed[10:10].shape == (0, width)


def test_bits_by_hand():
    assert Bits(torch.tensor([[True, False, True], [False, False, False]])).packed.tolist() == [
        [5],
        [0],
    ]
