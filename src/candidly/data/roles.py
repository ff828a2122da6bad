"""Which column plays which part: as the options say, else by the usual names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from candidly.checks import one_of
from candidly.data.dataset import Options
from candidly.data.labels import is_list, is_text
from candidly.data.scan import Scan
from candidly.errors import InputError, MissingColumnError

if TYPE_CHECKING:
    import pyarrow as pa

LABELS, TRUTH, SCORES, EMBEDDING, TEXT = "candidates", "label", "scores", "embedding", "text"
ANNOTATORS = ("annotator", "worker")
IDS = ("id", "task")
IMAGES = ("file_name", "image", "image_path")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
BOOKKEEPING = ("annotation_id", "created_at", "updated_at", "lead_time")  # of Label Studio's CSV
AS_TEXT = {LABELS, TRUTH, TEXT, *ANNOTATORS, *IDS, *IMAGES}  # columns of a CSV whose cells stay as they are written


@dataclass(frozen=True)
class Roles:
    """Names of columns; `inputs` are those that the kind of input is made of."""

    labels: tuple[str, ...]
    id: str | None
    annotator: str | None
    truth: str | None
    scores: str | None
    kind: str
    inputs: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def columns(self) -> list[str]:
        single = [name for name in (self.id, self.annotator, self.truth, self.scores) if name is not None]
        return list(dict.fromkeys([*self.labels, *single, *self.inputs]))


def assign(scan: Scan, options: Options, labelled: bool) -> Roles:
    """The parts of all columns. Not `labelled`: candidates and truth are left alone, and whose answer a row is only
    counts if the option names a column that is there."""
    names = scan.schema.names
    identity = _named(scan, options.id, IDS)
    if labelled:
        annotator = _named(scan, options.annotator, ANNOTATORS)
    else:
        annotator = options.annotator if options.annotator in names and identity is not None else None
    labels = _label_columns(scan, options, annotator) if labelled else ()
    truth = _named(scan, options.truth, () if TRUTH in labels else (TRUTH,)) if labelled else None
    if annotator is not None and identity is None:
        raise InputError(
            f"{scan.path}: the column {annotator!r} names annotators, but no column tells which rows are one example: "
            "name it with --id."
        )
    scores = SCORES if labelled and len(labels) == 1 and SCORES in names and is_list(_type(scan, SCORES)) else None
    taken = {*labels, annotator, identity, truth, scores, *options.labels, options.annotator, options.truth}
    usual = {LABELS, SCORES} | ({TRUTH, *ANNOTATORS} if not labelled else set())
    free = [name for name in names if name not in taken | usual or name == identity in IMAGES]
    kind, inputs, notes = _inputs(scan, options, [name for name in free if name not in _bookkeeping(names)])
    return Roles(labels, identity, annotator, truth, scores, kind, inputs, notes)


def _bookkeeping(names: list[str]) -> tuple[str, ...]:
    return BOOKKEEPING if {"annotation_id", "lead_time"} <= {*names} else ()


def _type(scan: Scan, name: str) -> pa.DataType:
    return scan.schema.field(name).type


def _column(scan: Scan, name: str) -> str:
    """The name, if the file has such a column."""
    try:
        return one_of(name, scan.schema.names, f"{scan.path}: column")
    except InputError as error:
        raise MissingColumnError(str(error), name) from None


def _named(scan: Scan, given: str | None, usual: tuple[str, ...]) -> str | None:
    if given is not None:
        return _column(scan, given)
    return next((name for name in usual if name in scan.schema.names), None)


def _label_columns(scan: Scan, options: Options, annotator: str | None) -> tuple[str, ...]:
    """The columns that hold candidates."""
    names = scan.schema.names
    if options.labels:
        return tuple(_column(scan, name) for name in options.labels)
    if LABELS in names:
        return (LABELS,)
    if annotator is not None and TRUTH in names and options.truth != TRUTH:
        return (TRUTH,)  # task, worker, label
    choices = [n for n in names if is_text(_type(scan, n)) and any('{"choices"' in cell for cell in scan.peek(n))]
    if len(choices) == 1:
        return (choices[0],)
    raise InputError(
        f"{scan.path} has no column {LABELS!r}. Its columns: {', '.join(map(repr, names))}. Name the one with the "
        "candidate labels by --labels NAME, or those of several annotators by --labels NAME,NAME."
    )


def _inputs(scan: Scan, options: Options, free: list[str]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """(kind of the inputs, their columns, what was left out)."""
    for kind in ("images", "text"):
        if name := getattr(options, kind):
            return kind, (_text_column(scan, name, kind),), ()
    if options.features:
        chosen = _matching(scan, options.features)
        vectors = len(chosen) == 1 and is_list(_type(scan, chosen[0]))
        return ("vectors", chosen, ()) if vectors else ("table", _flat(scan, chosen), ())
    if EMBEDDING in free and is_list(_type(scan, EMBEDDING)):
        return "vectors", (EMBEDDING,), ()
    for kind, names in (("images", IMAGES), ("text", (TEXT,))):
        if found := [name for name in names if name in free and is_text(_type(scan, name))]:
            return kind, (found[0],), ()
    return _guess(scan, free)


def _guess(scan: Scan, free: list[str]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Inputs from columns without a telling name: images or prose if there is but one such column, else a table."""
    flat = [name for name in free if _is_flat(_type(scan, name))]
    notes = tuple(f"column {name!r} is left out: it holds no plain values." for name in free if name not in flat)
    words = [name for name in flat if is_text(_type(scan, name))]
    pictures = [name for name in words if _all(scan, name, lambda cell: cell.lower().endswith(SUFFIXES))]
    if len(pictures) == 1:
        return "images", (pictures[0],), notes
    prose = [name for name in words if _all(scan, name, lambda cell: cell.count(" ") >= 2)]
    if len(prose) == 1 and len(words) == len(flat):
        return "text", (prose[0],), notes
    return ("table" if flat else "none"), tuple(flat), notes


def _all(scan: Scan, name: str, holds: Callable[[str], bool]) -> bool:
    """Is it so for nearly all of the first cells?"""
    cells = [cell for cell in scan.peek(name) if cell]
    return bool(cells) and sum(map(holds, cells)) >= 0.9 * len(cells)


def _text_column(scan: Scan, name: str, option: str) -> str:
    if not is_text(_type(scan, _column(scan, name))):
        raise InputError(f"{scan.path}: the column {name!r} ({option}) holds {_type(scan, name)}, expected text.")
    return name


def _matching(scan: Scan, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that the names, or patterns such as "f*", stand for."""
    chosen: list[str] = []
    for pattern in patterns:
        found = [name for name in scan.schema.names if name == pattern or fnmatchcase(name, pattern)]
        chosen += found or [_column(scan, pattern)]
    return tuple(dict.fromkeys(chosen))


def _flat(scan: Scan, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not _is_flat(_type(scan, name)):
            raise InputError(
                f"{scan.path}: the column {name!r} holds {_type(scan, name)}: expected numbers, text, dates or "
                "true/false. A list of numbers must be the only feature."
            )
    return names


def _is_flat(kind: pa.DataType) -> bool:
    from pyarrow import types

    simple = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    dated = (types.is_date, types.is_time, types.is_timestamp)
    return is_text(kind) or any(check(kind) for check in (*simple, *dated))
