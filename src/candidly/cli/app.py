"""The command `candidly`: its groups of commands, and how errors end them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from candidly._version import __version__
from candidly.cli.bench import bench_commands
from candidly.cli.files import file_commands
from candidly.console.terminal import echo, printable, printable_lines
from candidly.errors import (
    NO_SPACE,
    CandidlyError,
    InputError,
    naming_extras,
    system_reason,
)

# On a full disk safetensors raises an error of its own, with the system's number at its end.
SAFETENSORS_ERROR = re.compile(r"\(os error (\d+)\)$")
# click's class, or typer's own copy of it.
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]


class SentenceErrorGroup(TyperGroup):
    """Commands that print errors which the user can fix as one sentence, without a traceback."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments."""
        with errors_as_sentences():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that they name."""
        with errors_as_sentences():
            _refuse_several_processes()
            try:
                return super().invoke(ctx)
            except ModuleNotFoundError:
                with naming_extras(f"candidly {ctx.invoked_subcommand}"):
                    raise


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """End the command with a message and an exit code for errors that the user can fix.

    Exit code 2 for errors, 130 for Ctrl-C. Other errors are faults, and keep their traceback.
    """
    try:
        yield
    except USAGE_ERROR as error:
        # typer prints it.
        error.message = printable_lines(error.message)
        raise
    except InputError as error:
        # One line: a newline in it comes from the input.
        _stop(printable(error), 2)
    except CandidlyError as error:
        _stop(str(error), 2)
    except OSError as error:
        # typer ends quietly when a pipe is closed.
        if error.errno in (None, errno.EPIPE):
            raise
        _stop(_system_error(error), 2)
    except Exception as error:
        if (found := SAFETENSORS_ERROR.search(str(error))) is None:
            raise
        number = int(found[1])
        _stop(_system_error(OSError(number, os.strerror(number))), 2)
    except KeyboardInterrupt as stopped:
        # The message of `Interrupted` says what was saved.
        _stop(str(stopped) or "stopped; the same command starts it again.", 130)


def _stop(message: str, code: int) -> NoReturn:
    echo(f"candidly: {message}", err=True)
    raise typer.Exit(code)


def _system_error(error: OSError) -> str:
    if error.filename is not None:
        return f"{printable(error.filename)} cannot be used: {system_reason(error)}"
    action = "write" if error.errno in NO_SPACE else "read or write"
    return f"cannot {action}: {system_reason(error)}"


def _refuse_several_processes() -> None:
    """Stop if this is one of several processes, as of torchrun: a command runs as one."""
    world = os.environ.get("WORLD_SIZE", "")
    rank = os.environ.get("RANK")
    if rank is None or not world.isdecimal() or int(world) < 2:
        return
    if rank != "0":
        # A failure would make torchrun end the first process before it prints.
        raise typer.Exit(0)
    _stop(
        f"a command runs as one process, not as {world} (WORLD_SIZE and RANK are set): start it "
        "without torchrun, or unset RANK; to train in several processes, call candidly.fit in "
        "your own program.",
        2,
    )


app = typer.Typer(
    name="candidly",
    cls=SentenceErrorGroup,
    help="Learn from candidate labels, even when the truth is not among them.",
    epilog=(
        "Start with: candidly demo. With your own data: candidly inspect FILE, then "
        "candidly fit FILE --out RUN"
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(file_commands)
app.add_typer(bench_commands)


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"candidly {__version__}")
        raise typer.Exit


@app.callback()
def candidly(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Learn from candidate labels, even when the truth is not among them."""
