"""Training schemes: everything about a training that is the same for all methods."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from candidly.checks import number, one_of, whole
from candidly.tensors.precision import PRECISIONS

SCHEDULES = ("cosine", "onecycle")
# Share of a one-cycle training at which the learning rate is highest
PEAK = 0.25


@dataclass(frozen=True)
class Scheme:
    """How to train.

    Parameters
    ----------
    epochs, batch_size : int
    lr, weight_decay : float
    schedule : {"cosine", "onecycle"}
        Of the learning rate: changed per epoch, or per step.
    views : tuple of str
        For methods that do not ask for their own.
    record : bool
        How methods get the outputs of all examples: recorded during training, or by an extra pass
        without augmentation.
    lr_min : float
        Where the schedule ends; "onecycle" also starts there.
    momentum : float
    nesterov : bool
    precision : {"float32", "bfloat16"}
        Of the training passes.
    """

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    schedule: str
    views: tuple[str, ...]
    record: bool
    lr_min: float = 1e-5
    momentum: float = 0.9
    nesterov: bool = False
    precision: str = "float32"

    def __post_init__(self) -> None:
        whole(self.epochs, "epochs", 1)
        whole(self.batch_size, "batch_size", 1)
        number(self.lr, "lr", 0)
        number(self.lr_min, "lr_min", 0)
        number(self.weight_decay, "weight_decay", 0)
        number(self.momentum, "momentum", 0, 1)
        one_of(self.schedule, SCHEDULES, "schedule")
        one_of(self.precision, PRECISIONS, "precision")

    def rate(self, epoch: float) -> float:
        """Compute the learning rate at a point of the training.

        Parameters
        ----------
        epoch : float
            Epochs since the start.

        Returns
        -------
        float

        Examples
        --------
        >>> scheme = make_scheme("fast", epochs=20, lr=0.1, lr_min=0.0)
        >>> scheme.rate(0), scheme.rate(5), scheme.rate(20)
        (0.0, 0.1, 0.0)
        """
        if self.schedule == "cosine":
            share = (1 + math.cos(math.pi * int(epoch) / self.epochs)) / 2
            return self.lr_min + (self.lr - self.lr_min) * share
        done = epoch / self.epochs
        return self.lr_min + (self.lr - self.lr_min) * min(done / PEAK, (1 - done) / (1 - PEAK))


SCHEMES = {
    "paper": Scheme(300, 128, 0.01, 1e-3, "cosine", ("weak", "weak"), record=False),
    "fast": Scheme(20, 128, 0.05, 1e-3, "onecycle", ("weak",), record=True, nesterov=True),
}


def make_scheme(scheme: str | Scheme, **changes: Any) -> Scheme:
    """Make a scheme with some values changed.

    Parameters
    ----------
    scheme : str or Scheme
        A name in `SCHEMES`, or a scheme.
    **changes
        Values of the scheme to change.

    Returns
    -------
    Scheme

    Raises
    ------
    InputError
        If a name is unknown or a value impossible.

    Examples
    --------
    >>> make_scheme("paper", epochs=5).epochs
    5
    """
    plan = scheme if isinstance(scheme, Scheme) else SCHEMES[one_of(scheme, SCHEMES, "scheme")]
    names = [field.name for field in dataclasses.fields(Scheme)]
    for name in changes:
        one_of(name, names, "setting of a scheme")
    return dataclasses.replace(plan, **changes)
