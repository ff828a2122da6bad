"""PRODEN: progressive identification of true labels (Lv et al., ICML 2020)."""

import torch
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.losses import soft_ce
from candidly.methods.base import Batch, Method, forward_views, mean_softmax, uniform_confidence
from candidly.scores import disambiguate


class PRODEN(Method):
    """Cross-entropy with a stored confidence, updated by the model's own probabilities."""

    confidence: Tensor

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
        confidence = disambiguate(mean_softmax(logits), batch.candidates)
        self.confidence[batch.index] = confidence.to(self.confidence)
        return losses
