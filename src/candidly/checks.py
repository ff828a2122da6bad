"""Checks of settings: each returns the value, or raises an error that says what was expected."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from candidly.errors import InputError


def one_of(value: Any, choices: Iterable[str], what: str) -> Any:
    """Return `value` if it is one of the choices.

    Parameters
    ----------
    value : Any
        The value to check.
    choices : iterable of str
        The allowed values.
    what : str
        What the value is, for the message.

    Raises
    ------
    InputError
        If it is not; the message lists the choices and suggests the most similar one.

    Examples
    --------
    >>> one_of("cc", ["cc", "lws"], "method")
    'cc'
    """
    names = list(choices)
    if value in names:
        return value
    close = difflib.get_close_matches(str(value), names, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise InputError(f"{what} {value!r} is unknown.{hint} There are: {', '.join(names) or 'none'}.")


def number(value: Any, what: str, least: float = -math.inf, most: float = math.inf) -> Any:
    """Return `value` if it is a finite number from `least` to `most`; `what` names it."""
    real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not real or not least <= value <= most:
        raise InputError(f"{what}={value!r}: expected a number{_span(least, most)}.")
    return value


def whole(value: Any, what: str, least: int = 0) -> Any:
    """Return `value` if it is a whole number of at least `least`; `what` names it."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise InputError(f"{what}={value!r}: expected a whole number of at least {least}.")
    return value


def as_numpy(values: Any) -> NDArray[Any]:
    """Return an array, or a tensor on any device and of any precision, as a NumPy array."""
    if not hasattr(values, "detach"):
        return np.asarray(values)
    tensor = values.detach().cpu()
    return np.asarray(tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor)


def _span(least: float, most: float) -> str:
    if math.isfinite(least) and math.isfinite(most):
        return f" from {least:g} to {most:g}"
    return f" of at least {least:g}" if math.isfinite(least) else ""
