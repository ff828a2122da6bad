"""What can go wrong, in words for the person who has to mend it. The command line prints these without a traceback."""

import errno
import os

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class CandidlyError(Exception):
    """Any failure that the user can act on: the message quotes what was found, what was expected, and what to do."""


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
        super().__init__(f"{what} needs {module}, which is not installed: pip install 'candidly[{extra}]'.")
        self.module = module
        self.extra = extra


class RunBusyError(InputError):
    """Another process is writing this run."""


class TrainingError(CandidlyError, RuntimeError):
    """Training cannot go on, for instance because the loss is no longer a number."""


class Interrupted(KeyboardInterrupt):
    """The user stopped the training; what was saved, and how to go on, is in the message."""


def system_reason(error: OSError) -> str:
    """Say what the system refused and, on a full disk, what to do."""
    if error.errno in NO_SPACE:
        return f"{os.strerror(error.errno)}. Free some space, then run the same command again."
    return f"{error.strerror or error}."
