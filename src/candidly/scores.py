"""Scores: one value per example, written once for NumPy arrays and torch tensors.

`logits`, `log_probs` and `probs` are (n, c); `candidates` is a boolean mask (n, c), True where a label is a candidate.
The non-candidates are `~candidates`. A loss over an empty set of labels is +inf: with a full candidate set nothing can
be outside. Equation numbers are those of He, Feng and Yang (KDD 2023).
"""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace

Array = Any  # a NumPy array or a torch tensor


def log_softmax(logits: Array) -> Array:
    """log f(x) from logits, safe for large values and for -inf."""
    xp = array_namespace(logits)
    if hasattr(logits, "log_softmax"):  # torch's own takes a pass instead of four
        return logits.log_softmax(-1)
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


def wooden_losses(log_probs: Array, candidates: Array) -> tuple[Array, Array]:
    """(inside, outside): the least of -log p over the candidates, and over the non-candidates. Eq. (3)."""
    xp = array_namespace(log_probs, candidates)
    if not hasattr(log_probs, "add"):
        return _least_loss(xp, log_probs, candidates), _least_loss(xp, log_probs, ~candidates)
    far, chosen = xp.finfo(log_probs.dtype).max, candidates.view(xp.uint8).to(log_probs.dtype)
    outside = log_probs.add(chosen, alpha=-far).amax(
        -1
    )  # torch: adding is three times as fast as `where`
    inside = log_probs.add(chosen.sub_(1), alpha=far).amax(-1)
    return inside * -2 / 2, outside * -2 / 2  # of no label at all: infinite, as -2 far is


def mean_losses(log_probs: Array, candidates: Array) -> tuple[Array, Array]:
    """(inside, outside): the mean of -log p over the candidates, and over the non-candidates. Eq. (2)."""
    return _mean_loss(log_probs, candidates), _mean_loss(log_probs, ~candidates)


def entropy_losses(log_probs: Array, candidates: Array) -> tuple[Array, Array]:
    """(inside, outside): entropy of p renormalised within the candidates, and within the others. End of Section 4.1."""
    return _entropy(log_probs, candidates), _entropy(log_probs, ~candidates)


LOSSES = {"wooden": wooden_losses, "mean": mean_losses, "entropy": entropy_losses}


def margin(inside: Array, outside: Array) -> Array:
    """outside - inside: large for normal examples, small for closed-set ones, +inf for full sets. Eq. (1)."""
    xp = array_namespace(inside, outside)
    return outside - xp.where(xp.isinf(outside), 0.0, inside)  # inf - inf would be no number


def surprise(inside: Array, outside: Array) -> Array:
    """outside + inside: large where neither side explains the example. Eq. (1).

    An infinite loss means that the other side holds all the mass, as with a full set: no surprise at all, -inf.
    """
    xp = array_namespace(inside, outside)
    return xp.where(xp.isinf(outside) | xp.isinf(inside), -math.inf, outside + inside)


def doubt(log_probs: Array) -> Array:
    """-log max p: the loss of the best class of all, between 0 and log c."""
    xp = array_namespace(log_probs)
    return -xp.max(log_probs, axis=-1)


def energy(logits: Array) -> Array:
    """-logsumexp of the logits: high where no class is supported."""
    xp = array_namespace(logits)
    top = xp.max(logits, axis=-1)
    return -(top + xp.log(xp.sum(xp.exp(logits - top[..., None]), axis=-1)))


def uniform_targets(candidates: Array, dtype: Any) -> Array:
    """1/|Y| on each candidate: the confidence before anything is known."""
    return _normalise(array_namespace(candidates).astype(candidates, dtype))


def disambiguate(probs: Array, candidates: Array, temperature: float = 1.0) -> Array:
    """Confidence proportional to p^(1/T) on the candidates, zero elsewhere. Eq. (4); with `~candidates`, Eq. (6).

    Where all candidates have probability zero they share the confidence equally; an empty set gets all zeros.
    """
    xp = array_namespace(probs, candidates)
    inside = xp.where(candidates, probs, 0.0)
    top = xp.max(inside, axis=-1, keepdims=True)
    relative = xp.where(
        top > 0, inside / xp.where(top > 0, top, 1.0), xp.astype(candidates, probs.dtype)
    )
    return _normalise(
        relative ** (1 / temperature)
    )  # the best candidate is 1, so that nothing underflows to 0/0


def random_targets(uniform: Array, allowed: Array) -> Array:
    """A random candidate set per example, each allowed label with probability 1/2, at least one, summing to 1. Eq. (8).

    `uniform`: random numbers in [0, 1), (n, c); `allowed`: mask of the labels to draw from.
    """
    xp = array_namespace(uniform, allowed)
    keys = xp.where(allowed, uniform, 1.0)
    drawn = (keys < 0.5) | (
        allowed & (keys == xp.min(keys, axis=-1, keepdims=True))
    )  # none below 1/2: the least one
    return _normalise(xp.astype(drawn, uniform.dtype))


def _normalise(weights: Array) -> Array:
    xp = array_namespace(weights)
    total = xp.sum(weights, axis=-1, keepdims=True)
    return weights / xp.where(total > 0, total, 1.0)


def _least_loss(xp: Any, log_probs: Array, labels: Array) -> Array:
    return -xp.max(xp.where(labels, log_probs, -math.inf), axis=-1)


def _mean_loss(log_probs: Array, labels: Array) -> Array:
    xp = array_namespace(log_probs, labels)
    count = xp.sum(xp.astype(labels, log_probs.dtype), axis=-1)
    total = -xp.sum(xp.where(labels, log_probs, 0.0), axis=-1)
    return xp.where(count > 0, total / xp.where(count > 0, count, 1.0), math.inf)


def _entropy(log_probs: Array, labels: Array) -> Array:
    xp = array_namespace(log_probs, labels)
    p = disambiguate(xp.exp(log_probs), labels)
    entropy = -xp.sum(p * xp.log(xp.where(p > 0, p, 1.0)), axis=-1)
    return xp.where(xp.any(labels, axis=-1), entropy, math.inf)
