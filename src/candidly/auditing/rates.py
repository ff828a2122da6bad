"""How many rows have the truth outside their candidates, and how many belong to no known class?

The answer rests on four assumptions; the first two are checked:

1. given its size and its truth, a set is drawn blindly: wrong candidates do not follow the model's
   ranking;
2. the sizes of known rows' sets do not depend on their outputs;
3. a known row is closed with a probability that does not depend on its outputs;
4. open rows are more frequent among doubtful rows than among certain ones.

Then the outside share is identified by how often sets hold labels that the model finds unlikely,
and its split by how that depends on the doubt (`auditing.mixture`). Where 1. fails there are bounds
instead of an interval; where 2. fails, sizes do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from candidly.auditing.evidence import (
    POWERS,
    Observed,
    Outputs,
    Reference,
    make_reference,
    observe,
)
from candidly.auditing.mixture import (
    Mixture,
    design,
    explain,
    fit_mixture,
    shares,
    sizes_mislead,
    standard_errors,
    support,
)
from candidly.kinds import Rates

SAMPLE = 5000  # rows that the mixture is fitted to: the cost does not grow with the data
FEW = 100  # rows below which shares mean little
PRIOR_ROWS = 10  # normal rows that are added in thought when there are few
INTERVAL_FACTOR = 1.5  # of the interval over its sampling error: models err, the mixture too
MODEL_ERROR = 0.015  # added to both ends; chosen for 90 % coverage in benchmarks/audit_rates.py
NORMAL_90 = 1.645
MENTION_OPEN = 0.05  # weight of open rows above which notes speak of them
RANKING_LIMIT = 3.5  # standard errors by which wrong candidates may follow the model's ranking

Interval = tuple[float, float]


@dataclass(frozen=True)
class RatesEstimate:
    """Estimated shares of **all** rows, with 90 % intervals.

    Attributes
    ----------
    closed, open, outside : float
        Shares of closed rows, of open rows, and of both together.
    closed_interval, open_interval, outside_interval : tuple of float
        Their 90 % intervals, (low, high).
    notes : tuple of str
        Sentences that say what is assumed, and where the data cannot tell.
    process : str
        The process by which sets are assumed to arise; see `candidly.auditing.processes`.
    reliable : bool
        False if the model knows no more than chance: then nothing follows from its outputs.

    Examples
    --------
    >>> found = RatesEstimate(0.1, 0.02, 0.12, (0.08, 0.12), (0.0, 0.05), (0.09, 0.15))
    >>> found.rates
    Rates(closed=0.1, open=0.02)
    >>> print(found)
    closed: 10.0% (8.0% to 12.0%)
    open: 2.0% (0.0% to 5.0%)
    outside: 12.0% (9.0% to 15.0%)
    """

    closed: float
    open: float
    outside: float
    closed_interval: Interval
    open_interval: Interval
    outside_interval: Interval
    notes: tuple[str, ...] = ()
    process: str = "blind"
    reliable: bool = True

    @property
    def rates(self) -> Rates:
        """The point estimate as `Rates`."""
        return Rates(self.closed, self.open)

    def __str__(self) -> str:
        shown = {
            name: _percent(getattr(self, name), getattr(self, f"{name}_interval"))
            for name in ("closed", "open", "outside")
        }
        return "\n".join([*(f"{name}: {text}" for name, text in shown.items()), *self.notes])


class Study(NamedTuple):
    """An estimate, and what it was made from.

    Attributes
    ----------
    estimate : RatesEstimate
    mixture, without : Mixture
        Fitted with and without open rows.
    weight : float
        Probability of the first, against the second.
    reference : Reference or None
        Rows that others are compared with, if there are features.
    seen : Observed
        Numbers of the sampled rows.
    """

    estimate: RatesEstimate
    mixture: Mixture
    without: Mixture
    weight: float
    reference: Reference | None
    seen: Observed


def study(outputs: Outputs) -> Study:
    """Fit the mixture to a sample of rows, with and without open rows, and weigh the two.

    Parameters
    ----------
    outputs : Outputs
        Candidate sets and a model's outputs.

    Returns
    -------
    Study
    """
    rows = sample(len(outputs))
    c = outputs.sets.n_classes
    reference = make_reference(outputs, rows)
    seen = observe(outputs, rows, reference)
    full = fit_mixture(seen, c)
    without = fit_mixture(seen, c, with_open=False)
    weight = _weight_of_open(full, without, seen, c)
    if weight > MENTION_OPEN and sizes_mislead(full, without, seen):
        full = fit_mixture(seen, c, with_sizes=False)
        weight = _weight_of_open(full, without, seen, c)
    estimate = _estimate([full, without], weight, seen, c)
    return Study(estimate, full, without, weight, reference, seen)


def sample(n: int, most: int | None = None) -> NDArray[np.int64]:
    """Draw at most `most` rows, the same ones each time, in order.

    Parameters
    ----------
    n : int
        Number of rows to draw from.
    most : int, optional
        SAMPLE by default.

    Returns
    -------
    int array of shape (min(n, most),)

    Examples
    --------
    >>> sample(3)
    array([0, 1, 2])
    """
    most = SAMPLE if most is None else most
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, most, replace=False))


def _weight_of_open(full: Mixture, without: Mixture, seen: Observed, c: int) -> float:
    """How much more likely open rows are than none, by the Bayesian information criterion.

    As the interval is INTERVAL_FACTOR times its sampling error, differences of the log likelihood
    count for less.
    """
    if (seen.sizes == c).all():
        return 0.0
    penalty = 0.5 * len(full.accuracy) * np.log(len(seen.sizes))
    return float(expit((full.fit - without.fit - penalty) / INTERVAL_FACTOR**2))


def _estimate(fits: list[Mixture], weight: float, seen: Observed, c: int) -> RatesEstimate:
    found = [shares(fit, seen) for fit in fits]
    points = np.array([(s[1], s[2], s[1] + s[2]) for s in found])  # (2, 3): closed, open, outside
    errors = np.array([standard_errors(fit, seen) for fit in fits])
    reach = MODEL_ERROR + NORMAL_90 * INTERVAL_FACTOR * errors
    point = weight * points[0] + (1 - weight) * points[1]
    by_sizes_alone = fits[0].size_odds is not None and support(fits[0], fits[1], seen) < 0
    # Open rows are possible, but may explain too little: then the fit without them counts too.
    believed = slice(0, 1 if weight > 0.99 and not by_sizes_alone else 2)
    low = (points - reach)[believed].min(axis=0)
    high = (points + reach)[believed].max(axis=0)
    excess = ranking_excess(fits[0], seen)
    if excess > RANKING_LIMIT:
        low = np.zeros(3)
        high = np.maximum(high, best_misses(seen, c))
    if (n := len(seen.sizes)) < FEW:
        point = point * n / (n + PRIOR_ROWS)
        low, high = np.zeros(3), np.ones(3)
    if (seen.sizes == c).all():
        low, high = np.zeros(3), np.array([0.0, 1.0, 1.0])
    low = np.clip(np.minimum(low, point), 0, 1)
    high = np.clip(np.maximum(high, point), 0, 1)
    intervals = [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
    closed, open_ = (float(x) for x in np.clip(point[:2], 0, 1))
    outside = min(closed + open_, 1.0)
    sizeless = fits[0].size_odds is None
    chance = chance_note(seen, c)
    notes = (*_notes(points, weight, by_sizes_alone, sizeless, excess), *_warnings(seen, c))
    return RatesEstimate(
        closed,
        open_,
        outside,
        intervals[0],
        intervals[1],
        intervals[2],
        notes if chance is None else (chance,),  # the other notes name shares
        reliable=chance is None,
    )


def _notes(
    points: NDArray[np.float64],
    weight: float,
    by_sizes_alone: bool,
    sizeless: bool,
    excess: float,
) -> Iterator[str]:
    """Say where an assumption fails or the data cannot tell."""
    if MENTION_OPEN < weight <= 0.99:
        yield (
            "The data cannot tell open rows from hard rows of known classes: with open rows "
            f"({weight:.0%} likely) the shares are {points[0, 0]:.3f} closed and "
            f"{points[0, 1]:.3f} open, without {points[1, 0]:.3f} closed."
        )
    if weight > MENTION_OPEN and by_sizes_alone:
        yield (
            "Only the sizes of sets say that rows are open: if sets are wider or narrower in "
            f"doubtful rows for another reason, the shares are {points[1, 0]:.3f} closed and none "
            "open."
        )
    if sizeless:
        yield (
            "Sets are wider or narrower where the model is doubtful, and not because these rows "
            "are open: sizes do not count as evidence, and the data say less of open rows."
        )
    if excess > RANKING_LIMIT:
        yield (
            f"Wrong candidates follow the model's ranking ({excess:.0f} standard errors), as those "
            "of people do: a set says less about its row than assumed. The intervals are bounds; "
            "the shares may be far too small."
        )


def _warnings(seen: Observed, c: int) -> Iterator[str]:
    """Say where the rows themselves tell little."""
    yield from few_note(len(seen.sizes))
    if (seen.sizes == c).all():
        yield (
            "Every set holds every class: none can be wrong, and none says anything about open "
            "rows."
        )


def few_note(n: int) -> Iterator[str]:
    """Say if rows are too few to estimate shares from.

    Parameters
    ----------
    n : int
        Number of rows.

    Yields
    ------
    str
    """
    if n < FEW:
        yield f"{n} rows are too few to estimate shares from: expected at least {FEW}."


def chance_note(seen: Observed, c: int) -> str | None:
    """Warn if the model's best class is a candidate no more often than any class would be.

    Parameters
    ----------
    seen : Observed
    c : int
        Number of classes.

    Returns
    -------
    str or None
    """
    n = len(seen.sizes)
    hit = seen.hit.mean()
    chance = seen.sizes.mean() / c
    if n < FEW or chance > 0.9 or hit > chance + NORMAL_90 * np.sqrt(chance * (1 - chance) / n):
        return None
    return (
        f"The model's best class is a candidate in {hit:.0%} of the rows; any class would be in "
        f"{chance:.0%}: are its columns in the order of the classes, and its rows in that of the "
        "sets?"
    )


def ranking_excess(mixture: Mixture, seen: Observed) -> float:
    """Measure by how many standard errors wrong candidates follow the model's ranking.

    Where the best class is the truth and a candidate, the others are wrong candidates: drawn
    blindly, they hold as much of the remaining probability as their number says.

    Parameters
    ----------
    mixture : Mixture
    seen : Observed
        The rows that it was fitted to.

    Returns
    -------
    float
        Around 0 if they are drawn blindly; positive if they follow the ranking.
    """
    X = design(mixture, seen.scores)
    joint, a, covered = explain(mixture, seen, X, seen.rest[mixture.power])
    normal = joint[0] / joint.sum(axis=0)
    right = normal * a * seen.hit / np.maximum(covered, 1e-12)
    excess = right * (seen.rest[POWERS.index(1.0)] - seen.chance)
    return float(excess.sum() / max(np.sqrt((excess**2).sum()), 1e-12))


def best_misses(seen: Observed, c: int) -> NDArray[np.float64]:
    """Bound (closed, open, outside) from above: every set without the model's best class is wrong.

    An open row's set holds that class by chance, once in c/s: as many more are hidden.

    Parameters
    ----------
    seen : Observed
    c : int
        Number of classes.

    Returns
    -------
    array of shape (3,)
    """
    miss = 1 - seen.hit
    most = miss.mean() + NORMAL_90 * miss.std() / np.sqrt(len(miss)) + MODEL_ERROR
    hidden = most / max(1 - seen.sizes.mean() / c, 1e-12)
    return np.minimum([most, hidden, hidden], 1)


def _percent(value: float, interval: Interval) -> str:
    return f"{value:.1%} ({interval[0]:.1%} to {interval[1]:.1%})"
