"""The contract of a method, on one screen: all that the trainer, the estimator and the bench read from it.

A new method is one file with one subclass, and one line in `registry.py`; or a package of its own that names the class
as an entry point of the group `candidly.methods`.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from candidly.blocks import row_blocks
from candidly.kinds import Rates, Selection
from candidly.scores import uniform_targets
from candidly.tensors.bits import Bits

HALF_BEYOND = 1 << 28


@dataclass(frozen=True)
class Batch:
    """What a method sees of a batch. It holds no true label and no kind: a method cannot peek."""

    index: Tensor  # (b,) rows of the training set
    views: tuple[Tensor, ...]  # one augmented copy of the inputs for each entry of `Method.views`
    candidates: Tensor  # (b, c) bool
    uniform: Callable[
        [int], Tensor
    ]  # uniform(k): (b, k) random numbers in [0, 1), the same on any number of processes


class Method(nn.Module, ABC):
    """A way to learn from candidate sets. Hyper-parameters live in `__init__`, and nowhere else."""

    PRESETS: ClassVar[
        dict[str, dict[str, Any]]
    ] = {}  # name -> overrides of the arguments of `__init__`
    views: tuple[str, ...] | None = (
        None  # such as ("weak", "strong"); None: the weak views of the training scheme
    )
    epochs: int = 1  # length of the training, set by the trainer before `setup`
    settings: dict[str, Any]  # the arguments of `__init__`, defaults included, kept by `__new__`
    row_names: tuple[str, ...] = ()  # per-example state, registered by `rows`
    candidates: Bits | None = (
        None  # the packed candidates, if the method keeps them: the trainer takes them over
    )
    warming: bool = False  # is this epoch part of a warm-up, which may cost another amount?
    scores: tuple[Tensor, Tensor] | None = (
        None  # (margin, open score) of all examples, by which it last divided them
    )

    def setup(self, model: nn.Module, candidates: Tensor, rng: torch.Generator) -> None:
        """Create state: `rows` for one value per example, buffers for the rest, submodules for heads."""

    def epoch_start(self, epoch: int, predict_all: Callable[[], Tensor]) -> None:
        """Do dataset-wide work; `predict_all()` gives the logits of all examples, (n, c), at a cost only if called."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """One loss per example of the batch, (b,); update state of the rows `batch.index` here."""

    @property
    def selection(self) -> Selection | None:
        """The last division into normal, closed and open examples; None if there was none."""
        return None

    @property
    def rates(self) -> Rates | None:
        """The shares of closed and open examples in use; None for a method that knows no such shares."""
        return None

    def report(self) -> dict[str, float]:
        """What the method wants in the epoch's row of metrics, after the epoch."""
        return {}

    def __new__(cls, *args: Any, **settings: Any) -> Method:
        method = super().__new__(cls)
        method.__dict__["settings"] = {**defaults(cls), **settings}
        return method

    def rows(self, name: str, initial: Tensor) -> None:
        """Register per-example state, kept by checkpoints and brought together from all processes after an epoch."""
        self.register_buffer(name, initial)
        self.row_names = tuple(dict.fromkeys((*self.row_names, name)))

    def row_states(self) -> list[Tensor]:
        """The per-example state, as it is now."""
        return [self.get_buffer(name) for name in self.row_names]


def defaults(method: type[Method]) -> dict[str, Any]:
    """Hyper-parameters of a method with their defaults; those of its parent too, if it passes `**settings` on."""
    found: dict[str, Any] = {}
    for cls in method.__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
        found = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY} | found
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def state_dtype(shape: Sequence[int]) -> torch.dtype:
    """Type of per-example state: half precision beyond 2^28 entries, as ImageNet has with its 1,000 classes."""
    return torch.float16 if math.prod(shape) > HALF_BEYOND else torch.get_default_dtype()


def uniform_confidence(candidates: Tensor) -> Tensor:
    """1/|Y| on each candidate of every example, as per-example state; made in blocks, to save memory."""
    confidence = torch.empty(
        candidates.shape, dtype=state_dtype(candidates.shape), device=candidates.device
    )
    for rows in row_blocks(*candidates.shape):
        confidence[rows] = uniform_targets(candidates[rows], torch.get_default_dtype()).to(
            confidence
        )
    return confidence


def forward_views(model: nn.Module, batch: Batch) -> Tensor:
    """Logits of every view, (views, b, c), each by a forward pass of its own."""
    return torch.stack([model(view) for view in batch.views])


def mean_softmax(logits: Tensor) -> Tensor:
    """Mean over the views of the softmax, (b, c), without gradient."""
    return logits.detach().softmax(-1).mean(0)
