"""A trained net with its normalisation and its classes, to classify raw inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from candidly.errors import CandidlyError, InputError, TrainingError
from candidly.labels import label_array
from candidly.storage.store import (
    load_tensors,
    read_json,
    refuse_newer_format,
    save_tensors,
    write_json,
)
from candidly.tensors import distributed
from candidly.tensors.nets import build_net, channels_last
from candidly.tensors.views import Views, make_views


@dataclass
class Predictor:
    """A trained net that maps raw inputs to classes.

    Parameters
    ----------
    model : nn.Module
    classes : array (c,)
        The labels, in the order of the logits.
    shape : tuple of int
        Shape of one input as the net sees it.
    mean, std : arrays
        Normalisation, one value per channel or column.
    """

    model: nn.Module
    classes: np.ndarray
    shape: tuple[int, ...]
    mean: np.ndarray
    std: np.ndarray

    def logits(self, X: Any, rows: Any = None) -> np.ndarray:
        """Compute the outputs of the net, with inputs normalised as in training.

        Parameters
        ----------
        X : array-like
            Images or a table, as in training. Memory-mapped arrays are read batch by batch.
        rows : array-like of int or bool, optional
            The rows of X to use, as an index or a mask; by default all.

        Returns
        -------
        array (n, c)

        Raises
        ------
        InputError
            If the inputs have another shape than in training, or are so extreme that the outputs
            are not finite.
        TrainingError
            If the weights of the net are not finite.
        """
        self._check(np.shape(X)[1:])
        device = next(self.model.parameters()).device
        views = make_views(X, rows=rows, mean=self.mean, std=self.std, device=device)
        logits = predict(self.model, views)
        if (row := first_undefined(logits)) is not None:
            raise self._undefined(row, logits[row].tolist())
        return logits.cpu().numpy()

    def _undefined(self, row: int, outputs: list[float]) -> CandidlyError:
        """Make an error that says whether the model or an input is at fault."""
        remedy = "training diverged: train the model with a smaller lr."
        weights = [*self.model.parameters(), *self.model.buffers()]
        if not all(weight.isfinite().all() for weight in weights):
            return TrainingError(f"the model's weights are not finite: {remedy}")
        shown = ", ".join(f"{value:.3g}" for value in outputs[:6])
        return InputError(
            f"X, row {row}: the model's outputs, {shown}, give no probabilities. Expected inputs "
            f"like those of the training data; if this happens to them too, {remedy}"
        )

    def _check(self, shape: tuple[int, ...]) -> None:
        """Check the shape of an input: (d,), or (h, w, c), or (h, w) for grey images."""
        expected = (*self.shape[1:], self.shape[0]) if len(self.shape) == 3 else self.shape
        if expected not in (shape, (*shape, 1)):
            raise InputError(
                f"an input has the shape {shape}; the model was trained on {expected}."
            )

    def predict_proba(self, X: Any) -> np.ndarray:
        """Compute the probabilities of the classes.

        Parameters
        ----------
        X : array-like

        Returns
        -------
        array (n, c)
        """
        return torch.from_numpy(self.logits(X)).softmax(-1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """Predict the labels of the most probable classes.

        Parameters
        ----------
        X : array-like

        Returns
        -------
        array (n,)
        """
        return self.classes[self.logits(X).argmax(-1)]

    def save(self, folder: str | Path, net: dict[str, Any] | None = None) -> None:
        """Save the predictor in a folder: weights as safetensors, the rest as JSON.

        Parameters
        ----------
        folder : str or Path
        net : dict, optional
            The arguments of `build_net`; `load` then needs no model.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        facts = {"classes": self.classes.tolist(), "shape": list(self.shape)}
        moments = {"mean": self.mean.tolist(), "std": self.std.tolist()}
        write_json(folder / "model.json", {"net": net, **facts, **moments})
        save_tensors(folder / "model.safetensors", self.model.state_dict())

    @classmethod
    def load(cls, run: str | Path, model: nn.Module | None = None) -> Predictor:
        """Load a predictor.

        Parameters
        ----------
        run : str or Path
            A finished RUN folder, or a folder that `save` wrote.
        model : nn.Module, optional
            The net, if it is not in `NETS`.

        Returns
        -------
        Predictor
        """
        refuse_newer_format(Path(run))
        folder = Path(run) / "model" if (Path(run) / "model").is_dir() else Path(run)
        facts = read_json(folder / "model.json")
        if model is None and facts["net"] is None:
            raise InputError(
                f"{folder} was saved without a description of its net: pass the module as model=..."
            )
        model = build_net(**facts["net"]) if model is None else model
        model.load_state_dict(load_tensors(folder / "model.safetensors")[0])
        model = channels_last(model, facts["shape"])
        moments = (np.array(facts[key]) for key in ("mean", "std"))
        return cls(model.eval(), label_array(facts["classes"]), tuple(facts["shape"]), *moments)


def first_undefined(logits: Tensor) -> int | None:
    """Find the first row that has no softmax: with NaN or +inf, or all -inf.

    Parameters
    ----------
    logits : tensor (n, c)

    Returns
    -------
    int or None
    """
    undefined = (~logits.amax(-1).isfinite()).nonzero()
    return int(undefined[0]) if len(undefined) else None


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode, without gradients, inside a `with` block."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def as_logits(output: Any, n: int, *, training: bool = False) -> Tensor:
    """Give the output of a model as it is, if it is a tensor of logits.

    Parameters
    ----------
    output : any
        What the model returned.
    n : int
        Number of inputs.
    training : bool, default=False
        Whether the model was in training mode, for the message.

    Returns
    -------
    tensor (n, c)

    Raises
    ------
    InputError
        If the model returned something else, such as a tuple or an object with `logits`.

    Examples
    --------
    >>> as_logits(torch.zeros(2, 3), 2).shape
    torch.Size([2, 3])
    """
    mode = " in training mode" if training else ""
    if isinstance(output, Tensor):
        if output.ndim == 2 and len(output) == n:
            return output
        raise InputError(
            f"the model turns {n} inputs into {tuple(output.shape)}{mode}: expected a tensor of "
            f"logits ({n}, c)."
        )
    access = ""
    if hasattr(output, "logits"):
        access = ".logits"
    elif isinstance(output, dict):
        access = '["logits"]'
    elif isinstance(output, (tuple, list)):
        access = "[0]"
    # Before its training, a model has returned logits in evaluation mode.
    otherwise = " if self.training else self.model(x)" if training else ""
    raise InputError(
        f"the model returns {type(output).__name__}{mode}: expected a tensor of logits ({n}, c) "
        f"for {n} inputs. Wrap the model in a module that returns the logits alone: "
        f"def forward(self, x): return self.model(x){access}{otherwise}"
    )


def predict(
    model: nn.Module,
    views: Views,
    batch_size: int = 512,
    *,
    shared: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute the logits of all examples, without augmentation, in evaluation mode.

    Parameters
    ----------
    model : nn.Module
    views : Views
    batch_size : int
    shared : bool
        Whether all processes share the work.
    dtype : torch.dtype, optional
        Type of the result; by default that of the model's outputs.

    Returns
    -------
    tensor (n, c)
    """
    rows = torch.arange(len(views))
    if shared:
        rows = rows[distributed.local_part(len(views))]
    with evaluating(model):
        batch = rows[:batch_size]
        first = as_logits(model(views(batch, "plain")), len(batch))
        # Filled batch by batch, so that all logits are in memory only once
        logits = first.new_empty((len(rows), *first.shape[1:]), dtype=dtype)
        logits[:batch_size] = first
        for start in range(batch_size, len(rows), batch_size):
            part = slice(start, start + batch_size)
            logits[part] = model(views(rows[part], "plain"))
    return distributed.gather(logits) if shared else logits
