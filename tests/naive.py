"""Slow transcriptions of the formulas, one example and one label at a time: what the vectorised code is held against."""

import math


def wooden(log_p, cand):
    """Eq. (3) for one example: (inside, outside)."""
    inside = min((-v for v, y in zip(log_p, cand, strict=True) if y), default=math.inf)
    outside = min((-v for v, y in zip(log_p, cand, strict=True) if not y), default=math.inf)
    return inside, outside


def mean(log_p, cand):
    """Eq. (2) for one example."""
    sides = [[-v for v, y in zip(log_p, cand, strict=True) if bool(y) == side] for side in (True, False)]
    return tuple(sum(s) / len(s) if s else math.inf for s in sides)


def entropy(log_p, cand):
    """Entropy of the renormalised probabilities on each side."""
    result = []
    for side in (True, False):
        p = [math.exp(v) for v, y in zip(log_p, cand, strict=True) if bool(y) == side]
        if not p:
            result.append(math.inf)
            continue
        total = sum(p)
        p = [v / total for v in p] if total > 0 else [1 / len(p)] * len(p)
        result.append(-sum(v * math.log(v) for v in p if v > 0))
    return tuple(result)


def disambiguate(p, cand, temperature=1.0):
    """Eq. (4), sharpened."""
    powered = [v ** (1 / temperature) if y else 0.0 for v, y in zip(p, cand, strict=True)]
    total = sum(powered)
    return [v / total if total else 0.0 for v in powered]


def ranked(values, count, largest=True):
    """The first `count` rows of a ranking, ties to the earlier row."""
    order = sorted(range(len(values)), key=lambda i: (-values[i] if largest else values[i], i))
    return set(order[:count])


def select(margin, openness, n_closed, n_open, overlap):
    """Eq. (1): sets of rows (normal, closed, open)."""
    n = len(margin)
    opened = ranked(openness, n_open)
    if overlap:
        return ranked(margin, n - n_closed - n_open), ranked(margin, n_closed, largest=False), opened
    rest = [i for i in range(n) if i not in opened]
    closed = set(sorted(rest, key=lambda i: (margin[i], i))[:n_closed])
    return set(rest) - closed, closed, opened
