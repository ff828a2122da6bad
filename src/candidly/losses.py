"""Training losses in torch: one value per example, differentiable in their first argument."""

from __future__ import annotations

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


def supcon(similarities: Tensor, positives: Tensor, excluded: Tensor) -> Tensor:
    """-mean over positives of the log-probability among all contrasts (Khosla et al., NeurIPS 2020, Eq. 2).

    `similarities`: (b, m) anchors against contrasts, already divided by the temperature; `excluded`: contrasts that do
    not exist for an anchor (itself, unfilled slots). An anchor without positives adds 0.
    """
    log_prob = similarities.masked_fill(excluded, -torch.inf).log_softmax(-1).masked_fill(excluded, 0.0)
    positives = positives & ~excluded
    return -(log_prob * positives).sum(-1) / positives.sum(-1).clamp(min=1)
