"""Slow transcriptions of the formulas, one example and one label at a time, to hold the fast code against."""

import math


def wooden(log_p, cand):
    """Eq. (3) for one example: (inside, outside)."""
    inside = min((-v for v, y in zip(log_p, cand, strict=True) if y), default=math.inf)
    outside = min((-v for v, y in zip(log_p, cand, strict=True) if not y), default=math.inf)
    return inside, outside


def mean(log_p, cand):
    """Eq. (2) for one example."""
    sides = [
        [-v for v, y in zip(log_p, cand, strict=True) if bool(y) == side] for side in (True, False)
    ]
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


def ranked(values, count):
    """The `count` rows of the largest values, ties to the earlier row."""
    return set(sorted(range(len(values)), key=lambda i: (-values[i], i))[:count])


def select(margin, open_scores, n_closed, n_open, overlap):
    """Eq. (1): sets of rows (normal, closed, open)."""
    n = len(margin)
    opened = ranked(open_scores, n_open)
    if overlap:
        return (
            ranked(margin, n - n_closed - n_open),
            set(range(n)) - ranked(margin, n - n_closed),
            opened,
        )
    rest = [i for i in range(n) if i not in opened]
    closed = set(sorted(rest, key=lambda i: (margin[i], -i))[:n_closed])
    return set(rest) - closed, closed, opened


# The whole method (docs/method.md), one example at a time. Nothing below is taken from the source of `candidly`.

AUTHORS = {  # "the released program's behaviour without its bugs"
    "warmup": 8,
    "ramp": 0,
    "window": 5,
    "eta": 0.9,
    "recursive": False,
    "losses": wooden,
    "open_score": "surprise",
    "overlap": True,
    "T": 0.5,
    "random_from": "all",
    "alpha": 1.0,
    "beta": 0.1,
    "LD": True,
    "RLD": True,
    "RCG": True,
    "told": None,  # a selection to be used instead of the ranking: the oracle
}


def log_softmax(logits):
    top = max(logits)
    return [v - top - math.log(sum(math.exp(u - top) for u in logits)) for v in logits]


def uniform_target(cand):
    return [1 / sum(cand) if y else 0.0 for y in cand]


def random_target(u, allowed):
    """Eq. (8): labels whose number is below 1/2; if there is none, the label with the least number."""
    drawn = [j for j in range(len(u)) if allowed[j] and u[j] < 0.5]
    drawn = drawn or [min((j for j in range(len(u)) if allowed[j]), key=lambda j: u[j])]
    return [1 / len(drawn) if j in drawn else 0.0 for j in range(len(u))]


def soft_ce(target, logits):
    return -sum(t * v for t, v in zip(target, log_softmax(logits), strict=True))


def mean_softmax(views):
    softmaxes = [[math.exp(v) for v in log_softmax(logits)] for logits in views]
    return [sum(column) / len(views) for column in zip(*softmaxes, strict=True)]


def score(logits, cand, losses, open_score):
    """(margin, open score) of one example."""
    inside, outside = losses(log_softmax(logits), cand)
    full = all(cand)
    margin = math.inf if full else outside - inside
    if open_score == "surprise":
        return margin, -math.inf if full else outside + inside
    if open_score == "doubt":
        return margin, -max(log_softmax(logits))
    return margin, -math.log(sum(math.exp(v) for v in logits))


def ooc_loss(views, cand, u, groups, s):
    """Eq. (9) for one example of the main phase; `groups`: is it normal, closed, open. Returns (loss, its target)."""
    probs = mean_softmax(views)
    normal = disambiguate(probs, cand, s["T"])
    closed = disambiguate(probs, [not y for y in cand], s["T"]) if s["RLD"] else normal
    opened = (
        random_target(u, cand if s["random_from"] == "candidates" else [True] * len(cand))
        if s["RCG"]
        else normal
    )
    weight, target = 0.0, [0.0] * len(cand)
    for member, w, t in zip(
        groups, (1.0, s["alpha"], s["beta"]), (normal, closed, opened), strict=True
    ):
        if member:  # the authors sum the targets first, then weigh
            weight += w
            target = [a + b for a, b in zip(target, t, strict=True)]
    target = [weight * t for t in target]
    return sum(soft_ce(target, logits) for logits in views) / len(views), target


def out_of_candidate(cand, plain, script, batches, uniforms, counts, **settings):
    """Train by hand, epoch by epoch: yields (average, selection, losses of each batch, targets, confidence).

    `plain[e][i]`: logits of row i evaluated before epoch e, which is after e epochs; `script[e][v][i]`: those of its
    view v while training; `batches[e]`: lists of rows; `uniforms[e][i]`: its random numbers; `counts`: (closed, open).
    """
    s = {**AUTHORS, **settings}
    n, confidence, average = len(cand), [uniform_target(y) for y in cand], None
    for epoch, views in enumerate(script):
        output = plain[epoch]
        if (
            epoch == s["warmup"]
        ):  # an epoch's output is the one after it; without a warm-up, the first there is
            recent = plain[1 : epoch + 1][-s["window"] :] or [output]
            average = [
                [sum(v) / len(recent) for v in zip(*row, strict=True)]
                for row in zip(*recent, strict=True)
            ]
        if epoch >= s["warmup"]:
            output = [
                [s["eta"] * a + (1 - s["eta"]) * o for a, o in zip(*rows, strict=True)]
                for rows in zip(average, output, strict=True)
            ]
            average = output if s["recursive"] else average
        scores = [score(output[i], cand[i], s["losses"], s["open_score"]) for i in range(n)]
        grown = min(1, (epoch - s["warmup"] + 1) / (s["ramp"] + 1)) if epoch >= s["warmup"] else 1
        wanted = [int(grown * count + 0.5) for count in counts]
        selection = s["told"] or select(*zip(*scores, strict=True), *wanted, s["overlap"])
        losses, targets = [], {}
        for rows in batches[epoch]:
            losses.append([])
            for i in rows:
                seen = [logits[i] for logits in views]
                if not s["LD"] or epoch < s["warmup"]:
                    targets[i] = uniform_target(cand[i]) if not s["LD"] else confidence[i]
                    loss = sum(soft_ce(targets[i], logits) for logits in seen) / len(seen)
                else:
                    groups = [i in group for group in selection]
                    loss, targets[i] = ooc_loss(seen, cand[i], uniforms[epoch][i], groups, s)
                if s["LD"] and epoch < s["warmup"]:
                    confidence[i] = disambiguate(mean_softmax(seen), cand[i])
                losses[-1].append(loss)
        yield average, selection, losses, targets, [list(row) for row in confidence]
