"""Which examples are normal, closed-set and open-set: rates, rankings, and the ensemble that steadies them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from candidly.blocks import row_blocks
from candidly.checks import as_numpy, number, whole
from candidly.errors import InputError
from candidly.kinds import Rates, Selection
from candidly.scores import LOSSES, Array, doubt, energy, log_softmax, margin, surprise

LARGE = 1 << 23  # entries for which compiled loops are worth half a second of compilation
SAMPLE = 1 << 14  # values that tell roughly where a ranking is cut
OPEN_SCORES = ("surprise", "doubt", "energy")


def select(margin: Array, open_scores: Array, rates: Rates, *, overlap: bool = False) -> Selection:
    """Divide the examples by their scores, Eq. (1) with sizes from `rates`.

    `overlap=False`: a partition: first the open ones by the largest `open_scores`, then the closed ones among the rest by
    the smallest `margin`. `overlap=True`, as in the authors' program: three independent rankings, so that open examples
    overlap the others and some are in no set. Of equal rows the earlier are normal, the later closed; the earlier open.
    """
    _refuse_nan(margin, "margin")
    _refuse_nan(open_scores, "open_scores")
    n = margin.shape[0]
    n_closed, n_open = rates.counts(n)
    is_open = _largest(open_scores, n_open)
    if overlap:
        return Selection(
            _largest(margin, n - n_closed - n_open), ~_largest(margin, n - n_closed), is_open
        )
    is_closed = ~(_largest(margin, n - n_open - n_closed, ~is_open) | is_open)
    return Selection(~(is_open | is_closed), is_closed, is_open)


def score(
    logits: Array, candidates: Array, losses: str = "wooden", open_score: str = "surprise"
) -> tuple[Array, Array]:
    """(margin, open score) of each example from logits, by the chosen losses (`LOSSES`) and score (`OPEN_SCORES`)."""
    return score_blocks(lambda rows: (logits[rows], candidates[rows]), logits, losses, open_score)


def score_blocks(
    block: Callable[[slice], tuple[Array, Array]], like: Array, losses: str, open_score: str
) -> tuple[Array, Array]:
    """The same of logits and candidates that `block` gives for a slice of rows; in all they are as many as `like`."""
    xp, sides, each = array_namespace(like), _sides, map
    if losses == "wooden" and _suits_loops(like):
        sides, each = _sides_by_loops, _loops().in_threads
    found = xp.empty(
        (3, len(like)), dtype=xp.result_type(like.dtype, xp.float32), device=device(like)
    )

    def work(
        rows: slice,
    ) -> None:  # small results that wait for each other would keep memory between them in use
        for kind, values in enumerate(sides(*block(rows), losses, open_score)):
            found[kind, rows] = values

    list(each(work, row_blocks(*like.shape)))
    inside, outside, other = found
    open_scores = surprise(inside, outside) if open_score == "surprise" else other
    return margin(inside, outside), open_scores


def _sides(
    logits: Array, candidates: Array, losses: str, open_score: str
) -> tuple[Array, Array, Array]:
    """(inside, outside, energy or doubt); the lesser of two wooden losses is that of the best class of all."""
    xp, log_probs = array_namespace(logits, candidates), log_softmax(logits)
    inside, outside = LOSSES[losses](log_probs, candidates)
    if open_score == "energy":
        return inside, outside, energy(logits)
    return inside, outside, xp.minimum(inside, outside) if losses == "wooden" else doubt(log_probs)


def _sides_by_loops(
    logits: Array, candidates: Array, losses: str, open_score: str
) -> tuple[Array, Array, Array]:
    """The same with wooden losses; the loops are written for single precision."""
    if logits.dtype.itemsize != 4:
        return _sides(logits, candidates, losses, open_score)
    inside, outside, energies = _loops().wooden_losses(logits, candidates)
    return inside, outside, energies if open_score == "energy" else inside.minimum(outside)


def _suits_loops(logits: Array) -> bool:
    """Whether there are enough of them, the loops could take them, and can be had."""
    many = hasattr(logits, "log_softmax") and logits.numel() >= LARGE and not logits.requires_grad
    return many and logits.device.type == "cpu" and _loops() is not None


@lru_cache(maxsize=1)
def _loops() -> Any:
    """Module `fused`; None without numba."""
    try:
        from candidly import fused
    except ModuleNotFoundError:
        return None
    except Exception as error:  # such as a NumPy that is too new for it
        warnings.warn(
            f"numba is installed, but cannot be imported; it goes without, slower: {error}",
            stacklevel=2,
        )
        return None
    return fused


@dataclass(frozen=True)
class MovingEnsemble:
    """f-bar of Section 4.1: the mean of the last `window` (phi) warm-up outputs, then moved by `momentum` (eta).

    Frozen, as in the authors' program: eta * warm-up mean + (1 - eta) * output. Recursive, as in the paper's text:
    the result takes the place of the mean. The object holds no arrays: its owner keeps `average`.
    """

    window: int = 5
    momentum: float = 0.9
    recursive: bool = False

    def __post_init__(self) -> None:
        whole(self.window, "window", 1)
        number(self.momentum, "momentum", 0, 1)

    def warm(self, average: Array, output: Array, epoch: int, warmup: int) -> Array:
        """The mean with the output after `epoch` (1, 2, ...) of `warmup` epochs; outputs before the window leave it."""
        seen = epoch - max(0, warmup - self.window)
        return (
            average if seen <= 0 else output if seen == 1 else average + (output - average) / seen
        )

    def update(self, average: Array, output: Array) -> tuple[Array, Array]:
        """(average, ensemble output) of a main epoch."""
        ensemble, share = self.momentum * average, 1 - self.momentum
        ensemble = (
            ensemble.add_(output, alpha=share)
            if hasattr(ensemble, "add_")
            else ensemble + share * output
        )
        return (ensemble if self.recursive else average), ensemble


def _largest(values: Array, count: int, among: Array | None = None) -> Array:
    """Mask of the `count` largest values, ties to the earlier row; `among` admits rows that may be taken."""
    xp: Any = array_namespace(values)
    admitted = (
        xp.ones(values.shape[0], dtype=xp.bool, device=device(values)) if among is None else among
    )
    if count == 0:
        return ~admitted & admitted
    least = _kth_largest(values if among is None else xp.where(among, values, -math.inf), count)
    taken = admitted & (values >= least)
    if xp.count_nonzero(taken) == count:
        return taken
    above = admitted & (values > least)
    equal, wanted = taken & ~above, count - xp.count_nonzero(above)
    return above | (equal & (xp.cumulative_sum(xp.astype(equal, xp.int64)) <= wanted))


def _kth_largest(values: Array, k: int) -> Array:
    """In linear time, unlike a sort."""
    at = values.shape[0] - k
    if str(device(values)) != "cpu":
        return values.kthvalue(at + 1).values
    return float(_at_rank(as_numpy(values), at))


def _at_rank(values: np.ndarray, at: int) -> Any:
    """What would stand at this place if the values were sorted.

    Two values of a sample enclose it nearly always, and few others with it: most of the time is saved.
    """
    step = len(values) // SAMPLE
    if step > 1:
        sample, reach = (
            np.sort(values[::step]),
            2 * math.isqrt(SAMPLE),
        )  # four standard deviations of a rank
        low, high = sample[[max(at // step - reach, 0), min(at // step + reach, len(sample) - 1)]]
        below, between = np.count_nonzero(values < low), values[(values >= low) & (values <= high)]
        if below <= at < below + len(between):
            return np.partition(between, at - below)[at - below]
    return np.partition(values, at)[at]


def _refuse_nan(values: Array, name: str) -> None:
    xp: Any = array_namespace(values)
    bad = xp.isnan(values)
    if xp.any(bad):
        row = int(xp.nonzero(bad)[0][0])
        raise InputError(
            f"{name} of row {row} is NaN: the model's outputs must be numbers. Did training diverge?"
        )
