"""CRDPLL: consistency regularisation for partial-label learning (Wu et al., ICML 2022)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.checks import number, one_of
from candidly.losses import kl, negative_ce
from candidly.methods.base import Batch, Method, forward_views, uniform_confidence
from candidly.scores import disambiguate


class CRDPLL(Method):
    """Non-candidates are pushed down; all views are pulled to one conformal label distribution.

    Parameters
    ----------
    augmentation : {"same", "own"}
        Three weak views, as the other methods have, or one weak and two strong ones.
    ramp : float
        Share of the training over which the consistency weight grows from 0 to 1.
    """

    confidence: Tensor

    def __init__(self, *, augmentation: str = "same", ramp: float = 1 / 2) -> None:
        super().__init__()
        self.augmentation = one_of(augmentation, ("same", "own"), "augmentation")
        self.ramp = number(ramp, "ramp", 0, 1)
        self.views = ("weak", "strong", "strong") if augmentation == "own" else ("weak",) * 3

    def setup(
        self,
        model: nn.Module,
        candidates: Tensor,
        rng: torch.Generator,
        answers: Answers | None = None,
    ) -> None:
        self.rows("confidence", uniform_confidence(candidates))

    def epoch_start(self, epoch: int, predict_all: Callable[[], Tensor]) -> None:
        # lambda_t of the paper
        self.weight = min(epoch / max(self.ramp * self.epochs, 1), 1.0)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = forward_views(model, batch)
        consistency = kl(self.confidence[batch.index], logits).sum(0)
        geometric_mean = logits.detach().log_softmax(-1).mean(0).exp()
        confidence = disambiguate(geometric_mean, batch.candidates)
        self.confidence[batch.index] = confidence.to(self.confidence)
        return negative_ce(logits[0], batch.candidates) + self.weight * consistency
