"""The arithmetic of a training, by torch's own counter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils.flop_counter import FlopCounterMode


class FlopMeter:
    """A count of floating-point operations; a multiplication and an addition count as two.

    The first pass of each kind is measured; later ones are added in proportion to their examples.

    Attributes
    ----------
    total : float
        Operations so far.
    each : dict
        Operations per example, by kind of pass.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self.each: dict[str, float] = {}

    @contextmanager
    def counting(self, kind: str, examples: int) -> Iterator[None]:
        """Count a pass over some examples, inside a `with` block."""
        if kind in self.each or not examples:
            yield
        else:
            with FlopCounterMode(display=False) as counter:
                yield
            self.each[kind] = counter.get_total_flops() / examples
        self.total += self.each.get(kind, 0.0) * examples
