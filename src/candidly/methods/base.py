"""The contract of a method: all that the trainer, the estimator and the bench read from it.

A new method is one file with one subclass of `Method` and one line in `registry.py`, or a package
of its own that names the class as an entry point of the group `candidly.methods`.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.blocks import row_blocks
from candidly.kinds import Rates, Selection
from candidly.scores import uniform_targets
from candidly.tensors.bits import Bits

# Entries beyond which per-example state is stored in half precision
HALF_BEYOND = 1 << 28
# Parameters of PartialLabelClassifier. A setting of the same name would never reach the method,
# except `rates`, which the classifier passes on.
RESERVED = frozenset(
    {
        "method",
        "preset",
        "net",
        "scheme",
        "epochs",
        "batch_size",
        "lr",
        "weight_decay",
        "calibrate",
        "unknown_label",
        "random_state",
        "device",
        "verbose",
    }
)


@dataclass(frozen=True)
class Batch:
    """What a method sees of a batch; neither true labels nor kinds, so that it cannot cheat.

    Attributes
    ----------
    index : tensor (b,)
        Rows of the training set.
    views : tuple of tensors
        One augmented copy of the inputs per entry of `Method.views`.
    candidates : bool tensor (b, c)
    uniform : function
        `uniform(k)` draws (b, k) random numbers in [0, 1), the same for any number of processes.
    """

    index: Tensor
    views: tuple[Tensor, ...]
    candidates: Tensor
    uniform: Callable[[int], Tensor]


class Method(nn.Module, ABC):
    """A way to learn from candidate sets.

    A subclass writes `loss`, and overrides what else it needs. Its settings are the arguments of
    `__init__`, each with a default. `PartialLabelClassifier` fills in two settings by name, if the
    method has them: `rates`, with its own parameter `rates`, and `warmup`, with the share 0.3 of
    the training, unless the user gives another. No other parameter of the classifier may be the
    name of a setting (`RESERVED`).

    Attributes
    ----------
    PRESETS : dict of dict
        Overrides of the settings, by the name of the preset. `PartialLabelClassifier` takes
        "robust" by default, if there is one.
    views : tuple of str or None
        Views of a batch, such as ("weak", "strong"); None: those of the training scheme.
    settings : dict
        All settings, defaults included. Set before `__init__` runs.
    epochs : int
        Length of the training. Set by the trainer before `setup`.
    gold : int array of shape (n,) or None
        What is certain: a class index, -1 for none of the classes, -2 for unknown. Set by the
        trainer before `setup`; None if nothing is. Methods may ignore it.
    row_names : tuple of str
        Names of the per-example state, registered by `rows`.
    candidates : Bits or None
        The packed candidates, if the method stores them: the trainer then uses the same object.
    warming : bool
        Whether this epoch is part of a warm-up, whose steps may cost another amount.
    scores : (tensor (n,), tensor (n,)) or None
        Margins and open-set scores of all examples in the last selection.

    Examples
    --------
    >>> from candidly import PartialLabelClassifier
    >>> from candidly.losses import cc
    >>> from candidly.methods import METHODS, Method
    >>> from candidly.methods.base import forward_views
    >>> class Tempered(Method):
    ...     def __init__(self, *, start: float = 2.0) -> None:
    ...         super().__init__()
    ...         self.start = start
    ...
    ...     def epoch_start(self, epoch, predict_all):
    ...         self.temperature = self.start + (1 - self.start) * epoch / self.epochs
    ...
    ...     def loss(self, model, batch):
    ...         return cc(forward_views(model, batch) / self.temperature, batch.candidates).mean(0)
    >>> METHODS["tempered"] = Tempered
    >>> model = PartialLabelClassifier("tempered", start=3.0, epochs=2, calibrate=0)
    >>> len(model.fit([[0.0], [1.0]] * 10, ["a", "b"] * 10).history_)
    2
    >>> del METHODS["tempered"]
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    views: tuple[str, ...] | None = None
    settings: dict[str, Any]
    epochs: int = 1
    gold: NDArray[np.int64] | None = None
    row_names: tuple[str, ...] = ()
    candidates: Bits | None = None
    warming: bool = False
    scores: tuple[Tensor, Tensor] | None = None

    def setup(
        self,
        model: nn.Module,
        candidates: Tensor,
        rng: torch.Generator,
        answers: Answers | None = None,
    ) -> None:
        """Create state, once before the training; the default creates none.

        Use `rows` for one row per example, buffers for other state, and submodules for heads.

        Parameters
        ----------
        model : nn.Module
            The model that is trained, on its device.
        candidates : bool tensor (n, c)
            The candidate sets of all training examples, on the same device.
        rng : torch.Generator
            On the CPU; seeded by the seed of the training.
        answers : Answers, optional
            Who answered what, over the same rows and classes, on the CPU; None if only the sets
            are known. A method that does not take this argument learns from the sets alone.
        """

    def epoch_start(self, epoch: int, predict_all: Callable[[], Tensor]) -> None:
        """Work on the whole data set before each epoch; the default does nothing.

        Parameters
        ----------
        epoch : int
            From 0 to `epochs` - 1.
        predict_all : function
            `predict_all()` computes the logits (n, c) of all training examples, which may cost a
            pass over the data. Copy what is needed later: the next pass overwrites them.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute the losses of a batch, and update the state of its rows `batch.index`.

        Parameters
        ----------
        model : nn.Module
            In training mode; maps a view to logits (b, c).
        batch : Batch
            This process's part of a batch.

        Returns
        -------
        tensor (b,)
            One loss per example, with gradient.
        """

    @property
    def selection(self) -> Selection | None:
        """The last division into normal, closed-set and open-set examples, if there is one."""
        return None

    @property
    def ensemble_logits(self) -> Tensor | None:
        """The averaged logits (n, c) behind the selection, if there are any; for figures."""
        return None

    @property
    def rates(self) -> Rates | None:
        """The shares of closed-set and open-set examples in use, if the method has any."""
        return None

    def report(self) -> dict[str, float]:
        """Give what to add to the epoch's row of metrics, after the epoch.

        Returns
        -------
        dict of float
        """
        return {}

    def __new__(cls, *args: Any, **settings: Any) -> Method:
        method = super().__new__(cls)
        known = defaults(cls)
        # `__init__` refuses too many arguments.
        positional = zip(_positional_names(cls), args, strict=False)
        given = {name: value for name, value in positional if name in known}
        method.__dict__["settings"] = {**known, **given, **settings}
        return method

    def rows(self, name: str, initial: Tensor) -> None:
        """Register per-example state: checkpoints store it, and processes exchange it.

        Parameters
        ----------
        name : str
            The state is then the attribute of this name.
        initial : tensor (n, ...)
            Its values at the start, one row per training example.
        """
        self.register_buffer(name, initial)
        self.row_names = tuple(dict.fromkeys((*self.row_names, name)))

    def row_states(self) -> list[Tensor]:
        """Give the per-example state as it is now.

        Returns
        -------
        list of tensors (n, ...)
            In the order of `row_names`.
        """
        return [self.get_buffer(name) for name in self.row_names]


def defaults(method: type[Method]) -> dict[str, Any]:
    """Read the settings of a method and their defaults from its signature.

    Parameters
    ----------
    method : subclass of Method

    Returns
    -------
    dict
        All arguments of `__init__` that have a default and a name. Settings of the parent class
        are included if `__init__` accepts `**settings`.

    Examples
    --------
    >>> from candidly.methods import METHODS
    >>> defaults(METHODS["lws"])
    {'leverage': 1.0}
    """
    found: dict[str, Any] = {}
    for cls in method.__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
        named = (p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
        found = {p.name: p.default for p in named if p.default is not p.empty} | found
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def check_settings(method: type[Method]) -> None:
    """Check that users can give all settings of a method by name, and need not give any.

    Parameters
    ----------
    method : subclass of Method

    Raises
    ------
    ValueError
        If a setting has the name of a parameter of `PartialLabelClassifier`, or no default.

    Examples
    --------
    >>> from candidly.methods import METHODS
    >>> check_settings(METHODS["lws"])
    """
    if taken := sorted(RESERVED & defaults(method).keys()):
        raise ValueError(
            f"its settings {', '.join(taken)} are parameters of PartialLabelClassifier; choose "
            "other names"
        )
    _, *parameters = inspect.signature(method.__init__).parameters.values()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in several]
    if required:
        raise ValueError(f"its settings {', '.join(required)} have no default")


def takes_answers(method: Method) -> bool:
    """Say whether `setup` takes the argument `answers`; methods of older packages do not.

    Parameters
    ----------
    method : Method

    Returns
    -------
    bool

    Examples
    --------
    >>> from candidly.methods import METHODS
    >>> takes_answers(METHODS["cc"]())
    True
    """
    parameters = inspect.signature(method.setup).parameters
    return "answers" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _positional_names(method: type[Method]) -> list[str]:
    """List the names of the arguments that `__init__` accepts by position, without `self`."""
    _, *parameters = inspect.signature(method.__init__).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def state_dtype(shape: Sequence[int]) -> torch.dtype:
    """Choose the type of per-example state: half precision if it is very large.

    Parameters
    ----------
    shape : sequence of int

    Returns
    -------
    torch.dtype

    Examples
    --------
    >>> state_dtype((50_000, 10)), state_dtype((1_280_000, 1_000))
    (torch.float32, torch.float16)
    """
    return torch.float16 if math.prod(shape) > HALF_BEYOND else torch.get_default_dtype()


def uniform_confidence(candidates: Tensor) -> Tensor:
    """Compute 1/|Y| on each candidate, as per-example state; in blocks, to save memory.

    Parameters
    ----------
    candidates : bool tensor (n, c)

    Returns
    -------
    tensor (n, c)
    """
    shape = candidates.shape
    confidence = torch.empty(shape, dtype=state_dtype(shape), device=candidates.device)
    for rows in row_blocks(*shape):
        uniform = uniform_targets(candidates[rows], torch.get_default_dtype())
        confidence[rows] = uniform.to(confidence)
    return confidence


def forward_views(model: nn.Module, batch: Batch) -> Tensor:
    """Compute the logits of every view, each by its own forward pass.

    Parameters
    ----------
    model : nn.Module
    batch : Batch

    Returns
    -------
    tensor (views, b, c)
    """
    return torch.stack([model(view) for view in batch.views])


def mean_softmax(logits: Tensor) -> Tensor:
    """Compute the mean of the softmax over the views, without gradient.

    Parameters
    ----------
    logits : tensor (views, b, c)

    Returns
    -------
    tensor (b, c)
    """
    return logits.detach().softmax(-1).mean(0)
