"""Classes of other packages, which name them as entry points."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

T = TypeVar("T")


def load_plugins(
    points: Iterable[EntryPoint],
    base: type,
    taken: Collection[str],
    what: str,
    accept: Callable[[str, Any], T],
) -> dict[str, T]:
    """Load the classes of entry points; leave out those that cannot be used, with a warning.

    Parameters
    ----------
    points : iterable of EntryPoint
    base : type
        The class that they must be subclasses of.
    taken : collection of str
        Names that are in use.
    what : str
        What the classes are, for the warning.
    accept : function
        `accept(name, cls)` gives the value to register, or raises an error that says why not.

    Returns
    -------
    dict
        The values, by the names of the entry points.

    Examples
    --------
    >>> from importlib.metadata import EntryPoint
    >>> point = EntryPoint("ordered", "collections:OrderedDict", "some.group")
    >>> load_plugins([point], dict, ["plain"], "mapping", lambda name, cls: cls)
    {'ordered': <class 'collections.OrderedDict'>}
    """
    found: dict[str, T] = {}
    for point in points:
        try:
            if point.name in taken or point.name in found:
                raise ValueError(f"there is already a {what} of this name")
            cls = point.load()
            if not (isinstance(cls, type) and issubclass(cls, base)):
                expected = f"{base.__module__}.{base.__name__}"
                raise TypeError(f"{cls!r} is not a subclass of {expected}")
            found[point.name] = accept(point.name, cls)
        except Exception as error:  # another package may raise anything
            warnings.warn(
                f"the {what} {point.name!r} ({point.value}) is left out: {error}", stacklevel=3
            )
    return found
