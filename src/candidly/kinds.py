"""The three kinds of examples: their shares, a selection of them, and the truth about them."""

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
    """Shares of closed and open examples among **all** examples.

    Parameters
    ----------
    closed, open : float
        At least 0, and at most 1 together.

    Examples
    --------
    >>> Rates.from_tau(0.2, 0.25)
    Rates(closed=0.16, open=0.2)
    """

    closed: float
    open: float

    def __post_init__(self) -> None:
        number(self.closed, "closed")
        number(self.open, "open")
        if not (self.closed >= 0 and self.open >= 0 and self.closed + self.open <= 1 + 1e-12):
            raise InputError(
                f"Rates(closed={self.closed}, open={self.open}): both are shares of all examples; "
                "they must be at least 0 and at most 1 together. From the paper's tau1 and tau2, "
                "use Rates.from_tau(tau1, tau2)."
            )

    @classmethod
    def from_tau(cls, tau1: float, tau2: float) -> Rates:
        """Convert the paper's tau1 and tau2, which count examples per known example.

        Parameters
        ----------
        tau1 : float
            Closed share of the known examples.
        tau2 : float
            Number of open examples added per known example.

        Returns
        -------
        Rates
        """
        number(tau1, "tau1", 0, 1)
        number(tau2, "tau2", 0)
        return cls(closed=tau1 / (1 + tau2), open=tau2 / (1 + tau2))

    def counts(self, n: int) -> tuple[int, int]:
        """Count the closed and open ones among n examples, rounded half up, at most n together.

        Parameters
        ----------
        n : int

        Returns
        -------
        closed, open : int

        Examples
        --------
        >>> Rates(0.25, 0.1).counts(10)
        (3, 1)
        """
        n_open = min(n, math.floor(self.open * n + 0.5))
        return min(n - n_open, math.floor(self.closed * n + 0.5)), n_open


class Selection(NamedTuple):
    """Masks of the normal, closed and open examples: D_N, D_C and D_O of the paper.

    Attributes
    ----------
    normal, closed, open : bool array or tensor of shape (n,)

    Examples
    --------
    >>> Selection(np.array([True, False]), np.array([False, True]), np.zeros(2, bool)).normal
    array([ True, False])
    """

    normal: Any
    closed: Any
    open: Any


@dataclass(frozen=True, eq=False)
class Truth:
    """The truth about n corrupted examples. For evaluation only, apart from the training data.

    Attributes
    ----------
    labels : array of shape (n,)
        True class indices; -1 for open examples.
    kinds : array of shape (n,)
        NORMAL: the truth is in the set; CLOSED: it is another known class; OPEN: it is none.
    source : array of shape (n,)
        Where each example came from: ``X = np.concatenate([known, auxiliary])[source]``.
    manifest : dict
        How the data were made, and what came out; JSON-serialisable.

    Examples
    --------
    >>> from candidly import corrupt
    >>> _, truth = corrupt([0, 1, 2, 0], 3, q=0.2, tau2=0.5, seed=0)
    >>> (truth.kinds == OPEN).sum().item(), truth.labels[truth.kinds == OPEN].tolist()
    (2, [-1, -1])
    """

    labels: NDArray[np.int64]
    kinds: NDArray[np.uint8]
    source: NDArray[np.int64]
    manifest: dict[str, Any]
