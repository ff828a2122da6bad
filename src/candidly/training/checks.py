"""Checks of a training's inputs, before it starts, and of its model, after it ends."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.hooks import RemovableHandle

from candidly.data.dataset import UNKNOWN
from candidly.errors import InputError, TrainingError
from candidly.kinds import Truth
from candidly.methods.base import Method
from candidly.sets import CandidateSets
from candidly.tensors.views import Views
from candidly.training.predictor import as_logits, evaluating, first_undefined
from candidly.training.schemes import Scheme

# Examples at least, if there are as many, whose outputs are checked after training
CHECKED_OUTPUTS = 500


def find_device(name: str) -> torch.device:
    """Find a device by name.

    Parameters
    ----------
    name : str
        "auto" is a GPU if there is one; under `torchrun`, that of this process.

    Returns
    -------
    torch.device

    Raises
    ------
    InputError
        If the device cannot be used.

    Examples
    --------
    >>> find_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise InputError(
            f"device {name!r} cannot be used here: {reason}. Try 'auto' or 'cpu'."
        ) from error


def as_sets(candidates: Any) -> CandidateSets:
    """Give candidate sets as they are, or make them.

    Parameters
    ----------
    candidates : CandidateSets or whatever makes one

    Returns
    -------
    CandidateSets

    Examples
    --------
    >>> len(as_sets([["cat", "dog"], ["dog"]]))
    2
    """
    return candidates if isinstance(candidates, CandidateSets) else CandidateSets(candidates)


def check_gold(gold: Any, n: int, n_classes: int) -> NDArray[np.int64]:
    """Give what is certain as class indices, after a check.

    Parameters
    ----------
    gold : int array of shape (n,)
        Class indices; -1 for none of the classes, -2 for unknown.
    n, n_classes : int
        Numbers of rows and of classes.

    Returns
    -------
    int array of shape (n,)

    Raises
    ------
    InputError
        If they are not one such number per row.
    """
    index = np.asarray(gold)
    if index.shape != (n,) or index.dtype.kind not in "iu":
        raise InputError(
            f"gold is {index.dtype} of shape {index.shape}: expected {n} class indices, -1 for "
            "none of the classes, -2 for unknown."
        )
    if (wrong := (index < UNKNOWN) | (index >= n_classes)).any():
        row = int(wrong.argmax())
        raise InputError(f"gold, row {row}: {index[row]} is not in -2..{n_classes - 1}.")
    return index.astype(np.int64)


def as_method(method: Method | str) -> Method:
    """Give a method as it is, or make one by name.

    Parameters
    ----------
    method : Method or str
        A name in `METHODS` gives the method its default settings.

    Returns
    -------
    Method

    Raises
    ------
    InputError
        If it is neither, or the name is unknown.

    Examples
    --------
    >>> type(as_method("cc")).__name__
    'CC'
    """
    from candidly.methods.settings import make_method

    if isinstance(method, str):
        return make_method(method)
    if not isinstance(method, Method):
        raise InputError(
            f"method={method!r}: expected a Method, such as METHODS['cc'](), or the name of one."
        )
    return method


def check_lengths(n: int, sets: CandidateSets, truth: Truth | None) -> None:
    """Check that there are as many candidate sets and true kinds as rows.

    Parameters
    ----------
    n : int
        Number of rows.
    sets : CandidateSets
    truth : Truth or None

    Raises
    ------
    InputError
        If there are not.
    """
    if n != len(sets):
        raise InputError(f"X has {n} rows, but there are {len(sets)} candidate sets.")
    if truth is not None and len(truth.kinds) != n:
        raise InputError(
            f"X has {n} rows, but truth has {len(truth.kinds)}: is it that of these candidate sets?"
        )


def check_labels(X: Any, y: Any, n_classes: int) -> np.ndarray:
    """Give test labels as class indices, after a check.

    Parameters
    ----------
    X : sequence of length n
        The test inputs.
    y : int array of shape (n,)
        Class indices.
    n_classes : int

    Returns
    -------
    int array of shape (n,)

    Raises
    ------
    InputError
        If they are not one index of a class per row.
    """
    labels = np.asarray(y)
    if labels.shape != (len(X),) or labels.dtype.kind not in "iu":
        raise InputError(
            f"test labels are {labels.dtype} of shape {labels.shape}: expected {len(X)} class "
            "indices; CandidateSets.index_of turns labels into indices."
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < n_classes:
        raise InputError(
            f"test labels reach from {labels.min()} to {labels.max()}: expected 0..{n_classes - 1}."
        )
    return labels


def check_model(model: nn.Module, views: Views, n_classes: int) -> None:
    """Check that a model returns one logit per class, by a pass over two examples.

    Parameters
    ----------
    model : nn.Module
    views : Views
        The training inputs.
    n_classes : int

    Raises
    ------
    InputError
        If it does not.
    """
    index = torch.arange(min(2, len(views)))
    with evaluating(model):
        logits = as_logits(model(views(index, "plain")), len(index))
    if logits.shape[1] != n_classes:
        raise InputError(
            f"the model turns {len(index)} inputs into {tuple(logits.shape)}: expected {n_classes} "
            "logits each, one per class."
        )


def check_first_pass(model: nn.Module) -> RemovableHandle:
    """Check the output of the first training pass, by a hook that then removes itself.

    In training mode, some models return more than in evaluation mode, such as auxiliary logits.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    RemovableHandle
        Removes the hook if there is no training pass.
    """

    def check(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if module.training and inputs:
            handle.remove()
            as_logits(output, len(inputs[0]), training=True)

    handle = model.register_forward_hook(check)
    return handle


def check_outputs(model: nn.Module, views: Views, scheme: Scheme) -> None:
    """Refuse a model whose last steps diverged while the mean loss of the epoch was finite.

    Parameters
    ----------
    model : nn.Module
        After training.
    views : Views
        The training inputs; a part of them is checked.
    scheme : Scheme
        Of the training, for the advice.

    Raises
    ------
    TrainingError
        If an output is not finite.
    """
    some = torch.arange(0, len(views), max(1, len(views) // CHECKED_OUTPUTS))
    with evaluating(model):
        row = first_undefined(model(views(some, "plain")))
    if row is not None:
        raise TrainingError(f"the outputs of the trained model are not finite: {advice(scheme)}")


def advice(scheme: Scheme) -> str:
    """Say what to do about a training that diverged.

    Parameters
    ----------
    scheme : Scheme
        Of the training.

    Returns
    -------
    str
        The end of an error message.
    """
    extremes = "look for extreme values in the inputs and the settings"
    return f"training diverged. Try an lr below {scheme.lr:g}, or {extremes}."
