"""Training losses in torch: one value per example, differentiable in their first argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def soft_ce(logits: Tensor, targets: Tensor) -> Tensor:
    """-sum_j t_j log p_j: cross-entropy with soft targets, which need not sum to one. Eq. (5), (7), (8)."""
    return -(targets * F.log_softmax(logits, dim=-1)).sum(-1)


def cc(logits: Tensor, candidates: Tensor) -> Tensor:
    """-log sum_{j in Y} p_j: classifier-consistent risk (Feng et al., NeurIPS 2020, Eq. 12)."""
    return logits.logsumexp(-1) - logits.masked_fill(~candidates, -torch.inf).logsumexp(-1)


def leveraged(logits: Tensor, weights: Tensor, candidates: Tensor, leverage: float) -> Tensor:
    """sum_{j in Y} w_j s(-g_j) + b sum_{j not in Y} w_j s(g_j), s the sigmoid (Wen et al., ICML 2021, Eq. 4)."""
    losses = weights * torch.sigmoid(torch.where(candidates, -logits, logits))
    return torch.where(candidates, losses, leverage * losses).sum(-1)


def negative_ce(logits: Tensor, candidates: Tensor) -> Tensor:
    """-sum_{j not in Y} log(1 - p_j + 1e-7): non-candidates are certainly wrong (Wu et al., ICML 2022, Eq. 1)."""
    return -(torch.log(1 - logits.softmax(-1) + 1e-7) * ~candidates).sum(-1)


def kl(targets: Tensor, logits: Tensor) -> Tensor:
    """KL(t || p) = sum_j t_j (log t_j - log p_j), with 0 log 0 = 0."""
    return torch.special.xlogy(targets, targets).sum(-1) + soft_ce(logits, targets)


class Partition(torch.autograd.Function):
    """log sum_j exp(q . k_j) over constant keys. Its gradient, their mean by these weights, is made on the way."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, keys: Tensor) -> Tensor:
        scores = keys @ q.T  # (keys, anchors): quicker than the other way round
        top = scores.amax(0)
        weights = scores.sub_(top).exp_()  # in place: these are the largest arrays of a step
        total = weights.sum(0)
        ctx.save_for_backward(weights.T @ keys / total[:, None])
        return total.log() + top

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (mean,) = ctx.saved_tensors
        return grad[:, None] * mean, None


def supcon(
    q: Tensor,
    labels: Tensor,
    contrasts: Sequence[tuple[Tensor, Tensor]],
    own: Tensor,
    temperature: float,
) -> Tensor:
    """-mean over positives of the log-probability among all contrasts (Khosla et al., NeurIPS 2020, Eq. 2).

    q: (b, d) anchors. contrasts: groups of (keys, labels); keys with the anchor's label are its positives. Only those
    of the first group may have a gradient. own: (b,), where each anchor stands in the first group; it is none of its
    own. An anchor without positives adds 0. The mean over positives is that of q with their summed keys: only the sum
    over all contrasts looks at every pair.
    """
    anchors, (first, *others) = q / temperature, [keys for keys, _ in contrasts if len(keys)]
    among = (anchors @ first.T).scatter(1, own[:, None], torch.finfo(q.dtype).min).logsumexp(-1)
    partition = torch.stack(
        [among, *(Partition.apply(anchors, keys) for keys in others)]
    ).logsumexp(0)
    counts = torch.bincount(torch.cat([y for _, y in contrasts]))
    empty, positives = q.new_zeros(len(counts), q.shape[1]), counts[labels] - 1
    summed = torch.stack([empty.index_add(0, y, keys) for keys, y in contrasts]).sum(0)
    alike = (q * summed[labels]).sum(-1) - (q * contrasts[0][0][own]).sum(-1)
    losses = partition - alike / (temperature * positives.clamp(min=1))
    return torch.where(positives > 0, losses, 0.0)
