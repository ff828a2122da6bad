"""OOC: learning with mixed closed-set and open-set out-of-candidate examples (He et al., KDD 2023).

Algorithm 1 line by line. The defaults are the authors' released program without its bugs. The
preset "paper" follows the text where the program differs (docs/method.md lists the exceptions).
"robust" uses an open-set score that does not break down as the model grows certain. "gradual" also
selects the surest examples first, while the model is still poor, and more of them as it learns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.checks import number, one_of
from candidly.kinds import Rates, Selection
from candidly.losses import soft_ce
from candidly.methods.base import Batch, forward_views, mean_softmax, state_dtype
from candidly.methods.proden import PRODEN
from candidly.methods.twins import NO_OOC, WithRates, warmup_epochs
from candidly.scores import LOSSES, OPEN_SCORES, disambiguate, random_targets, uniform_targets
from candidly.selection import MovingEnsemble, score_blocks, select
from candidly.tensors.bits import Bits


class OOC(WithRates, PRODEN):
    """Selection of normal, closed-set and open-set examples, and learning from all three.

    Parameters
    ----------
    rates : Rates or "auto"
        Shares of closed-set and open-set examples among all. "auto" estimates them at the end of
        the warm-up, and again after as many epochs, from the outputs of two more nets: until then,
        each trains on one half of the rows and predicts the other half.
    warmup : float
        Epochs, or a share of the training if below 1 (the paper's 30 of 300 is 0.1). A warm-up as
        long as the training is PRODEN.
    ramp : float
        Share of the epochs after the warm-up over which the selected shares grow to the rates.
    window, momentum, recursive
        The ensemble, see `MovingEnsemble`.
    losses : str
        Of the selection: "wooden", "mean", "entropy", or another name in `LOSSES`.
    open_score : str
        Of the selection: "surprise", "doubt", "energy", or another name in `OPEN_SCORES`.
    overlap : bool
        Whether the selected groups may overlap, see `select`.
    temperature : float
        Of the targets; below 1, it sharpens them.
    random_from : {"all", "candidates"}
        Labels from which the targets of open-set examples are drawn.
    alpha, beta : float
        Weights of closed-set and open-set examples.
    disambiguation, reverse, randomise : bool
        False switches LD, RLD or RCG off, for the ablations.
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {
            "recursive": True,
            "overlap": False,
            "temperature": 1.0,
            "random_from": "candidates",
        },
        "robust": {"overlap": False, "open_score": "doubt"},
        "gradual": {
            "overlap": False,
            "open_score": "doubt",
            "ramp": 0.7,
            "momentum": 0.5,
            "recursive": True,
            "temperature": 1.0,
        },
    }
    # Table 2 of the paper
    ABLATIONS: ClassVar[dict[str, dict[str, Any]]] = {
        "w/o LD": {"disambiguation": False},
        "w/o WCE": {"losses": "mean"},
        "w/o Warm up": {"warmup": 0},
        "w/o RCG": {"randomise": False},
        "w/o RLD": {"reverse": False},
        "discard": {"alpha": 0.0, "beta": 0.0, "overlap": False},
    }
    candidates: Bits
    # (n, c): average of the ensemble
    average: Tensor
    # (3, n): the selection, a buffer so that checkpoints contain it
    groups: Tensor

    def __init__(
        self,
        *,
        rates: Rates | str = NO_OOC,
        warmup: float = 0.1,
        ramp: float = 0.0,
        window: int = 5,
        momentum: float = 0.9,
        recursive: bool = False,
        losses: str = "wooden",
        open_score: str = "surprise",
        overlap: bool = True,
        temperature: float = 0.5,
        random_from: str = "all",
        alpha: float = 1.0,
        beta: float = 0.1,
        disambiguation: bool = True,
        reverse: bool = True,
        randomise: bool = True,
    ) -> None:
        super().__init__()
        self.take_rates(rates)
        self.warmup = number(warmup, "warmup", 0)
        self.ramp = number(ramp, "ramp", 0, 1)
        self.ensemble = MovingEnsemble(window, momentum, recursive)
        self.losses = one_of(losses, LOSSES, "losses")
        self.open_score = one_of(open_score, OPEN_SCORES, "open_score")
        self.overlap = overlap
        self.temperature = number(temperature, "temperature", 1e-3)
        self.random_from = one_of(random_from, ("all", "candidates"), "random_from")
        self.alpha = number(alpha, "alpha", 0)
        self.beta = number(beta, "beta", 0)
        self.disambiguation = disambiguation
        self.reverse = reverse
        self.randomise = randomise

    def setup(
        self,
        model: nn.Module,
        candidates: Tensor,
        rng: torch.Generator,
        answers: Answers | None = None,
    ) -> None:
        super().setup(model, candidates, rng, answers)
        self.candidates = Bits(candidates)
        self.warmup_epochs = warmup_epochs(self.warmup, self.epochs)
        self.ramp_epochs = int(self.ramp * max(0, self.epochs - self.warmup_epochs) + 0.5)
        n = len(candidates)
        state = torch.zeros(
            candidates.shape, dtype=state_dtype(candidates.shape), device=candidates.device
        )
        self.register_buffer("average", state)
        groups = torch.zeros(3, n, dtype=torch.bool, device=candidates.device)
        self.register_buffer("groups", groups)
        if self.given == "auto":
            self.add_twins(model, candidates, rng)

    def report(self) -> dict[str, float]:
        return super().report() if self.selection is not None else {}

    @property
    def selection(self) -> Selection | None:
        """The normal, closed-set and open-set examples; None before the first selection."""
        return Selection(*self.groups) if "groups" in self._buffers and self.groups.any() else None

    @property
    def ensemble_logits(self) -> Tensor | None:
        """The average of the ensemble; None before `setup`."""
        return self._buffers.get("average")

    def epoch_start(self, epoch: int, predict_all: Callable[[], Tensor]) -> None:
        self.epoch = epoch
        self.warming = epoch < self.warmup_epochs
        if not self.disambiguation or (epoch == 0 and self.warming):
            return  # without LD the selection is not used; an untrained model says nothing
        output = predict_all()  # lines 4 and 8: the output of all examples after the last epoch
        if self.given == "auto" and self.due:
            self.estimate()
        self.scores = score_blocks(
            lambda rows: self.move_ensemble(rows, output[rows]),
            output,
            self.losses,
            self.open_score,
        )
        groups = select(*self.scores, self.current_rates(), overlap=self.overlap)  # line 9, Eq. (1)
        self.groups = torch.stack(groups)

    def current_rates(self) -> Rates:
        """Give the rates, or less during the ramp: the surest examples come first."""
        if self.warming:
            return self.rates
        share = min((self.epoch - self.warmup_epochs + 1) / (self.ramp_epochs + 1), 1.0)
        return Rates(share * self.rates.closed, share * self.rates.open)

    def move_ensemble(self, rows: slice, output: Tensor) -> tuple[Tensor, Tensor]:
        """Move the ensemble of some rows; give the logits to score, and the candidates.

        The logits are those of the ensemble or, while warming up, of the model.
        """
        stored = self.average[rows].to(torch.get_default_dtype())
        output = output.to(torch.get_default_dtype())
        average = stored
        ensemble = output
        if self.epoch <= self.warmup_epochs:  # line 6; it starts as the first output
            epoch = max(self.epoch, 1)
            average = self.ensemble.warm(average, output, epoch, max(self.warmup_epochs, 1))
        if not self.warming:  # line 8
            average, ensemble = self.ensemble.update(average, output)
        if average is not stored:  # unless the ensemble is frozen after the warm-up
            self.average[rows] = average.to(self.average)
        return ensemble, self.candidates[rows]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if not self.disambiguation:
            uniform = uniform_targets(batch.candidates, torch.get_default_dtype())
            return soft_ce(forward_views(model, batch), uniform).mean(0)
        if self.warming:  # line 3
            losses = super().loss(model, batch)
            return losses + self.twin_losses(batch)
        logits = forward_views(model, batch)
        probs = mean_softmax(logits)
        normal, closed, open_ = (mask[batch.index, None].to(probs) for mask in self.groups)
        of_normal = disambiguate(probs, batch.candidates, self.temperature)  # line 11, Eq. (4)
        others = ~batch.candidates if self.reverse else batch.candidates
        of_closed = disambiguate(probs, others, self.temperature)  # line 12, Eq. (6)
        of_open = self.random_targets(batch) if self.randomise else of_normal  # line 13, Eq. (8)
        targets = normal * of_normal + closed * of_closed + open_ * of_open
        weights = normal + self.alpha * closed + self.beta * open_
        losses = soft_ce(logits, weights * targets).mean(0)  # line 14, Eq. (9)
        return losses + self.twin_losses(batch)

    def random_targets(self, batch: Batch) -> Tensor:
        """Draw random candidate sets as targets."""
        if self.random_from == "candidates":
            allowed = batch.candidates
        else:
            allowed = torch.ones_like(batch.candidates)
        return random_targets(batch.uniform(allowed.shape[1]), allowed)
