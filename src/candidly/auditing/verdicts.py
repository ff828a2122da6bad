"""Which rows have the truth outside their candidates, what is it, and which belong to no known class?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from candidly.auditing.rates import DOUBTED, FEW, RatesEstimate, Study, study
from candidly.errors import InputError
from candidly.kinds import KINDS, Rates

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.floating[Any]]

LEAST = 1e-12  # probability of any kind that a row can be: none is ruled out by rounding
MOST = 1e15  # odds of a kind against the others
NEVER = 1e-3  # least share of the known rows for each kind, before given rates change the shares


def audit(
    candidates: Any,
    probs: Any = None,
    *,
    logits: Any = None,
    features: Any = None,
    rates: str | Rates | RatesEstimate = "auto",
    ids: Any = None,
) -> pd.DataFrame:
    """A verdict on each row, from a model's outputs for rows that it was not trained on (out-of-fold, for instance).

    candidates: `CandidateSets`, or anything that makes one. probs or logits: (n, c), arrays or memory maps, read in
    blocks. features (n, d): embeddings, if there are any. rates: shares of closed and open rows to expect; "auto"
    estimates them (`estimate_rates`). ids: names of the rows; their numbers if not given.

    Columns: id; verdict: "normal", "closed" (the truth is another class) or "open" (no known class), whichever is most
    likely; p_normal, p_closed, p_open: probabilities that sum to 1; suggested_label: the best candidate of a normal
    row, the best other class of a closed one, missing where the verdict is "open"; suggested_probability: that it is
    right; inside_loss, outside_loss: -log p of the best candidate and of the best other class. `attrs["notes"]` says
    in words where the data cannot tell.

    A set of all classes is never closed. If `rates` asks for more closed rows than there are other
    sets, all of these are closed, and sets of all classes are normal or open in the proportion of
    `rates`; with `Rates(1, 0)`, which leaves them nothing to be, they are normal.
    """
    outputs = read_outputs(candidates, probs, logits, features)
    names = _names(ids, len(outputs))
    plainly = (
        DOUBTED / (len(outputs) + DOUBTED) if len(outputs) < FEW and isinstance(rates, str) else 0.0
    )
    with few_threads(outputs):
        found = study(outputs)
        table = _table(
            outputs, names, *_judge_all(outputs, found, make_judges(found, rates), plainly)
        )
    table.attrs["notes"] = list(found.estimate.notes)
    return table


def _judge_all(
    outputs: Outputs, found: Study, judges: list[Judge], plainly: float
) -> tuple[Floats, Floats, Floats]:
    """(n, 3) probabilities of the kinds, (n, 2) suggested class and its probability, (n, 2) losses."""
    n = len(outputs)
    whole = n == len(found.seen.sizes)  # all rows were looked at already
    powers = POWERS if whole else tuple(sorted({POWERS[judge.mixture.power] for judge in judges}))
    post, suggestion, losses = (
        np.empty((n, 3)),
        np.empty((n, 2)),
        np.empty((n, 2), dtype=np.float32),
    )
    scratch = None if whole else outputs.scratch()
    for block in [slice(0, n)] if whole else outputs.blocks():
        seen = found.seen if whole else observe(outputs, block, found.reference, powers, scratch)
        post[block], suggestion[block] = judge_rows(judges, seen, powers, plainly)
        losses[block] = _losses(seen)
    return post, suggestion, losses


class Judge(NamedTuple):
    """A mixture, how much its word counts, and factors of the three kinds that give the wanted shares."""

    mixture: Mixture
    weight: float
    odds: Floats


def make_judges(found: Study, rates: Any = "auto") -> list[Judge]:
    """Estimated shares: the mixtures with and without open rows, weighed. Given ones: that which can have them."""
    if isinstance(rates, str) and rates == "auto":
        judges = [
            Judge(found.mixture, found.weight, np.ones(3)),
            Judge(found.without, 1 - found.weight, np.ones(3)),
        ]
        return judges[:1] if found.weight > 0.999 else judges
    rates = rates.rates if isinstance(rates, RatesEstimate) else rates
    if not isinstance(rates, Rates):
        raise InputError(
            f'rates={rates!r}: expected "auto", Rates(closed, open), or what estimate_rates() returned.'
        )
    mixture = found.mixture if rates.open > 0 else found.without
    mixture = replace(mixture, closed=float(np.clip(mixture.closed, NEVER, 1 - NEVER)))
    return [Judge(mixture, 1.0, _odds(mixture, found.seen, rates))]


def judge_rows(
    judges: list[Judge], seen: Observed, powers: tuple[float, ...], plainly: float = 0.0
) -> tuple[Floats, Floats]:
    """((n, 3) probabilities of the kinds, (n, 2) suggested class and its probability).

    The suggestion is the best candidate of a row that is rather normal, the best other class of one rather closed.
    plainly: how much the model's own word counts, beside mixtures that were fitted to few rows.
    """
    X, total = (
        design(judges[0].mixture, seen.scores),
        sum(judge.weight for judge in judges),
    )  # the knots are the same
    where = [powers.index(POWERS[judge.mixture.power]) for judge in judges]
    parts = [
        judge.weight / total * _opinion(judge, seen, X, k)
        for judge, k in zip(judges, where, strict=True)
    ]
    opinion = np.sum(parts, axis=0) if len(parts) > 1 else parts[0]
    if plainly:
        opinion = (1 - plainly) * opinion + plainly * _plain_opinion(seen)
    normal, closed, open_, right_in, right_out = opinion
    stays = normal >= closed
    label, right = (
        np.where(stays, seen.label_in, seen.label_out),
        np.where(stays, right_in, right_out),
    )
    return np.stack([normal, closed, open_], axis=1), np.stack([label, right], axis=1)


def _opinion(judge: Judge, seen: Observed, X: Floats, k: int) -> Floats:
    """(5, n): P(normal), P(closed), P(open), P(truth is the best candidate), P(truth is the best other class)."""
    mixture, spread = judge.mixture, seen.spread[k]
    joint, a, inside = explain(mixture, seen, X, seen.rest[k])
    normal, closed, open_ = _kinds(_possible(mixture, seen, joint), judge.odds)
    best, lesser = np.maximum(seen.inside, seen.outside), np.minimum(seen.inside, seen.outside)
    with np.errstate(invalid="ignore", divide="ignore"):
        second = power_of(lesser, POWERS[mixture.power]) / spread
    evenly = 1 / (mixture.n_classes - 1)
    second = (1 - a) * blend(np.where(spread > 0, second, evenly), evenly, mixture.floor)
    p_in, p_out = (
        np.where(seen.inside >= best, a, second),
        np.where(seen.outside >= best, a, second),
    )
    right_in = normal * np.minimum(p_in / np.maximum(inside, 1e-12), 1)
    right_out = closed * np.minimum(p_out / np.maximum(1 - inside, 1e-12), 1)
    return np.stack([normal, closed, open_, right_in, right_out])


def _plain_opinion(seen: Observed) -> Floats:
    """As `_opinion`, from the best candidate and the best other class alone."""
    normal = seen.inside / (seen.inside + seen.outside)
    return np.stack([normal, 1 - normal, np.zeros_like(normal), normal, 1 - normal])


def _possible(mixture: Mixture, seen: Observed, joint: Floats) -> Floats:
    """`joint`, at least LEAST for every kind that a row can be: a full set is never closed."""
    is_partial = seen.sizes < mixture.n_classes
    with_open = np.full(len(is_partial), mixture.openness is not None)
    can_be = np.stack([np.ones_like(is_partial), is_partial, with_open])
    return np.maximum(joint, can_be * joint.dtype.type(LEAST))


def _kinds(joint: Floats, odds: Floats) -> Floats:
    """(3, n) probabilities of the kinds; normal, where the odds leave nothing that a row can be."""
    weighted = joint * odds[:, None].astype(joint.dtype)
    weighted[0, weighted.sum(axis=0) == 0] = 1
    return weighted / weighted.sum(axis=0)


def _odds(mixture: Mixture, seen: Observed, rates: Rates) -> Floats:
    """(3,) factors of the three kinds that give the sampled rows the wanted shares on average.

    If too few rows can be closed, the factor of closed grows to MOST, and those of normal and open
    settle in the proportion of `rates`.
    """
    joint, _, _ = explain(mixture, seen, design(mixture, seen.scores), seen.rest[mixture.power])
    joint = _possible(mixture, seen, joint)
    wanted = np.array([max(1 - rates.closed - rates.open, 0.0), rates.closed, rates.open])
    odds = np.ones(3)
    for _ in range(200):
        now = _kinds(joint, odds).mean(axis=1)
        odds *= wanted / np.maximum(now, LEAST)
        if (others := odds[0] + odds[2]) > 0:
            odds /= others
        odds = np.minimum(odds, MOST)
        if np.abs(now - wanted).max() < 1e-4:
            break
    return odds


def _losses(seen: Observed) -> Floats:
    with np.errstate(divide="ignore"):
        return np.stack(
            [seen.doubt - np.log(seen.inside), seen.doubt - np.log(seen.outside)], axis=1
        )


def _names(ids: Any, n: int) -> Any:
    if ids is None:
        return np.arange(n)
    names = np.asarray(ids)
    if names.shape != (n,):
        raise InputError(f"ids has shape {names.shape}: expected one for each of {n} rows.")
    return names


def _table(
    outputs: Outputs, names: Any, post: Floats, suggestion: Floats, losses: Floats
) -> pd.DataFrame:
    import pandas as pd

    post /= post.sum(axis=1, keepdims=True)  # in double precision
    verdict = post.argmax(axis=1)
    is_open = verdict == 2
    labels = np.where(is_open, -1, suggestion[:, 0]).astype(np.int64)
    columns = {
        "id": names,
        "verdict": pd.Categorical.from_codes(verdict, categories=pd.Index(KINDS)),
        **{f"p_{kind}": post[:, k] for k, kind in enumerate(KINDS)},
        "suggested_label": pd.Categorical.from_codes(
            labels, categories=pd.Index(outputs.sets.classes.tolist())
        ),
        "suggested_probability": np.where(is_open, post[:, 2], suggestion[:, 1]),
        "inside_loss": losses[:, 0],
        "outside_loss": losses[:, 1],
    }
    return pd.DataFrame(columns, copy=False)
