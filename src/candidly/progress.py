"""Progress on the terminal: epoch, note and time left; nothing at all when the output is piped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(total: int, label: str, *, done: int = 0, shown: bool | None = None) -> Iterator[Callable[[str], None]]:
    """Yields `advance(note)`. `shown=None`: only on a terminal."""
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda note: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn(compact=True)]
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=total, completed=done, note="")
        yield lambda note: progress.update(task, advance=1, note=note)
