"""Options and help texts that several commands share."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

Command = Callable[..., None]

Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
Device = Annotated[
    str, typer.Option(help="Such as cpu or cuda:1; auto takes a GPU if there is one.")
]
File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="CSV, TSV, Parquet, Arrow, NPZ, .mat, JSON or a folder."),
]


def examples(*commands: str) -> str:
    """Return the end of a command's help: commands to copy."""
    return "\n\n".join(["Examples:", *(f"  {command}" for command in commands)])


def _reader_options(
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]",
            help="Column of candidates; several: one per annotator. Label Studio: the tag.",
        ),
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the examples' names.")
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column of image files, inside the file's folder."),
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of text to learn from.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(metavar="NAME[,NAME]", help='Columns of features; "f*" is a pattern.'),
    ] = None,
    classes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="All classes: one class per line, in order."),
    ] = None,
    annotator: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column of annotators; an id may then repeat."),
    ] = None,
    truth: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column of true labels, only used to evaluate."),
    ] = None,
    gold: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help='Column of labels that are certain where it is not empty; "none of the classes" '
            "is allowed.",
        ),
    ] = None,
    sep: Annotated[str, typer.Option(help="Separator between candidates.")] = "|",
    max_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory that a file may take, such as 8GB; by default 200 times its size.",
        ),
    ] = None,
) -> None:
    """Hold the options of `read_file`; commands get them through `takes_reader_options`."""


def takes_reader_options(*names: str) -> Callable[[Command], Command]:
    """Give a command the options that say how to read a file.

    Parameters
    ----------
    *names : str
        The options, such as "id" and "text"; by default all of them.

    Returns
    -------
    callable
        A decorator. The command must have a parameter `reader`, and gets the options there as one
        dict: the keyword arguments of `read_file`.
    """

    def extend(command: Command) -> Command:
        every = signature(_reader_options, eval_str=True).parameters
        chosen = {name: every[name] for name in names or every}

        @functools.wraps(command)
        def extended(**given: Any) -> None:
            values = {name: given.pop(name) for name in chosen}
            reader = {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}
            command(**given, reader=reader)

        own = signature(command, eval_str=True).parameters
        parameters = itertools.chain.from_iterable(
            chosen.values() if name == "reader" else [parameter] for name, parameter in own.items()
        )
        keywords = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters]
        extended.__signature__ = Signature(keywords)  # type: ignore[attr-defined]
        return extended

    return extend
