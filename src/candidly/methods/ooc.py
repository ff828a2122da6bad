"""OOC: learning with mixed closed-set and open-set out-of-candidate examples (He, Feng and Yang, KDD 2023).

Algorithm 1 line by line. The defaults are the authors' released program without its bugs. The preset "paper" follows
the text where the program differs (docs/method.md lists the exceptions), "robust" takes an open-set score that does
not break down as the model grows certain, and "gradual" also selects the surest examples first, while the model is
still poor, and more of them as it learns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from candidly.auditing.rates import FEW, estimate_rates
from candidly.checks import number, one_of
from candidly.errors import InputError
from candidly.kinds import Rates, Selection
from candidly.losses import soft_ce
from candidly.methods.base import Batch, forward_views, mean_softmax, state_dtype
from candidly.methods.proden import PRODEN
from candidly.methods.twins import Twins
from candidly.scores import LOSSES, disambiguate, random_targets, uniform_targets
from candidly.selection import OPEN_SCORES, MovingEnsemble, score_blocks, select
from candidly.tensors.bits import Bits

NO_OOC = Rates(closed=0.0, open=0.0)


class OOC(PRODEN):
    """Tells normal, closed-set and open-set examples apart and learns from all three.

    `rates`: shares of closed and open examples among all, or "auto": estimated at the end of the warm-up and after as
    many epochs again, from what two more nets, each of which trains on one half of the rows until then, say of the
    other half. `warmup`: epochs, or a share of the training if below 1 (the paper's 30 of 300 is 0.1); as long as the
    training, it is PRODEN. `ramp`: share of the epochs after the warm-up over which the selected shares grow from none
    to the rates. `window`, `momentum`, `recursive`: the ensemble. `losses`, `open_score`, `overlap`: the selection.
    `temperature`, `random_from`: the targets. `alpha`, `beta`: weights of closed and open examples.
    `disambiguation`, `reverse`, `randomise` switch LD, RLD and RCG off for the ablations.
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
    ABLATIONS: ClassVar[dict[str, dict[str, Any]]] = {  # Table 2
        "w/o LD": {"disambiguation": False},
        "w/o WCE": {"losses": "mean"},
        "w/o Warm up": {"warmup": 0},
        "w/o RCG": {"randomise": False},
        "w/o RLD": {"reverse": False},
        "discard": {"alpha": 0.0, "beta": 0.0, "overlap": False},
    }
    FEW: ClassVar[int] = FEW  # fewer rows tell nothing about rates
    REFRESHES: ClassVar[int] = 1  # of estimated rates, each after as many epochs as the warm-up has
    candidates: Bits
    average: Tensor  # of the ensemble, (n, c)
    groups: Tensor  # (3, n): the selection, kept by checkpoints
    unseen: Tensor  # (n, c): mean logits of the twins that did not train on the row; with estimated rates only
    shares: Tensor  # (2,): the estimated rates

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
        if not isinstance(rates, Rates) and rates != "auto":
            raise InputError(
                f"rates={rates!r}: expected 'auto', or Rates(closed, open) such as Rates(0.1, 0.2)."
            )
        self.given, self.warmup, self.ramp = (
            rates,
            number(warmup, "warmup", 0),
            number(ramp, "ramp", 0, 1),
        )
        self.ensemble = MovingEnsemble(window, momentum, recursive)
        self.losses, self.open_score = (
            one_of(losses, LOSSES, "losses"),
            one_of(open_score, OPEN_SCORES, "open_score"),
        )
        self.overlap, self.temperature = overlap, number(temperature, "temperature", 1e-3)
        self.random_from = one_of(random_from, ("all", "candidates"), "random_from")
        self.alpha, self.beta = number(alpha, "alpha", 0), number(beta, "beta", 0)
        self.disambiguation, self.reverse, self.randomise = disambiguation, reverse, randomise

    def setup(self, model: nn.Module, candidates: Tensor, rng: torch.Generator) -> None:
        super().setup(model, candidates, rng)
        self.candidates = Bits(candidates)
        self.warmup_epochs = warmup_epochs(self.warmup, self.epochs)
        self.ramp_epochs = int(self.ramp * max(0, self.epochs - self.warmup_epochs) + 0.5)
        dtype = state_dtype(candidates.shape)
        self.register_buffer(
            "average", torch.zeros(candidates.shape, dtype=dtype, device=candidates.device)
        )
        self.register_buffer(
            "groups", torch.zeros(3, len(candidates), dtype=torch.bool, device=candidates.device)
        )
        if self.given == "auto":
            self.warmup_epochs = max(1, self.warmup_epochs)
            self.twin_epochs = (1 + self.REFRESHES) * self.warmup_epochs
            self.twins = Twins(model, len(candidates), rng)
            self.rows(
                "unseen", torch.zeros(candidates.shape, dtype=dtype, device=candidates.device)
            )
            self.register_buffer(
                "shares", torch.zeros(2, dtype=torch.float64, device=candidates.device)
            )

    @property
    def rates(self) -> Rates:
        """The shares in use: the given ones, or the last estimate."""
        return self.given if isinstance(self.given, Rates) else Rates(*self.shares.tolist())

    def report(self) -> dict[str, float]:
        estimated = self.given == "auto" and self.selection is not None and not self.warming
        return {"rate_closed": self.rates.closed, "rate_open": self.rates.open} if estimated else {}

    @property
    def selection(self) -> Selection | None:
        """The normal, closed and open examples; None until there was a first selection."""
        return Selection(*self.groups) if "groups" in self._buffers and self.groups.any() else None

    def epoch_start(self, epoch: int, predict_all: Callable[[], Tensor]) -> None:
        self.epoch, self.warming = epoch, epoch < self.warmup_epochs
        if not self.disambiguation or (epoch == 0 and self.warming):
            return  # without LD the selection is not used; an untrained model tells nothing
        output = predict_all()  # lines 4 and 8: the output of all examples after the last epoch
        if self.given == "auto" and epoch % self.warmup_epochs == 0 and epoch <= self.twin_epochs:
            self.estimate()
        self.scores = score_blocks(
            lambda rows: self.moved(rows, output[rows]), output, self.losses, self.open_score
        )
        self.groups = torch.stack(
            select(*self.scores, self.rates_now(), overlap=self.overlap)
        )  # line 9, Eq. (1)

    def rates_now(self) -> Rates:
        """The rates, or less after the warm-up: the surest examples come first."""
        share = (
            1.0
            if self.warming
            else min((self.epoch - self.warmup_epochs + 1) / (self.ramp_epochs + 1), 1.0)
        )
        return Rates(share * self.rates.closed, share * self.rates.open)

    def moved(self, rows: slice, output: Tensor) -> tuple[Tensor, Tensor]:
        """Move the ensemble of some rows: (its output or, while warming up, the model's; candidates), to be scored."""
        kept, output = (
            values.to(torch.get_default_dtype()) for values in (self.average[rows], output)
        )
        average, ensemble = kept, output
        if (
            self.epoch <= self.warmup_epochs
        ):  # line 6: the ensemble over the warm-up; it starts as the first output
            average = self.ensemble.warm(
                average, output, max(self.epoch, 1), max(self.warmup_epochs, 1)
            )
        if not self.warming:  # line 8
            average, ensemble = self.ensemble.update(average, output)
        if average is not kept:  # a frozen ensemble stays as the warm-up left it
            self.average[rows] = average.to(self.average)
        return ensemble, self.candidates[rows]

    def estimate(self) -> None:
        """The rates from the outputs for unseen rows; none, if there are too few rows, or none has an outside."""
        candidates = self.candidates[:]
        if len(candidates) >= self.FEW and not candidates.all():
            found = estimate_rates(candidates.cpu().numpy(), logits=self.unseen.cpu().numpy())
            self.shares.copy_(torch.tensor([found.closed, found.open], dtype=torch.float64))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if not self.disambiguation:
            uniform = uniform_targets(batch.candidates, torch.get_default_dtype())
            return soft_ce(forward_views(model, batch), uniform).mean(0)
        if self.warming:  # line 3
            losses = super().loss(model, batch)
            return losses + self.train_twins(batch) if self.given == "auto" else losses
        logits = forward_views(model, batch)
        probs = mean_softmax(logits)
        normal, closed, open_ = (mask[batch.index, None].to(probs) for mask in self.groups)
        inside = disambiguate(probs, batch.candidates, self.temperature)  # line 11, Eq. (4)
        others = ~batch.candidates if self.reverse else batch.candidates
        outside = disambiguate(probs, others, self.temperature)  # line 12, Eq. (6)
        random = self.random_targets(batch) if self.randomise else inside  # line 13, Eq. (8)
        targets = normal * inside + closed * outside + open_ * random
        weights = normal + self.alpha * closed + self.beta * open_
        losses = soft_ce(logits, weights * targets).mean(0)  # line 14, Eq. (9)
        learning = self.given == "auto" and self.epoch < self.twin_epochs
        return losses + self.train_twins(batch) if learning else losses

    def train_twins(self, batch: Batch) -> Tensor:
        """A loss with their gradients whose value is 0; keeps what they say of rows that they do not train on."""
        losses, outputs = self.twins(batch)
        epoch = self.epoch % self.warmup_epochs + 1
        mean = self.ensemble.warm(self.unseen[batch.index], outputs, epoch, self.warmup_epochs)
        self.unseen[batch.index] = mean.to(self.unseen)
        return losses - losses.detach()

    def random_targets(self, batch: Batch) -> Tensor:
        allowed = (
            batch.candidates
            if self.random_from == "candidates"
            else torch.ones_like(batch.candidates)
        )
        return random_targets(batch.uniform(allowed.shape[1]), allowed)


def warmup_epochs(warmup: float, epochs: int) -> int:
    """Length of the warm-up in epochs: a number below 1 is a share of the training."""
    return int(warmup * epochs + 0.5) if warmup < 1 else int(warmup)
