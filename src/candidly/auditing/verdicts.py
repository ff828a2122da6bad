"""Which rows have the truth outside their candidates, what is it, and which belong to no class?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from candidly.auditing.census import Census, rows_of
from candidly.auditing.choice import make_study, several_answers
from candidly.auditing.evidence import (
    POWERS,
    Observed,
    Outputs,
    few_threads,
    observe,
    power_of,
    read_outputs,
)
from candidly.auditing.mixture import Mixture, blend, design, explain
from candidly.auditing.posterior import Block, blocks, probabilities
from candidly.auditing.rates import FEW, PRIOR_ROWS, RatesEstimate, Study
from candidly.auditing.shares import kinds_of
from candidly.errors import InputError
from candidly.kinds import KINDS, Rates

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.floating[Any]]

LEAST = 1e-12  # probability of any kind that a row can be: rounding rules none out
MAX_ODDS = 1e15  # of a kind against the others
MIN_SHARE = 1e-3  # of the known rows for each kind, before given rates change the shares


def audit(
    candidates: Any = None,
    probs: Any = None,
    *,
    logits: Any = None,
    features: Any = None,
    answers: Any = None,
    gold: Any = None,
    process: str = "auto",
    rates: str | Rates | RatesEstimate = "auto",
    ids: Any = None,
) -> pd.DataFrame:
    """Judge every row from a model's outputs for rows that it was not trained on.

    Parameters
    ----------
    candidates : CandidateSets or whatever makes one
        The candidate labels of n rows over c classes.
    probs, logits : array of shape (n, c)
        The model's outputs, one of the two; out-of-fold outputs, for instance. Arrays, tensors,
        DataFrames with a column per class, or memory maps, which are read in blocks.
    features : array of shape (n, d), optional
        Embeddings, for instance. Neighbours are evidence of open rows.
    answers : Answers, or whatever makes one, optional
        What each annotator said; `candidates` may then be left out.
    gold : sequence of length n, optional
        Labels that are certain, "none of the classes", and None where nothing is.
    process : str, default="auto"
        How sets arise: "blind", "confusion", "annotators", "union" or "inclusion" (see
        `candidly.auditing.processes`); "auto" chooses by likelihood.
    rates : "auto", Rates or RatesEstimate
        Shares of closed and open rows to expect; "auto" estimates them (see `estimate_rates`).
    ids : sequence of length n, optional
        Names of the rows; 0 to n - 1 by default.

    Returns
    -------
    pandas.DataFrame
        One row per example:

        - ``id``
        - ``verdict``: "normal", "closed" (the truth is another class) or "open" (no known
          class), whichever is most likely
        - ``p_outside``: that the truth is outside the candidates; sort by it
        - ``p_normal``, ``p_closed``, ``p_open``: probabilities that sum to 1
        - ``suggested_label``: the best candidate of a normal row, the best other class of a
          closed one, missing where the verdict is "open"
        - ``suggested_probability``: that the suggestion is right
        - ``consensus_label``: the most likely truth of all classes; missing where it is none
        - ``consensus_probability``
        - ``majority_label``: the label with most votes, if there are answers
        - ``inside_loss``, ``outside_loss``: -log p of the best candidate and of the best other
          class

        If the model knows no more than chance, verdicts, probabilities and suggestions are
        missing. ``attrs["notes"]`` says why, what is assumed, and where the data cannot tell;
        ``attrs["process"]`` how sets are assumed to arise.

    See Also
    --------
    Audit : The same with the estimate and the fitted mixture.

    Notes
    -----
    A set of all classes is never closed. If `rates` asks for more closed rows than there are other
    sets, all of these are closed, and sets of all classes are normal or open in the proportion of
    `rates`; with ``Rates(1, 0)``, which leaves them nothing to be, they are normal.

    Examples
    --------
    >>> import numpy as np
    >>> import candidly
    >>> y = np.arange(500) % 5
    >>> sets, truth = candidly.corrupt(y, 5, q=0.2, tau1=0.1, seed=0)  # 50 lose their true label
    >>> noise = np.random.default_rng(0).normal(size=(500, 5))
    >>> table = candidly.audit(sets, logits=6 * np.eye(5)[truth.labels] + noise)
    >>> wrong = table[table["verdict"] == "closed"]
    >>> len(wrong), (wrong["suggested_label"] == truth.labels[wrong["id"]]).all().item()
    (50, True)
    """
    return Audit(
        candidates,
        probs,
        logits=logits,
        features=features,
        answers=answers,
        gold=gold,
        process=process,
        rates=rates,
        ids=ids,
    ).table


def estimate_rates(
    candidates: Any = None,
    probs: Any = None,
    *,
    logits: Any = None,
    features: Any = None,
    answers: Any = None,
    gold: Any = None,
    process: str = "auto",
) -> RatesEstimate:
    """Estimate the shares of closed and open rows from a model's outputs.

    Parameters
    ----------
    candidates : CandidateSets or whatever makes one
        The candidate labels of n rows over c classes.
    probs, logits : array of shape (n, c)
        The model's outputs for rows that it was not trained on, one of the two. Logits allow
        energy as a sign of open rows.
    features : array of shape (n, d), optional
        Embeddings, for instance. They allow neighbours as a sign of open rows.
    answers : Answers, or whatever makes one, optional
        What each annotator said; `candidates` may then be left out.
    gold : sequence of length n, optional
        Labels that are certain, "none of the classes", and None where nothing is.
    process : str, default="auto"
        How sets arise: "blind", "confusion", "annotators", "union" or "inclusion" (see
        `candidly.auditing.processes`); "auto" chooses by likelihood.

    Returns
    -------
    RatesEstimate

    Examples
    --------
    >>> import numpy as np
    >>> import candidly
    >>> probs = np.tile([[0.98, 0.01, 0.01], [0.01, 0.98, 0.01]], (100, 1))
    >>> found = candidly.estimate_rates([["a"], ["b", "c"]] * 99 + [["a"], ["c"]], probs)
    >>> found.outside_interval[0] < 1 / 200 < found.outside_interval[1]
    True
    """
    outputs = read_outputs(candidates, probs, logits, features, answers, gold)
    with few_threads(outputs):
        return make_study(outputs, process).estimate


class Audit:
    """A model's outputs, the mixtures fitted to them, and a verdict on each row.

    Each part is computed once, when it is first used. The parameters are those of `audit`.

    Attributes
    ----------
    outputs : Outputs
        The candidate sets with the model's outputs, checked.
    study : Study or Census
        The fitted explanation of the sets.
    estimate : RatesEstimate
        Estimated shares of closed and open rows, with intervals.
    table : pandas.DataFrame
        What `audit` returns.

    Examples
    --------
    >>> import numpy as np
    >>> import candidly
    >>> sets, truth = candidly.corrupt(np.arange(500) % 5, 5, q=0.2, tau1=0.1, seed=0)
    >>> noise = np.random.default_rng(0).normal(size=(500, 5))
    >>> audit = candidly.Audit(sets, logits=6 * np.eye(5)[truth.labels] + noise)
    >>> audit.table["verdict"].value_counts().to_dict()
    {'normal': 450, 'closed': 50, 'open': 0}
    >>> round(audit.estimate.closed, 2)
    0.1
    """

    def __init__(
        self,
        candidates: Any = None,
        probs: Any = None,
        *,
        logits: Any = None,
        features: Any = None,
        answers: Any = None,
        gold: Any = None,
        process: str = "auto",
        rates: str | Rates | RatesEstimate = "auto",
        ids: Any = None,
    ) -> None:
        self.outputs = read_outputs(candidates, probs, logits, features, answers, gold)
        self.process = process
        self.ids = _names(ids, len(self.outputs))
        self.rates = _check_rates(rates)

    @cached_property
    def study(self) -> Study | Census:
        """The fitted process; fitted when first used."""
        with few_threads(self.outputs):
            return make_study(self.outputs, self.process)

    @property
    def estimate(self) -> RatesEstimate:
        """Estimated shares of closed and open rows, with intervals."""
        return self.study.estimate

    @cached_property
    def judged(self) -> Judged:
        """The probabilities behind the table; computed when first used."""
        with few_threads(self.outputs):
            if isinstance(self.study, Census):
                judged = judge_census(self.outputs, self.study, self.rates)
            else:
                judges = make_judges(self.study, self.rates)
                judged = _judge_all(self.outputs, self.study, judges, self._raw_weight)
        return _settled(judged, self.outputs)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per example, as `audit` returns it; computed when first used."""
        several = several_answers(self.outputs)
        table = _table(self.outputs, self.ids, self.judged, self.estimate.reliable, several)
        table.attrs["notes"] = list(self.estimate.notes)
        table.attrs["process"] = self.estimate.process
        return table

    def blocks(self) -> Iterator[Block]:
        """Iterate over all rows in order, with the probability of each class to be the truth.

        Yields
        ------
        Block
            Consecutive rows.
        """
        if not isinstance(self.study, Census):
            for block in blocks(self.outputs, self.judged.kinds):
                yield _with_gold(block, self.outputs.gold)
            return
        odds = _census_odds(self.study, self.rates)
        for rows in self.outputs.blocks():
            mask = self.outputs.sets.dense(rows)
            seen = observe(self.outputs, rows, self.study.reference, (1.0,))
            truth = _truth(self.outputs, self.study, rows, seen, mask, odds)
            yield Block(rows, mask, probabilities(self.outputs, rows), truth[:, :-1])

    @property
    def _raw_weight(self) -> float:
        """How much the model's own probabilities count: something, where rows are few."""
        n = len(self.outputs)
        return PRIOR_ROWS / (n + PRIOR_ROWS) if n < FEW and self.rates is None else 0.0


def truth_posterior(
    candidates: Any = None,
    probs: Any = None,
    *,
    logits: Any = None,
    features: Any = None,
    answers: Any = None,
    gold: Any = None,
    process: str = "auto",
) -> Floats:
    """Compute how likely each class is to be the truth of each row.

    Parameters
    ----------
    candidates : CandidateSets, Answers, or whatever makes candidate sets
        The candidate labels of n rows over c classes.
    probs, logits : array of shape (n, c)
        The model's outputs for rows that it was not trained on, one of the two.
    features : array of shape (n, d), optional
        Neighbours are evidence of open rows.
    answers : Answers, or whatever makes one, optional
        What each annotator said; `candidates` may then be left out.
    gold : sequence of length n, optional
        Labels that are certain, "none of the classes", and None where nothing is.
    process : str, default="auto"
        How sets arise: "blind", "confusion", "annotators", "union" or "inclusion" (see
        `candidly.auditing.processes`); "auto" chooses by likelihood.

    Returns
    -------
    array of shape (n, c + 1)
        The last column is "none of the classes"; rows sum to 1.

    Examples
    --------
    >>> import candidly
    >>> answers = candidly.Answers([["a", "a", "b"], ["b", "b", "b"]] * 100)
    >>> truth = truth_posterior(answers, [[0.8, 0.2], [0.1, 0.9]] * 100)
    >>> truth.shape, truth[:2].argmax(axis=1).tolist()
    ((200, 3), [0, 1])
    """
    found = Audit(
        candidates,
        probs,
        logits=logits,
        features=features,
        answers=answers,
        gold=gold,
        process=process,
    )
    known = np.concatenate([block.posterior for block in found.blocks()])
    return np.concatenate([known, np.maximum(1 - known.sum(axis=1, keepdims=True), 0)], axis=1)


class Judged(NamedTuple):
    """What is known of n rows.

    Attributes
    ----------
    kinds : array of shape (n, 3)
        Probabilities of normal, closed and open.
    suggestion : array of shape (n, 2)
        The suggested class, and the probability that it is right.
    consensus : array of shape (n, 2)
        The most likely truth, c for none of the classes, and its probability.
    losses : array of shape (n, 2)
        -log p of the best candidate and of the best other class.
    """

    kinds: Floats
    suggestion: Floats
    consensus: Floats
    losses: Floats


def judge_census(outputs: Outputs, census: Census, rates: Rates | None) -> Judged:
    """Judge all rows by a fitted process.

    Parameters
    ----------
    outputs : Outputs
    census : Census
    rates : Rates, optional
        Shares to expect; the estimated ones by default.

    Returns
    -------
    Judged
    """
    n = len(outputs)
    kinds = np.empty((n, 3))
    suggestion = np.empty((n, 2))
    consensus = np.empty((n, 2))
    losses = np.empty((n, 2), dtype=np.float32)
    odds = _census_odds(census, rates)
    for rows in outputs.blocks():
        mask = outputs.sets.dense(rows)
        seen = observe(outputs, rows, census.reference, (1.0,))
        truth = _truth(outputs, census, rows, seen, mask, odds)
        kinds[rows] = kinds_of(truth, mask)
        suggestion[rows] = _suggested(truth, mask, kinds[rows])
        open_to = np.full_like(truth, True, dtype=bool)
        if not census.overrules:
            open_to[:, :-1] = mask
        best = np.where(open_to, truth, -1.0).argmax(axis=1)
        consensus[rows] = np.stack([best, truth[np.arange(len(best)), best]], axis=1)
        losses[rows] = _losses(seen)
    return Judged(kinds, suggestion, consensus, losses)


def _truth(
    outputs: Outputs,
    census: Census,
    rows: Any,
    seen: Observed,
    mask: NDArray[np.bool_],
    odds: Floats | None,
) -> Floats:
    """(b, c + 1) posterior of the truth, with the given shares if any are."""
    truth = census.posterior(rows_of(outputs, rows, seen))
    if odds is None:
        return truth
    factors = np.where(mask, odds[0], odds[1])
    factors = np.concatenate([factors, np.full((len(mask), 1), odds[2])], axis=1)
    weighted = np.maximum(truth, LEAST) * factors
    impossible = weighted.sum(axis=1) == 0  # the odds leave nothing that these rows can be
    weighted[impossible, :-1] = mask[impossible]
    return weighted / weighted.sum(axis=1, keepdims=True)


def _census_odds(census: Census, rates: Rates | None) -> Floats | None:
    """Factors of the kinds that give the sampled rows the wanted shares."""
    if rates is None:
        return None
    mask = census.rows.evidence.sets.dense()
    joint = kinds_of(census.posterior(census.rows), mask).T
    least = np.full_like(joint, LEAST)
    least[1, mask.all(axis=1)] = 0  # a full set is never closed
    return odds_for(np.maximum(joint, least), rates)


def _suggested(truth: Floats, mask: NDArray[np.bool_], kinds: Floats) -> Floats:
    """The best candidate of a row that is rather normal, the best other class of the others."""
    stays = kinds[:, 0] >= kinds[:, 1]
    allowed = np.where(stays[:, None], mask, ~mask)
    label = np.where(allowed, truth[:, :-1], -1.0).argmax(axis=1)
    return np.stack([label, truth[np.arange(len(label)), label]], axis=1)


def _with_gold(block: Block, gold: NDArray[np.int64] | None) -> Block:
    """Make the posterior of rows whose truth is certain one-hot."""
    if gold is None:
        return block
    truth = gold[block.rows]
    certain = np.flatnonzero(truth >= -1)
    block.posterior[certain] = 0
    known = certain[truth[certain] >= 0]
    block.posterior[known, truth[known]] = 1
    return block


def _settled(judged: Judged, outputs: Outputs) -> Judged:
    """Replace the judgement of rows whose truth is certain."""
    if outputs.gold is None:
        return judged
    rows = np.flatnonzero(outputs.gold >= -1)
    truth = outputs.gold[rows]
    inside = outputs.sets[rows].contains(truth)
    kind = np.where(truth < 0, 2, np.where(inside, 0, 1))
    judged.kinds[rows] = np.eye(3)[kind]
    label = np.where(truth < 0, outputs.sets.n_classes, truth)
    judged.consensus[rows] = np.stack([label, np.ones(len(rows))], axis=1)
    known = rows[truth >= 0]
    judged.suggestion[known] = np.stack([truth[truth >= 0], np.ones(len(known))], axis=1)
    return judged


def _check_rates(rates: Any) -> Rates | None:
    """The given shares; None if they are to be estimated."""
    if isinstance(rates, str) and rates == "auto":
        return None
    rates = rates.rates if isinstance(rates, RatesEstimate) else rates
    if not isinstance(rates, Rates):
        raise InputError(
            f'rates={rates!r}: expected "auto", Rates(closed, open), or what estimate_rates() '
            "returned."
        )
    return rates


def _judge_all(outputs: Outputs, found: Study, judges: list[Judge], raw_weight: float) -> Judged:
    """Judge all rows by mixtures of blind sets."""
    n = len(outputs)
    all_seen = n == len(found.seen.sizes)  # the study looked at every row
    powers = tuple(sorted({POWERS[judge.mixture.power] for judge in judges}))
    powers = POWERS if all_seen else powers
    post = np.empty((n, 3))
    suggestion = np.empty((n, 2))
    consensus = np.empty((n, 2))
    losses = np.empty((n, 2), dtype=np.float32)
    scratch = None if all_seen else outputs.scratch()
    for block in [slice(0, n)] if all_seen else outputs.blocks():
        seen = found.seen if all_seen else observe(outputs, block, found.reference, powers, scratch)
        opinion = _shared_opinion(judges, seen, powers, raw_weight)
        post[block], suggestion[block] = _verdict(opinion, seen)
        consensus[block] = _consensus(opinion, seen, outputs.sets.n_classes)
        losses[block] = _losses(seen)
    return Judged(post, suggestion, consensus, losses)


def _consensus(opinion: Floats, seen: Observed, c: int) -> Floats:
    """(n, 2): the best candidate, the best other class or none (c), and its probability."""
    right = np.stack([opinion[3], opinion[4], opinion[2]])
    best = right.argmax(axis=0)
    labels = np.stack([seen.label_in, seen.label_out, np.full(len(best), c)])
    at = np.arange(len(best))
    return np.stack([labels[best, at], right[best, at]], axis=1)


class Judge(NamedTuple):
    """A mixture with its weight among the judges.

    Attributes
    ----------
    mixture : Mixture
    weight : float
        Not negative; `judge_rows` divides it by the sum over the judges.
    odds : array of shape (3,)
        Factors of normal, closed and open that give the kinds the wanted shares.
    """

    mixture: Mixture
    weight: float
    odds: Floats


def make_judges(found: Study, rates: Rates | None = None) -> list[Judge]:
    """Make the judges of a study.

    Parameters
    ----------
    found : Study
    rates : Rates, optional
        Shares to expect. By default the estimated ones count.

    Returns
    -------
    list of Judge
        Without `rates` the mixtures with and without open rows, by their weights (the first alone
        if it is almost certain); with `rates` the one mixture that can have them.
    """
    if rates is None:
        judges = [
            Judge(found.mixture, found.weight, np.ones(3)),
            Judge(found.without, 1 - found.weight, np.ones(3)),
        ]
        return judges[:1] if found.weight > 0.999 else judges
    mixture = found.mixture if rates.open > 0 else found.without
    mixture = replace(mixture, closed=float(np.clip(mixture.closed, MIN_SHARE, 1 - MIN_SHARE)))
    return [Judge(mixture, 1.0, _odds(mixture, found.seen, rates))]


def judge_rows(
    judges: list[Judge], seen: Observed, powers: tuple[float, ...], raw_weight: float = 0.0
) -> tuple[Floats, Floats]:
    """Judge rows: their kinds, and the class that each probably belongs to.

    Parameters
    ----------
    judges : list of Judge
    seen : Observed
        Numbers of n rows.
    powers : tuple of float
        The powers that `seen` was computed with; those of the judges are among them.
    raw_weight : float, default=0
        Weight of the model's raw probabilities: mixtures fitted to few rows are not to be trusted
        alone.

    Returns
    -------
    kinds : array of shape (n, 3)
        Probabilities of normal, closed and open.
    suggestion : array of shape (n, 2)
        The suggested class and its probability: the best candidate of a row that is rather
        normal, the best other class of one that is rather closed.
    """
    return _verdict(_shared_opinion(judges, seen, powers, raw_weight), seen)


def _shared_opinion(
    judges: list[Judge], seen: Observed, powers: tuple[float, ...], raw_weight: float
) -> Floats:
    """(5, n), as `_opinion`: the mean over the judges."""
    X = design(judges[0].mixture, seen.scores)  # the knots of all judges are the same
    total = sum(judge.weight for judge in judges)
    parts = [
        judge.weight / total * _opinion(judge, seen, X, powers.index(POWERS[judge.mixture.power]))
        for judge in judges
    ]
    opinion = np.sum(parts, axis=0) if len(parts) > 1 else parts[0]
    if raw_weight:
        opinion = (1 - raw_weight) * opinion + raw_weight * _raw_opinion(seen)
    return opinion


def _verdict(opinion: Floats, seen: Observed) -> tuple[Floats, Floats]:
    """(n, 3) probabilities of the kinds, and (n, 2) suggestion with its probability."""
    normal, closed, open_, right_in, right_out = opinion
    stays = normal >= closed
    label = np.where(stays, seen.label_in, seen.label_out)
    right = np.where(stays, right_in, right_out)
    return np.stack([normal, closed, open_], axis=1), np.stack([label, right], axis=1)


def _opinion(judge: Judge, seen: Observed, X: Floats, k: int) -> Floats:
    """(5, n): P(normal), P(closed), P(open), P(truth = best candidate), P(truth = best other)."""
    mixture = judge.mixture
    spread = seen.spread[k]
    joint, a, covered = explain(mixture, seen, X, seen.rest[k])
    normal, closed, open_ = _kinds(_possible(mixture, seen, joint), judge.odds)
    best = np.maximum(seen.best_in, seen.best_out)
    lesser = np.minimum(seen.best_in, seen.best_out)
    with np.errstate(invalid="ignore", divide="ignore"):
        second = power_of(lesser, POWERS[mixture.power]) / spread
    evenly = 1 / (mixture.n_classes - 1)
    second = (1 - a) * blend(np.where(spread > 0, second, evenly), evenly, mixture.floor)
    p_in = np.where(seen.best_in >= best, a, second)
    p_out = np.where(seen.best_out >= best, a, second)
    right_in = normal * np.minimum(p_in / np.maximum(covered, 1e-12), 1)
    right_out = closed * np.minimum(p_out / np.maximum(1 - covered, 1e-12), 1)
    return np.stack([normal, closed, open_, right_in, right_out])


def _raw_opinion(seen: Observed) -> Floats:
    """As `_opinion`, from the best candidate and the best other class alone."""
    normal = seen.best_in / (seen.best_in + seen.best_out)
    return np.stack([normal, 1 - normal, np.zeros_like(normal), normal, 1 - normal])


def _possible(mixture: Mixture, seen: Observed, joint: Floats) -> Floats:
    """`joint`, at least LEAST for every kind that a row can be: a full set is never closed."""
    is_partial = seen.sizes < mixture.n_classes
    with_open = np.full(len(is_partial), mixture.open_weights is not None)
    can_be = np.stack([np.ones_like(is_partial), is_partial, with_open])
    return np.maximum(joint, can_be * joint.dtype.type(LEAST))


def _kinds(joint: Floats, odds: Floats) -> Floats:
    """(3, n) probabilities of the kinds; normal, where the odds leave nothing that a row can be."""
    weighted = joint * odds[:, None].astype(joint.dtype)
    weighted[0, weighted.sum(axis=0) == 0] = 1
    return weighted / weighted.sum(axis=0)


def _odds(mixture: Mixture, seen: Observed, rates: Rates) -> Floats:
    """(3,) factors of the three kinds that give the sampled rows the wanted shares on average.

    If too few rows can be closed, the factor of closed grows to MAX_ODDS, and those of normal and
    open approach the proportion of `rates`.
    """
    joint, _, _ = explain(mixture, seen, design(mixture, seen.scores), seen.rest[mixture.power])
    return odds_for(_possible(mixture, seen, joint), rates)


def odds_for(joint: Floats, rates: Rates) -> Floats:
    """Find factors of the three kinds that give rows the wanted shares on average.

    Parameters
    ----------
    joint : array of shape (3, n)
        Probabilities of the kinds, up to a factor per row.
    rates : Rates

    Returns
    -------
    array of shape (3,)
    """
    wanted = np.array([max(1 - rates.closed - rates.open, 0.0), rates.closed, rates.open])
    odds = np.ones(3)
    for _ in range(200):
        now = _kinds(joint, odds).mean(axis=1)
        odds *= wanted / np.maximum(now, LEAST)
        if (others := odds[0] + odds[2]) > 0:
            odds /= others
        odds = np.minimum(odds, MAX_ODDS)
        if np.abs(now - wanted).max() < 1e-4:
            break
    return odds


def _losses(seen: Observed) -> Floats:
    """(n, 2): -log p of the best candidate, and of the best other class."""
    best = np.stack([seen.best_in, seen.best_out], axis=1)
    with np.errstate(divide="ignore"):
        return seen.doubt[:, None] - np.log(best)


def _names(ids: Any, n: int) -> Any:
    if ids is None:
        return np.arange(n)
    names = np.asarray(ids)
    if names.shape != (n,):
        raise InputError(f"ids has shape {names.shape}: expected one for each of {n} rows.")
    return names


def _table(
    outputs: Outputs, names: Any, judged: Judged, reliable: bool, several: bool
) -> pd.DataFrame:
    import pandas as pd

    post = judged.kinds / judged.kinds.sum(axis=1, keepdims=True)  # in double precision
    c = outputs.sets.n_classes
    verdict = post.argmax(axis=1)
    is_open = verdict == 2
    labels = np.where(is_open, -1, judged.suggestion[:, 0]).astype(np.int64)
    right = np.where(is_open, post[:, 2], judged.suggestion[:, 1])
    consensus = judged.consensus[:, 0].astype(np.int64)
    agreed = judged.consensus[:, 1]
    if not reliable:
        verdict = labels = np.full(len(post), -1)
        post = np.full_like(post, np.nan)
        right = np.full(len(post), np.nan)
        if not several:
            consensus, agreed = labels, right
    classes = pd.Index(outputs.sets.classes.tolist())

    def named(codes: NDArray[np.int64]) -> pd.Categorical:
        return pd.Categorical.from_codes(np.where(codes < c, codes, -1), categories=classes)

    columns = {
        "id": names,
        "verdict": pd.Categorical.from_codes(verdict, categories=pd.Index(KINDS)),
        "p_outside": np.clip(1 - post[:, 0], 0, 1),
        **{f"p_{kind}": post[:, k] for k, kind in enumerate(KINDS)},
        "suggested_label": named(labels),
        "suggested_probability": right,
        "consensus_label": named(consensus),
        "consensus_probability": agreed,
        **(
            {} if outputs.answers is None else {"majority_label": named(outputs.answers.majority())}
        ),
        "inside_loss": judged.losses[:, 0],
        "outside_loss": judged.losses[:, 1],
    }
    return pd.DataFrame(columns, copy=False)
