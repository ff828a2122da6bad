"""Selection: divide the examples into normal, closed-set and open-set ones by their scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from candidly.blocks import row_blocks
from candidly.checks import as_numpy, number, whole
from candidly.errors import InputError
from candidly.kinds import Rates, Selection
from candidly.scores import LOSSES, OPEN_SCORES, Array, Scored, log_softmax, margin

# Values sampled to find roughly where a ranking is cut
SAMPLE = 1 << 14


def select(margin: Array, open_scores: Array, rates: Rates, *, overlap: bool = False) -> Selection:
    """Divide the examples by their scores, in groups whose sizes come from `rates`.

    Parameters
    ----------
    margin : array (n,)
        Small for closed-set examples.
    open_scores : array (n,)
        Large for open-set examples.
    rates : Rates
        The shares of closed-set and open-set examples.
    overlap : bool
        False makes a partition: first the open-set examples, those with the largest open scores;
        then the closed-set ones, those with the smallest margins among the rest. True makes three
        independent rankings, as the authors' program does: open-set examples overlap the other
        groups, and some examples are in no group.

    Returns
    -------
    Selection
        Three boolean masks (n,). Of examples with equal margins the earlier ones are normal and the
        later ones closed-set; of those with equal open scores the earlier ones are open-set.

    Raises
    ------
    InputError
        If a score is NaN.

    References
    ----------
    He, Feng and Yang (KDD 2023), Eq. (1).

    Examples
    --------
    >>> import numpy as np
    >>> margin = np.array([3.0, -2.0, 1.0, -5.0, 0.5])
    >>> open_scores = np.array([0.1, 0.2, 9.0, 8.0, 0.0])
    >>> selection = select(margin, open_scores, Rates(closed=0.2, open=0.4))
    >>> selection.open
    array([False, False,  True,  True, False])
    >>> selection.closed
    array([False,  True, False, False, False])
    """
    _refuse_nan(margin, "margin")
    _refuse_nan(open_scores, "open score")
    n = margin.shape[0]
    n_closed, n_open = rates.counts(n)
    n_normal = n - n_closed - n_open
    is_open = _largest(open_scores, n_open)
    if overlap:
        return Selection(_largest(margin, n_normal), ~_largest(margin, n - n_closed), is_open)
    is_closed = ~(_largest(margin, n_normal, ~is_open) | is_open)
    return Selection(~(is_open | is_closed), is_closed, is_open)


def score(
    logits: Array, candidates: Array, losses: str = "wooden", open_score: str = "surprise"
) -> tuple[Array, Array]:
    """Compute the margin and the open score of each example.

    Parameters
    ----------
    logits : array (n, c)
    candidates : bool array (n, c)
    losses : str
        A name of `candidly.scores.LOSSES`.
    open_score : str
        A name of `candidly.scores.OPEN_SCORES`.

    Returns
    -------
    margin, open_scores : arrays (n,)
        The arguments of `select`.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.log(np.array([[0.5, 0.25, 0.25]]))
    >>> margin, open_scores = score(logits, np.array([[True, False, False]]))
    >>> margin.round(4), open_scores.round(4)
    (array([0.6931]), array([2.0794]))
    """
    return score_blocks(lambda rows: (logits[rows], candidates[rows]), logits, losses, open_score)


def score_blocks(
    block: Callable[[slice], tuple[Array, Array]], like: Array, losses: str, open_score: str
) -> tuple[Array, Array]:
    """Compute what `score` does, of logits and candidates that are made in blocks of rows.

    Parameters
    ----------
    block : function
        Maps a slice of rows to the (logits, candidates) of these rows.
    like : array (n, c)
        Has the shape, the device and the least precision of all logits together.
    losses, open_score : str
        Names of `LOSSES` and `OPEN_SCORES`.

    Returns
    -------
    margin, open_scores : arrays (n,)
    """
    xp = array_namespace(like)
    dtype = xp.result_type(like.dtype, xp.float32)
    # Made once: the results of single blocks would keep the memory between them in use.
    found = xp.empty((2, len(like)), dtype=dtype, device=device(like))
    for rows in row_blocks(*like.shape):
        logits, candidates = block(rows)
        log_probs = log_softmax(logits)
        sides = LOSSES[losses](log_probs, candidates)
        inside, outside = (xp.astype(side, dtype, copy=False) for side in sides)
        outputs = Scored(logits, log_probs, candidates, inside, outside)
        found[0, rows] = margin(inside, outside)
        found[1, rows] = OPEN_SCORES[open_score](outputs)
    return found[0], found[1]


@dataclass(frozen=True)
class MovingEnsemble:
    """The moving average of a model's outputs over the epochs, f-bar of the paper's Section 4.1.

    It starts as the mean of the last outputs of the warm-up. The object holds no arrays: its owner
    stores the average.

    Parameters
    ----------
    window : int
        Number of outputs in the mean (phi of the paper).
    momentum : float
        Weight of the average (eta of the paper), from 0 to 1.
    recursive : bool
        False keeps the mean of the warm-up, as the authors' program does: each ensemble output is
        eta * mean + (1 - eta) * output. True replaces the mean by that result, as in the paper's
        text.

    Examples
    --------
    >>> import numpy as np
    >>> ensemble = MovingEnsemble(window=2, momentum=0.75)
    >>> average = np.zeros(1)
    >>> for epoch, output in enumerate([8.0, 1.0, 3.0], start=1):
    ...     average = ensemble.warm(average, np.array([output]), epoch, warmup=3)
    >>> average
    array([2.])
    >>> ensemble.update(average, np.array([6.0]))
    (array([2.]), array([3.]))
    """

    window: int = 5
    momentum: float = 0.9
    recursive: bool = False

    def __post_init__(self) -> None:
        whole(self.window, "window", 1)
        number(self.momentum, "momentum", 0, 1)

    def warm(self, average: Array, output: Array, epoch: int, warmup: int) -> Array:
        """Compute the average with the output after an epoch of the warm-up.

        Parameters
        ----------
        average, output : arrays
        epoch : int
            1, 2, ..., `warmup`.
        warmup : int
            Length of the warm-up in epochs.

        Returns
        -------
        array
            The same average while the epoch is before the window.
        """
        seen = epoch - max(0, warmup - self.window)
        if seen <= 0:
            return average
        return output if seen == 1 else average + (output - average) / seen

    def update(self, average: Array, output: Array) -> tuple[Array, Array]:
        """Compute the next average, and the ensemble's output, after the warm-up.

        Parameters
        ----------
        average, output : arrays

        Returns
        -------
        average, ensemble : arrays
        """
        ensemble = self.momentum * average
        share = 1 - self.momentum
        if hasattr(ensemble, "add_"):  # torch: one pass less
            ensemble = ensemble.add_(output, alpha=share)
        else:
            ensemble = ensemble + share * output
        return (ensemble if self.recursive else average), ensemble


def keep_lowest(values: Array, removed: float) -> Array:
    """Mask all but the share `removed` of the largest values; of equal ones, the later ones stay.

    Parameters
    ----------
    values : array (n,)
    removed : float
        From 0 to 1.

    Returns
    -------
    bool array (n,)

    Raises
    ------
    InputError
        If a value is NaN.

    Examples
    --------
    >>> import numpy as np
    >>> keep_lowest(np.array([3.0, 1.0, 2.0, 5.0]), 0.5)
    array([False,  True,  True, False])
    """
    _refuse_nan(values, "loss")
    n = values.shape[0]
    return ~_largest(values, min(n, math.floor(removed * n + 0.5)))


def admission(margins: Array, outside: float) -> float:
    """Compute lambda = min(1, the quantile of max_Y s / max_{not Y} s), the weight of `admit`.

    With it, a non-candidate wins in about the share `outside` of the rows.

    Parameters
    ----------
    margins : array (n,)
        log(max_Y s / max_{not Y} s) of each row; +inf for a full set.
    outside : float
        Share of the rows whose truth is outside of their candidates.

    Returns
    -------
    float

    References
    ----------
    Xu et al. (NeurIPS 2023), ALIM.

    Examples
    --------
    >>> import numpy as np
    >>> margins = np.log(np.array([4.0, 0.25, 0.5, 2.0, np.inf]))
    >>> admission(margins, 0.0), admission(margins, 0.4), admission(margins, 0.8)
    (0.25, 1.0, 1.0)
    """
    _refuse_nan(margins, "margin")
    values = as_numpy(margins)
    at = min(len(values) - 1, math.floor(outside * len(values)))
    return min(1.0, math.exp(min(0.0, float(_at_rank(values, at)))))


def reliable_rows(
    labels: np.ndarray, scores: np.ndarray, agreeing: np.ndarray, share: float
) -> np.ndarray:
    """Mask the rows of the largest scores of each class, as many for each class if it has them.

    How many is the quantile `share` of the numbers of agreeing rows, over the classes that have
    any.

    Parameters
    ----------
    labels : integer array (n,)
        Pseudo-labels.
    scores : array (n,)
        How sure they are; of equal ones the earlier rows are taken.
    agreeing : bool array (n,)
        Whether the pseudo-label is a candidate.
    share : float
        From 0 (the class with the fewest) to 1 (with the most).

    Returns
    -------
    bool array (n,)

    References
    ----------
    Saravanan, Manwani and Gandhi (arXiv 2402.04835), selection of reliable pairs.

    Examples
    --------
    >>> import numpy as np
    >>> labels, scores = np.array([0, 0, 0, 1, 1]), np.array([0.5, 0.9, 0.7, 0.6, 0.8])
    >>> reliable_rows(labels, scores, np.array([True, True, True, False, True]), share=0.0)
    array([False,  True, False, False,  True])
    """
    counts = np.bincount(labels[agreeing])
    counts = np.sort(counts[counts > 0])
    wanted = counts[int(share * (len(counts) - 1))] if len(counts) else 0
    order = np.lexsort((-scores, labels))
    sizes = np.bincount(labels)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[order] = np.arange(len(labels)) - first < wanted
    return chosen


def _largest(values: Array, count: int, among: Array | None = None) -> Array:
    """Mask the `count` largest values, the earlier of equal ones, in the rows `among` (or all)."""
    xp: Any = array_namespace(values)
    if among is None:
        admitted = xp.ones(values.shape[0], dtype=xp.bool, device=device(values))
        ranked = values
    else:
        admitted = among
        ranked = xp.where(among, values, -math.inf)
    if count == 0:
        return ~admitted & admitted
    least = _kth_largest(ranked, count)
    taken = admitted & (values >= least)
    if xp.count_nonzero(taken) == count:
        return taken
    above = admitted & (values > least)
    equal = taken & ~above
    wanted = count - xp.count_nonzero(above)
    return above | (equal & (xp.cumulative_sum(xp.astype(equal, xp.int64)) <= wanted))


def _kth_largest(values: Array, k: int) -> Array:
    """Find the k-th largest value in linear time, unlike a sort."""
    at = values.shape[0] - k
    if str(device(values)) != "cpu":
        return values.kthvalue(at + 1).values
    return float(_at_rank(as_numpy(values), at))


def _at_rank(values: np.ndarray, at: int) -> Any:
    """Find the value at a place of the sorted values.

    Two values of a sample nearly always enclose it, and few others with it, which saves most of the
    time.
    """
    step = len(values) // SAMPLE
    if step > 1:
        sample = np.sort(values[::step])
        reach = 2 * math.isqrt(SAMPLE)  # four standard deviations of a rank
        low = sample[max(at // step - reach, 0)]
        high = sample[min(at // step + reach, len(sample) - 1)]
        below = np.count_nonzero(values < low)
        between = values[(values >= low) & (values <= high)]
        if below <= at < below + len(between):
            return np.partition(between, at - below)[at - below]
    return np.partition(values, at)[at]


def _refuse_nan(values: Array, name: str) -> None:
    xp: Any = array_namespace(values)
    bad = xp.isnan(values)
    if xp.any(bad):
        row = int(xp.nonzero(bad)[0][0])
        raise InputError(
            f"{name} of row {row} is NaN: expected outputs of the model that are numbers. "
            "Did training diverge?"
        )
