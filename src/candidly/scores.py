"""Scores: one value per example, written once for NumPy arrays and torch tensors.

`logits`, `log_probs` and `probs` have the shape (n, c). `candidates` is a boolean mask (n, c), True
for each candidate label; `~candidates` are the non-candidates. `inside` is the loss over the
candidates of an example, `outside` the loss over its non-candidates. A loss over no labels is +inf,
so a full candidate set has an infinite outside loss. Equation numbers are those of He, Feng and
Yang (KDD 2023).

Two registries hold what users may choose or extend: `LOSSES` and `OPEN_SCORES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from array_api_compat import array_namespace

# A NumPy array or a torch tensor
Array = Any


def log_softmax(logits: Array) -> Array:
    """Compute log p_j = g_j - log sum_k exp(g_k), safe for large logits and for -inf.

    Parameters
    ----------
    logits : array (n, c)

    Returns
    -------
    array (n, c)

    Examples
    --------
    >>> import numpy as np
    >>> log_softmax(np.array([[0.0, np.log(3.0)]])).round(4)
    array([[-1.3863, -0.2877]])
    """
    xp = array_namespace(logits)
    if hasattr(logits, "log_softmax"):  # torch's own needs one pass instead of four
        return logits.log_softmax(-1)
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


def wooden_losses(log_probs: Array, candidates: Array) -> tuple[Array, Array]:
    """Compute the least loss inside and outside each candidate set.

    inside = min over j in Y of -log p_j, and outside = min over j not in Y of -log p_j.

    Parameters
    ----------
    log_probs : array (n, c)
    candidates : bool array (n, c)

    Returns
    -------
    inside, outside : arrays (n,)
        +inf where there is no such label.

    References
    ----------
    He, Feng and Yang (KDD 2023), Eq. (3).

    Examples
    --------
    >>> import numpy as np
    >>> log_probs = np.log(np.array([[0.5, 0.25, 0.25]]))
    >>> inside, outside = wooden_losses(log_probs, np.array([[False, True, True]]))
    >>> inside.round(4), outside.round(4)
    (array([1.3863]), array([0.6931]))
    """
    xp = array_namespace(log_probs, candidates)
    if not hasattr(log_probs, "add"):
        return _least_loss(xp, log_probs, candidates), _least_loss(xp, log_probs, ~candidates)
    # In torch, adding a huge number to the labels to leave out is three times as fast as `where`.
    huge = xp.finfo(log_probs.dtype).max
    chosen = candidates.view(xp.uint8).to(log_probs.dtype)
    outside = log_probs.add(chosen, alpha=-huge).amax(-1)
    inside = log_probs.add(chosen.sub_(1), alpha=huge).amax(-1)
    # Doubling overflows where there was no label: -huge becomes an infinite loss.
    return inside * -2 / 2, outside * -2 / 2


def mean_losses(log_probs: Array, candidates: Array) -> tuple[Array, Array]:
    """Compute the mean loss inside and outside each candidate set.

    inside = mean over j in Y of -log p_j, and outside = mean over j not in Y of -log p_j.

    Parameters
    ----------
    log_probs : array (n, c)
    candidates : bool array (n, c)

    Returns
    -------
    inside, outside : arrays (n,)
        +inf where there is no such label.

    References
    ----------
    He, Feng and Yang (KDD 2023), Eq. (2).

    Examples
    --------
    >>> import numpy as np
    >>> log_probs = np.log(np.array([[0.5, 0.25, 0.25]]))
    >>> inside, outside = mean_losses(log_probs, np.array([[True, True, False]]))
    >>> inside.round(4), outside.round(4)
    (array([1.0397]), array([1.3863]))
    """
    return _mean_loss(log_probs, candidates), _mean_loss(log_probs, ~candidates)


def entropy_losses(log_probs: Array, candidates: Array) -> tuple[Array, Array]:
    """Compute the entropy of p, renormalised inside and outside each candidate set.

    inside = -sum over j in Y of q_j log q_j with q_j = p_j / sum over k in Y of p_k; outside
    likewise over the non-candidates.

    Parameters
    ----------
    log_probs : array (n, c)
    candidates : bool array (n, c)

    Returns
    -------
    inside, outside : arrays (n,)
        +inf where there is no such label.

    References
    ----------
    He, Feng and Yang (KDD 2023), end of Section 4.1.

    Examples
    --------
    >>> import numpy as np
    >>> log_probs = np.log(np.array([[0.5, 0.25, 0.25]]))
    >>> inside, outside = entropy_losses(log_probs, np.array([[False, True, True]]))
    >>> inside.round(4), abs(outside)
    (array([0.6931]), array([0.]))
    """
    return _entropy(log_probs, candidates), _entropy(log_probs, ~candidates)


# (log_probs, candidates) -> (inside, outside)
LOSSES: dict[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    "wooden": wooden_losses,
    "mean": mean_losses,
    "entropy": entropy_losses,
}


def margin(inside: Array, outside: Array) -> Array:
    """Compute outside - inside: large for normal examples, small for closed-set ones.

    Parameters
    ----------
    inside, outside : arrays (n,)

    Returns
    -------
    array (n,)
        +inf for full candidate sets.

    References
    ----------
    He, Feng and Yang (KDD 2023), Eq. (1).

    Examples
    --------
    >>> import numpy as np
    >>> margin(np.array([0.5, 3.0, 1.0]), np.array([2.0, 1.0, np.inf]))
    array([ 1.5, -2. ,  inf])
    """
    xp = array_namespace(inside, outside)
    return outside - xp.where(xp.isinf(outside), 0.0, inside)  # inf - inf would be NaN


def surprise(inside: Array, outside: Array) -> Array:
    """Compute outside + inside: large where neither side explains the example.

    Parameters
    ----------
    inside, outside : arrays (n,)

    Returns
    -------
    array (n,)
        -inf, no surprise at all, where one loss is infinite: the other side has all the mass.

    References
    ----------
    He, Feng and Yang (KDD 2023), Eq. (1).

    Examples
    --------
    >>> import numpy as np
    >>> surprise(np.array([0.5, 3.0, 1.0]), np.array([2.0, 1.0, np.inf]))
    array([ 2.5,  4. , -inf])
    """
    xp = array_namespace(inside, outside)
    return xp.where(xp.isinf(outside) | xp.isinf(inside), -math.inf, outside + inside)


def doubt(log_probs: Array) -> Array:
    """Compute -log max_j p_j, the loss of the most probable class: between 0 and log c.

    Parameters
    ----------
    log_probs : array (n, c)

    Returns
    -------
    array (n,)

    Examples
    --------
    >>> import numpy as np
    >>> doubt(np.log(np.array([[0.5, 0.25, 0.25], [0.9, 0.1, 1e-9]]))).round(4)
    array([0.6931, 0.1054])
    """
    xp = array_namespace(log_probs)
    return -xp.max(log_probs, axis=-1)


def energy(logits: Array) -> Array:
    """Compute -log sum_j exp(g_j): high where no class is supported.

    Parameters
    ----------
    logits : array (n, c)

    Returns
    -------
    array (n,)

    Examples
    --------
    >>> import numpy as np
    >>> energy(np.array([[0.0, 0.0], [5.0, 0.0]])).round(4)
    array([-0.6931, -5.0067])
    """
    xp = array_namespace(logits)
    top = xp.max(logits, axis=-1)
    return -(top + xp.log(xp.sum(xp.exp(logits - top[..., None]), axis=-1)))


class Scored(NamedTuple):
    """What an open-set score is computed from: outputs of a model for n examples, and their losses.

    Attributes
    ----------
    logits, log_probs : arrays (n, c)
    candidates : bool array (n, c)
    inside, outside : arrays (n,)
        The chosen losses over the candidates and over the non-candidates.
    """

    logits: Array
    log_probs: Array
    candidates: Array
    inside: Array
    outside: Array


# Scored -> one score per example, larger for examples that look more like open-set ones
OPEN_SCORES: dict[str, Callable[[Scored], Array]] = {
    "surprise": lambda outputs: surprise(outputs.inside, outputs.outside),
    "doubt": lambda outputs: doubt(outputs.log_probs),
    "energy": lambda outputs: energy(outputs.logits),
}


def uniform_targets(candidates: Array, dtype: Any) -> Array:
    """Give each candidate the confidence 1/|Y|, before anything is learnt.

    Parameters
    ----------
    candidates : bool array (n, c)
    dtype : data type of the result

    Returns
    -------
    array (n, c)
        An empty set gives zeros.

    Examples
    --------
    >>> import numpy as np
    >>> uniform_targets(np.array([[True, False, True]]), np.float32)
    array([[0.5, 0. , 0.5]], dtype=float32)
    """
    return _normalise(array_namespace(candidates).astype(candidates, dtype))


def disambiguate(probs: Array, candidates: Array, temperature: float = 1.0) -> Array:
    """Compute confidences t_j = p_j^(1/T) / sum over k in Y of p_k^(1/T) on the candidates.

    Parameters
    ----------
    probs : array (n, c)
    candidates : bool array (n, c)
    temperature : float
        T; below 1, it sharpens the confidences.

    Returns
    -------
    array (n, c)
        Zero on non-candidates. Candidates that all have probability zero share the confidence
        equally; an empty set gives zeros.

    References
    ----------
    He, Feng and Yang (KDD 2023), Eq. (4); with `~candidates`, Eq. (6).

    Examples
    --------
    >>> import numpy as np
    >>> candidates = np.array([[True, True, False]])
    >>> disambiguate(np.array([[0.6, 0.2, 0.2]]), candidates)
    array([[0.75, 0.25, 0.  ]])
    >>> disambiguate(np.array([[0.6, 0.2, 0.2]]), candidates, temperature=0.5)
    array([[0.9, 0.1, 0. ]])
    """
    xp = array_namespace(probs, candidates)
    chosen = xp.where(candidates, probs, 0.0)
    top = xp.max(chosen, axis=-1, keepdims=True)
    equal = xp.astype(candidates, probs.dtype)
    # The best candidate becomes 1, so that powers do not underflow to 0/0.
    relative = xp.where(top > 0, chosen / xp.where(top > 0, top, 1.0), equal)
    return _normalise(relative ** (1 / temperature))


def neighbour_votes(features: Array, sets: Array, rows: slice, count: int) -> Array:
    """Compute sum over the nearest rows k of cos(x_i, x_k) y_k, normalised over the classes.

    Parameters
    ----------
    features : array (n, d)
        Normalised to length 1.
    sets : array (n, c)
        y of the formula: 1 for each candidate, 0 elsewhere.
    rows : slice
        The rows to compute.
    count : int
        Number of neighbours; each row is its own nearest one. Negative similarities count as 0.

    Returns
    -------
    array (b, c)
        Zeros where no neighbour is similar.

    References
    ----------
    Saravanan, Manwani and Gandhi (arXiv 2402.04835), weighted nearest neighbours.

    Examples
    --------
    >>> import torch
    >>> features = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]])
    >>> sets = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    >>> neighbour_votes(features, sets, slice(0, 1), count=2)
    tensor([[0.7273, 0.2727]])
    """
    similarities = features[rows] @ features.T
    nearest = similarities.topk(min(count, len(features)), dim=-1)
    weights = nearest.values.clip(min=0)
    return _normalise((weights[..., None] * sets[nearest.indices]).sum(1))


def admit(log_scores: Array, candidates: Array, weight: float) -> Array:
    """Compute log(s_j (y_j + lambda (1 - y_j))): the others count, with a weight of at most 1.

    Parameters
    ----------
    log_scores : array (n, c)
        log s of the formula.
    candidates : bool array (n, c)
        y of the formula.
    weight : float
        lambda of the formula; 0 gives -inf to all non-candidates.

    Returns
    -------
    array (n, c)

    References
    ----------
    Xu et al. (NeurIPS 2023), ALIM.

    Examples
    --------
    >>> import numpy as np
    >>> log_scores = np.log(np.array([[0.2, 0.6, 0.2]]))
    >>> candidates = np.array([[True, False, False]])
    >>> np.exp(admit(log_scores, candidates, 0.5))
    array([[0.2, 0.3, 0.1]])
    """
    xp = array_namespace(log_scores, candidates)
    return xp.where(
        candidates, log_scores, log_scores + (math.log(weight) if weight else -math.inf)
    )


def random_targets(uniform: Array, allowed: Array) -> Array:
    """Draw a random candidate set per example, with equal weights that sum to 1.

    Each allowed label is drawn with probability 1/2. If none is, the one with the least random
    number is taken.

    Parameters
    ----------
    uniform : array (n, c)
        Random numbers in [0, 1).
    allowed : bool array (n, c)
        The labels to draw from.

    Returns
    -------
    array (n, c)

    References
    ----------
    He, Feng and Yang (KDD 2023), Eq. (8).

    Examples
    --------
    >>> import numpy as np
    >>> uniform = np.array([[0.1, 0.4, 0.9], [0.7, 0.6, 0.2]])
    >>> random_targets(uniform, np.array([[True, True, True], [True, True, False]]))
    array([[0.5, 0.5, 0. ],
           [0. , 1. , 0. ]])
    """
    xp = array_namespace(uniform, allowed)
    keys = xp.where(allowed, uniform, 1.0)
    least = allowed & (keys == xp.min(keys, axis=-1, keepdims=True))
    return _normalise(xp.astype((keys < 0.5) | least, uniform.dtype))


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
