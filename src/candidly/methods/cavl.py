"""CAVL: class activation value learning (Zhang et al., ICLR 2022)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.losses import soft_ce
from candidly.methods.base import Batch, Method, forward_views, uniform_confidence


class CAVL(Method):
    """Cross-entropy with the candidate of the largest class activation value.

    The value is g |1 - g|, where g is the mean logit of the views. It is not monotone in g: a
    strongly negative logit has a strongly negative value, but 0.5 beats 0.9. The official program
    makes a second forward pass for the values after the step; here they come from the same pass.

    Parameters
    ----------
    official_mask : bool
        Multiply the values by the mask instead of excluding non-candidates, as the official program
        does: a non-candidate wins when the values of all candidates are negative.
    """

    confidence: Tensor

    def __init__(self, *, official_mask: bool = False) -> None:
        super().__init__()
        self.official_mask = official_mask

    def setup(
        self,
        model: nn.Module,
        candidates: Tensor,
        rng: torch.Generator,
        answers: Answers | None = None,
    ) -> None:
        self.rows("confidence", uniform_confidence(candidates))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = forward_views(model, batch)
        losses = soft_ce(logits, self.confidence[batch.index]).mean(0)
        best = self.activation_values(logits.detach().mean(0), batch.candidates).argmax(-1)
        self.confidence[batch.index] = F.one_hot(best, logits.shape[-1]).to(self.confidence)
        return losses

    def activation_values(self, logits: Tensor, candidates: Tensor) -> Tensor:
        """Compute g |1 - g|, masked by the candidates."""
        values = logits * (1 - logits).abs()
        if self.official_mask:
            return values * candidates
        return values.masked_fill(~candidates, -torch.inf)
