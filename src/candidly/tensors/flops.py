"""Arithmetic of a training, by torch's own counter: measured on the first batch of each kind of pass, then added up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils.flop_counter import FlopCounterMode


class FlopMeter:
    """`total` floating-point operations so far; a multiplication and an addition count as two."""

    def __init__(self) -> None:
        self.total = 0.0
        self.each: dict[str, float] = {}  # per example, by kind of pass

    @contextmanager
    def counting(self, kind: str, examples: int) -> Iterator[None]:
        """Count a pass over some examples: by the counter the first time, by proportion afterwards."""
        if kind in self.each or not examples:
            yield
        else:
            with FlopCounterMode(display=False) as counter:
                yield
            self.each[kind] = counter.get_total_flops() / examples
        self.total += self.each.get(kind, 0.0) * examples
