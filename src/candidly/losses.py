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
