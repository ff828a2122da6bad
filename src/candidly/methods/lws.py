"""LWS: leveraged weighted loss (Wen et al., ICML 2021)."""

import torch
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.checks import number
from candidly.losses import leveraged
from candidly.methods.base import Batch, Method, forward_views, mean_softmax, state_dtype
from candidly.scores import disambiguate


class LWS(Method):
    """Sigmoid losses of candidates and non-candidates, weighted by the model's probabilities.

    The weights come from the forward pass of the same batch; the official program makes a second
    one after the step.

    Parameters
    ----------
    leverage : float
        Weight of the non-candidates (beta of the paper).
    """

    weights: Tensor

    def __init__(self, *, leverage: float = 1.0) -> None:
        super().__init__()
        self.leverage = number(leverage, "leverage", 0)

    def setup(
        self,
        model: nn.Module,
        candidates: Tensor,
        rng: torch.Generator,
        answers: Answers | None = None,
    ) -> None:
        shape = candidates.shape
        dtype = state_dtype(shape)
        self.rows("weights", torch.full(shape, 1 / shape[1], dtype=dtype, device=candidates.device))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = forward_views(model, batch)
        stored = self.weights[batch.index]
        losses = leveraged(logits, stored, batch.candidates, self.leverage).mean(0)
        probs = mean_softmax(logits)
        weights = disambiguate(probs, batch.candidates) + disambiguate(probs, ~batch.candidates)
        self.weights[batch.index] = weights.to(self.weights)
        return losses
