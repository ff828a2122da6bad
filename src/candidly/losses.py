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


def supcon(q: Tensor, labels: Tensor, keys: Tensor, key_labels: Tensor, own: Tensor, temperature: float) -> Tensor:
    """-mean over positives of the log-probability among all contrasts (Khosla et al., NeurIPS 2020, Eq. 2).

    q: (b, d) anchors. keys: (m, d) contrasts; those with the anchor's label are its positives. own: (b,), where
    each anchor stands among the contrasts; it is none of its own. An anchor without positives adds 0. The mean over
    positives is that of q with their summed keys: only the sum over all contrasts looks at every pair.
    """
    here = own[:, None]
    partition = (q / temperature @ keys.T).scatter(1, here, -torch.inf).logsumexp(-1)
    members = F.one_hot(key_labels, int(max(labels.max(), key_labels.max())) + 1).to(q)
    positives = members.sum(0)[labels] - 1
    alike = (q * (members.T @ keys)[labels]).sum(-1) - (q * keys[own]).sum(-1)
    losses = partition - alike / (temperature * positives.clamp(min=1))
    return torch.where(positives > 0, losses, 0.0)
