"""The three kinds of examples: how many there are of each, which are of which, and the truth about them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from candidly.checks import number
from candidly.errors import InputError

NORMAL, CLOSED, OPEN = 0, 1, 2
KINDS = ("normal", "closed", "open")


@dataclass(frozen=True)
class Rates:
    """Shares of closed-set and open-set examples among **all** examples."""

    closed: float
    open: float

    def __post_init__(self) -> None:
        number(self.closed, "closed")
        number(self.open, "open")
        if not (self.closed >= 0 and self.open >= 0 and self.closed + self.open <= 1 + 1e-12):
            raise InputError(
                f"Rates(closed={self.closed}, open={self.open}): both are shares of all examples; they must be at "
                "least 0 and at most 1 together. From the paper's tau1 and tau2, use Rates.from_tau(tau1, tau2)."
            )

    @classmethod
    def from_tau(cls, tau1: float, tau2: float) -> Rates:
        """From the paper's tau1 (closed share of the known-class examples) and tau2 (open examples added per known)."""
        number(tau1, "tau1", 0, 1)
        number(tau2, "tau2", 0)
        return cls(closed=tau1 / (1 + tau2), open=tau2 / (1 + tau2))

    def counts(self, n: int) -> tuple[int, int]:
        """How many of n examples are (closed, open), rounded half up and never more than n together."""
        n_open = min(n, math.floor(self.open * n + 0.5))
        return min(n - n_open, math.floor(self.closed * n + 0.5)), n_open


class Selection(NamedTuple):
    """Three boolean masks over the examples: D_N, D_C and D_O."""

    normal: Any
    closed: Any
    open: Any


@dataclass(frozen=True, eq=False)
class Truth:
    """What is true of n corrupted examples. For evaluation only: it travels apart from the training data."""

    labels: NDArray[np.int64]  # (n,) true class index; -1 for open examples
    kinds: NDArray[
        np.uint8
    ]  # (n,) NORMAL: truth in the set, CLOSED: in another known class, OPEN: in no known class
    source: NDArray[np.int64]  # (n,) X = concatenate([known, auxiliary])[source]
    manifest: dict[str, Any]  # how the data were made, and what came out; JSON-serialisable
