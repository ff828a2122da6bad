"""The oracle: `ooc` with the true kinds as its selection.

It is a reference row of the tables; with real data the kinds are not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.kinds import Selection
from candidly.methods.ooc import OOC


class Oracle(OOC):
    """`ooc` that knows which examples are normal, closed and open."""

    def __init__(self, selection: Selection, **settings: Any) -> None:
        super().__init__(**settings)
        self.truth = selection

    def setup(
        self,
        model: nn.Module,
        candidates: Tensor,
        rng: torch.Generator,
        answers: Answers | None = None,
    ) -> None:
        super().setup(model, candidates, rng, answers)
        self.groups = torch.stack(
            [torch.as_tensor(mask, device=candidates.device) for mask in self.truth]
        )

    def epoch_start(self, epoch: int, predict_all: Callable[[], Tensor]) -> None:
        self.warming = epoch < self.warmup_epochs
