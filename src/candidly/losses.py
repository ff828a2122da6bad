"""Training losses in torch: one value per example, differentiable in the logits.

`logits` have the shape (..., c); g_j is the logit of class j and p_j its softmax. `candidates` is a
boolean mask (..., c) of the candidate set Y.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def soft_ce(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the cross-entropy with soft targets, -sum_j t_j log p_j.

    Parameters
    ----------
    logits : tensor (..., c)
    targets : tensor (..., c)
        They need not sum to one.

    Returns
    -------
    tensor (...,)

    References
    ----------
    He, Feng and Yang (KDD 2023), Eq. (5), (7) and (8).

    Examples
    --------
    >>> import torch
    >>> soft_ce(torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.0, 1.0, 0.0]]))
    tensor([1.3863])
    """
    return -(targets * F.log_softmax(logits, dim=-1)).sum(-1)


def cc(logits: Tensor, candidates: Tensor) -> Tensor:
    """Compute the classifier-consistent loss, -log sum_{j in Y} p_j.

    Parameters
    ----------
    logits : tensor (..., c)
    candidates : bool tensor (..., c)

    Returns
    -------
    tensor (...,)

    References
    ----------
    Feng et al. (NeurIPS 2020), Eq. (12).

    Examples
    --------
    >>> import torch
    >>> cc(torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[False, True, True]]))
    tensor([0.6931])
    """
    return logits.logsumexp(-1) - logits.masked_fill(~candidates, -torch.inf).logsumexp(-1)


def gce(logits: Tensor, candidates: Tensor, exponent: float) -> Tensor:
    """Compute the generalised cross-entropy of the mass on the candidates.

    (1 - m^r) / r with the mass m = sum_{j in Y} p_j: -log m for r -> 0, and 1 - m for r = 1.

    Parameters
    ----------
    logits : tensor (..., c)
    candidates : bool tensor (..., c)
    exponent : float
        r of the formula, above 0.

    Returns
    -------
    tensor (...,)
        At most 1/r, so that a set without the truth cannot dominate.

    References
    ----------
    Zhang and Sabuncu (NeurIPS 2018), the loss L_q, there of the probability of one label.

    Examples
    --------
    >>> import torch
    >>> logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    >>> gce(logits, torch.tensor([[True, False, False]]), exponent=0.5)
    tensor([0.5858])
    """
    return -torch.expm1(-exponent * cc(logits, candidates)) / exponent


def leveraged(logits: Tensor, weights: Tensor, candidates: Tensor, leverage: float) -> Tensor:
    """Compute the leveraged weighted loss of sigmoids s.

    sum_{j in Y} w_j s(-g_j) + b sum_{j not in Y} w_j s(g_j)

    Parameters
    ----------
    logits : tensor (..., c)
    weights : tensor (..., c)
        w of the formula.
    candidates : bool tensor (..., c)
    leverage : float
        b of the formula.

    Returns
    -------
    tensor (...,)

    References
    ----------
    Wen et al. (ICML 2021), Eq. (4).

    Examples
    --------
    >>> import torch
    >>> candidates = torch.tensor([[True, False]])
    >>> leveraged(torch.zeros(1, 2), torch.ones(1, 2), candidates, leverage=3.0)
    tensor([2.])
    """
    losses = weights * torch.sigmoid(torch.where(candidates, -logits, logits))
    return torch.where(candidates, losses, leverage * losses).sum(-1)


def negative_ce(logits: Tensor, candidates: Tensor) -> Tensor:
    """Compute the loss of non-candidates, which are certainly wrong.

    -sum_{j not in Y} log(1 - p_j + 1e-7)

    Parameters
    ----------
    logits : tensor (..., c)
    candidates : bool tensor (..., c)

    Returns
    -------
    tensor (...,)

    References
    ----------
    Wu et al. (ICML 2022), Eq. (1).

    Examples
    --------
    >>> import torch
    >>> negative_ce(torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[False, True, True]]))
    tensor([0.6931])
    """
    return -(torch.log(1 - logits.softmax(-1) + 1e-7) * ~candidates).sum(-1)


def smoothed(labels: Tensor, n_classes: int, smoothing: float) -> Tensor:
    """Compute targets with label smoothing, (1 - e) onehot + e / c.

    Parameters
    ----------
    labels : integer tensor (...,)
    n_classes : int
        c of the formula.
    smoothing : float
        e of the formula.

    Returns
    -------
    tensor (..., c)

    References
    ----------
    Szegedy et al. (CVPR 2016), Section 7.

    Examples
    --------
    >>> import torch
    >>> smoothed(torch.tensor([1]), 4, 0.4)
    tensor([[0.1000, 0.7000, 0.1000, 0.1000]])
    """
    onehot = F.one_hot(labels, n_classes).to(torch.get_default_dtype())
    return (1 - smoothing) * onehot + smoothing / n_classes


def kl(targets: Tensor, logits: Tensor) -> Tensor:
    """Compute the Kullback-Leibler divergence KL(t || p) = sum_j t_j (log t_j - log p_j).

    Parameters
    ----------
    targets : tensor (..., c)
        Those of zero add nothing: 0 log 0 = 0.
    logits : tensor (..., c)

    Returns
    -------
    tensor (...,)

    Examples
    --------
    >>> import torch
    >>> kl(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.25, 0.75]]).log())
    tensor([1.3863])
    """
    return torch.special.xlogy(targets, targets).sum(-1) + soft_ce(logits, targets)


class Partition(torch.autograd.Function):
    """log sum_j exp(q . k_j) over constant keys, as a function of anchors q.

    ``Partition.apply(q, keys)`` takes tensors (b, d) and (k, d) and returns a tensor (b,). The
    forward pass already makes its gradient, the mean of the keys weighted by their terms.

    Examples
    --------
    >>> import torch
    >>> Partition.apply(torch.zeros(1, 2), torch.ones(4, 2))
    tensor([1.3863])
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, keys: Tensor) -> Tensor:
        """Compute the logarithms, and store their gradient.

        Parameters
        ----------
        ctx : context of torch.autograd
        q : tensor (b, d)
            Anchors.
        keys : tensor (k, d)
            They get no gradient.

        Returns
        -------
        tensor (b,)
        """
        scores = keys @ q.T  # (k, b): faster than the other way round
        top = scores.amax(0)
        weights = scores.sub_(top).exp_()  # in place: these are the largest arrays of a step
        total = weights.sum(0)
        ctx.save_for_backward(weights.T @ keys / total[:, None])
        return total.log() + top

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Compute the gradient in q.

        Parameters
        ----------
        ctx : context of torch.autograd
        grad : tensor (b,)
            Gradient in the result.

        Returns
        -------
        tensor (b, d)
            Gradient in q.
        None
            For the keys.
        """
        (mean,) = ctx.saved_tensors
        return grad[:, None] * mean, None


def supcon(
    q: Tensor,
    labels: Tensor,
    contrasts: Sequence[tuple[Tensor, Tensor]],
    own: Tensor,
    temperature: float,
) -> Tensor:
    """Compute the supervised contrastive loss.

    -mean over the positives k of log(exp(q . k / T) / sum over all keys j of exp(q . k_j / T))

    Parameters
    ----------
    q : tensor (b, d)
        Anchors.
    labels : integer tensor (b,)
        Keys with the label of an anchor are its positives.
    contrasts : sequence of (keys, labels)
        Groups of keys. Only those of the first group may have a gradient.
    own : integer tensor (b,)
        Index of each anchor in the first group; an anchor is not its own key.
    temperature : float
        T of the formula.

    Returns
    -------
    tensor (b,)
        0 for an anchor without positives.

    Notes
    -----
    The mean over positives is the product of q with the sum of their keys, so that only the sum
    over all keys needs every pair.

    References
    ----------
    Khosla et al. (NeurIPS 2020), Eq. (2).

    Examples
    --------
    >>> import torch
    >>> q = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> labels = torch.tensor([0, 0, 1])
    >>> supcon(q, labels, [(q, labels)], torch.arange(3), temperature=1.0)
    tensor([0.3133, 0.3133, 0.0000])
    """
    anchors = q / temperature
    first, *others = (keys for keys, _ in contrasts if len(keys))
    among = (anchors @ first.T).scatter(1, own[:, None], torch.finfo(q.dtype).min).logsumexp(-1)
    partitions = [among, *(Partition.apply(anchors, keys) for keys in others)]
    partition = torch.stack(partitions).logsumexp(0)
    counts = torch.bincount(torch.cat([y for _, y in contrasts]))
    positives = counts[labels] - 1
    empty = q.new_zeros(len(counts), q.shape[1])
    summed = torch.stack([empty.index_add(0, y, keys) for keys, y in contrasts]).sum(0)
    alike = (q * summed[labels]).sum(-1) - (q * contrasts[0][0][own]).sum(-1)
    losses = partition - alike / (temperature * positives.clamp(min=1))
    return torch.where(positives > 0, losses, 0.0)


def nearest_contrast(
    q: Tensor, contrasts: Sequence[Tensor], own: Tensor, temperature: float, count: int
) -> Tensor:
    """Compute the contrastive loss whose positives are the nearest keys.

    -mean over the `count` keys k of the largest q . k of log(exp(q . k / T) / sum over all keys)

    Parameters
    ----------
    q : tensor (b, d)
        Anchors.
    contrasts : sequence of tensors (k, d)
        Groups of keys.
    own : integer tensor (b,)
        Index of each anchor in the first group; an anchor is not its own key.
    temperature : float
        T of the formula.
    count : int
        Number of positives; all keys, if there are fewer.

    Returns
    -------
    tensor (b,)
        0 for an anchor without any key.

    References
    ----------
    Wang et al. (TPAMI 2024), PiCO+, contrast of unreliable examples.

    Examples
    --------
    >>> import torch
    >>> q = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> nearest_contrast(q, [q], torch.arange(3), temperature=1.0, count=1)
    tensor([0.3133, 0.3133, 0.6931])
    """
    keys = torch.cat(list(contrasts))
    if len(keys) < 2:
        return 0 * q.sum(-1)
    scores = (q @ keys.T / temperature).scatter(1, own[:, None], torch.finfo(q.dtype).min)
    nearest = scores.topk(min(count, len(keys) - 1)).values
    return scores.logsumexp(-1) - nearest.mean(-1)
