"""Outputs for rows that a net did not train on: for all rows, from a single training."""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from torch import Tensor, nn

from candidly.auditing.rates import FEW
from candidly.auditing.verdicts import estimate_rates
from candidly.errors import InputError
from candidly.kinds import Rates
from candidly.losses import cc, soft_ce
from candidly.methods.base import Batch, Method, state_dtype
from candidly.selection import MovingEnsemble
from candidly.tensors.bits import Bits
from candidly.tensors.nets import embed

NO_OOC = Rates(closed=0.0, open=0.0)


class Twins(nn.Module):
    """Two copies of the model; each trains on one half of the rows and predicts the other half.

    A net soon agrees with the candidates that it trains on, right or wrong. How many are wrong
    shows only on rows that it has not seen.

    Parameters
    ----------
    model : nn.Module
    rows : int
        Number of training examples.
    rng : torch.Generator
        Draws the halves.
    """

    # (n,): whether the first twin trains on the row
    side: Tensor

    def __init__(self, model: nn.Module, rows: int, rng: torch.Generator) -> None:
        super().__init__()
        self.first = copy.deepcopy(model)
        self.second = copy.deepcopy(model)
        self.register_buffer("side", torch.rand(rows, generator=rng) < 0.5)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Compute what each twin says of a batch.

        Parameters
        ----------
        batch : Batch

        Returns
        -------
        seen : tensor (b, c)
            Logits of the twin that trains on the row.
        unseen : tensor (b, c)
            Logits of the other one, without gradient.
        features : tensor (b, d)
            Features of the other one, without gradient.
        """
        first, second = (embed(net, batch.views[0]) for net in (self.first, self.second))
        side = self.side[batch.index, None]
        seen = torch.where(side, first[1], second[1])
        unseen = torch.where(side, second[1], first[1]).detach()
        features = torch.where(side, second[0].flatten(1), first[0].flatten(1)).detach()
        return seen, unseen, features


class Estimating(Method):
    """Estimated shares of closed-set and open-set examples, as state of a method.

    A subclass calls `start_shares` in `setup`.
    """

    # Fewer rows say nothing about rates
    FEW: ClassVar[int] = FEW
    # (2,): the estimated shares of closed-set and open-set examples
    shares: Tensor

    def start_shares(self, device: torch.device) -> None:
        """Create the state: no example is taken for an OOC one."""
        self.register_buffer("shares", torch.zeros(2, dtype=torch.float64, device=device))

    def store_rates(self, closed: float, open_: float) -> None:
        """Store estimated shares, so that checkpoints contain them."""
        self.shares.copy_(torch.tensor([closed, open_], dtype=torch.float64))

    @property
    def rates(self) -> Rates:
        """The last estimate."""
        return Rates(*self.shares.tolist())


class WithTwins(Estimating):
    """Twins, for methods that judge the rows by outputs of nets that did not see them.

    A subclass calls `add_twins` in `setup`, sets `epoch` in `epoch_start`, judges when `due`, and
    adds `train_twins` to its losses while `learning`.
    """

    # How often rows are judged again, each time after as many epochs as the warm-up has
    REFRESHES: ClassVar[int] = 1
    ensemble: MovingEnsemble
    epoch: int
    warmup_epochs: int
    # (n, c): mean logits of the twins that did not train on the row
    unseen: Tensor

    def add_twins(self, model: nn.Module, candidates: Tensor, rng: torch.Generator) -> None:
        """Create the twins and what is stored of them; the warm-up has at least one epoch."""
        shape = candidates.shape
        device = candidates.device
        self.warmup_epochs = max(1, self.warmup_epochs)
        self.twin_epochs = (1 + self.REFRESHES) * self.warmup_epochs
        self.twins = Twins(model, len(candidates), rng)
        self.rows("unseen", torch.zeros(shape, dtype=state_dtype(shape), device=device))
        self.start_shares(device)

    @property
    def learning(self) -> bool:
        """Whether the twins train in this epoch."""
        return self.epoch < self.twin_epochs

    @property
    def due(self) -> bool:
        """Whether rows are to be judged before this epoch."""
        return 0 < self.epoch <= self.twin_epochs and self.epoch % self.warmup_epochs == 0

    def train_twins(self, batch: Batch, targets: Tensor | None = None) -> Tensor:
        """Compute a loss of value 0 with their gradients; store their outputs for unseen rows."""
        seen, outputs, _ = self.twins(batch)
        losses = cc(seen, batch.candidates) if targets is None else soft_ce(seen, targets)
        epoch = self.epoch % self.warmup_epochs + 1
        mean = self.ensemble.warm(self.unseen[batch.index], outputs, epoch, self.warmup_epochs)
        self.unseen[batch.index] = mean.to(self.unseen)
        return losses - losses.detach()


def check_rates(rates: Rates | str) -> Rates | str:
    """Refuse what is neither shares nor "auto".

    Parameters
    ----------
    rates : Rates or "auto"

    Returns
    -------
    Rates or "auto"

    Raises
    ------
    InputError
    """
    if not isinstance(rates, Rates) and rates != "auto":
        raise InputError(
            f"rates={rates!r}: expected 'auto', or Rates(closed, open) such as Rates(0.1, 0.2)."
        )
    return rates


class WithRates(WithTwins):
    """The setting `rates`: given shares, or "auto" for shares that twins estimate.

    A subclass calls `take_rates` in `__init__`, `start_rates` in `setup`, `follow_rates` in
    `epoch_start`, and adds `twin_losses` to its losses. The shares are estimated at the end of the
    warm-up, and again after as many epochs; before, they are zero.
    """

    candidates: Bits
    given: Rates | str

    def take_rates(self, rates: Rates | str) -> None:
        """Store the setting; refuse what is neither shares nor "auto"."""
        self.given = check_rates(rates)

    def start_rates(
        self, model: nn.Module, candidates: Tensor, rng: torch.Generator, warmup: float
    ) -> None:
        """Store the candidates and the length of the warm-up; create twins if they are needed."""
        self.candidates = Bits(candidates)
        self.warmup_epochs = warmup_epochs(warmup, self.epochs)
        if self.given == "auto":
            self.ensemble = MovingEnsemble()
            self.add_twins(model, candidates, rng)

    def follow_rates(self, epoch: int) -> None:
        """Estimate the shares if this epoch is the time."""
        self.epoch = epoch
        self.warming = epoch < self.warmup_epochs
        if self.given == "auto" and self.due:
            self.estimate()

    def twin_losses(self, batch: Batch) -> Tensor | float:
        """Compute a loss of value 0 with the gradients of the twins, while they learn."""
        learning = self.given == "auto" and self.learning
        return self.train_twins(batch) if learning else 0.0

    def estimate(self) -> None:
        """Estimate the rates from outputs for unseen rows; not from few rows or full sets alone."""
        candidates = self.candidates[:]
        if len(candidates) >= self.FEW and not candidates.all():
            found = estimate_rates(candidates.cpu().numpy(), logits=self.unseen.cpu().numpy())
            self.store_rates(found.closed, found.open)

    @property
    def rates(self) -> Rates:
        """The given shares, or the last estimate."""
        return self.given if isinstance(self.given, Rates) else super().rates

    @property
    def outside(self) -> float:
        """The share of rows whose truth is outside of their candidates: closed and open ones."""
        return self.rates.closed + self.rates.open

    def report(self) -> dict[str, float]:
        """Give the estimated shares, once there are any."""
        estimated = self.given == "auto" and not self.warming
        return {"rate_closed": self.rates.closed, "rate_open": self.rates.open} if estimated else {}


def warmup_epochs(warmup: float, epochs: int) -> int:
    """Compute the length of the warm-up in epochs.

    Parameters
    ----------
    warmup : float
        Epochs, or a share of the training if below 1.
    epochs : int
        Length of the training.

    Returns
    -------
    int

    Examples
    --------
    >>> warmup_epochs(0.1, 300), warmup_epochs(5, 300)
    (30, 5)
    """
    return int(warmup * epochs + 0.5) if warmup < 1 else int(warmup)
