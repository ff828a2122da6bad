"""Which column plays which part: as the options say, else by the usual names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
AS_TEXT = {
    LABELS,
    TRUTH,
    TEXT,
    *ANNOTATORS,
    *IDS,
    *IMAGES,
}  # columns of a CSV whose cells stay as they are written


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
        single = [
            name for name in (self.id, self.annotator, self.truth, self.scores) if name is not None
        ]
        return list(dict.fromkeys([*self.labels, *single, *self.inputs]))


def assign(scan: Scan, options: Options, labelled: bool) -> Roles:
    """The parts of all columns. Not `labelled`: candidates and truth are left alone, and whose answer a row is only
    counts if the option names a column that is there."""
    names = scan.schema.names
    named = {*options.labels, options.annotator, options.truth, *options.features}
    identity = _named(scan, options.id, [name for name in IDS if name not in named])
    if labelled:
        annotator = _named(
            scan, options.annotator, [name for name in ANNOTATORS if name not in named]
        )
    else:
        annotator = (
            options.annotator if options.annotator in names and identity is not None else None
        )
    labels = _label_columns(scan, options, annotator) if labelled else ()
    truth = (
        _named(scan, options.truth, [TRUTH] if TRUTH not in {*labels, *named} else [])
        if labelled
        else None
    )
    for column, option in ((identity, "id"), (annotator, "annotator"), (truth, "truth")):
        _refuse_nested(scan, column, option)
    if annotator is not None and identity is None:
        raise InputError(
            f"{scan.path}: the column {annotator!r} names annotators, but no column tells which rows are one example: "
            "name it with --id."
        )
    scores = SCORES if labelled and len(labels) == 1 and _holds_scores(scan) else None
    taken = {
        *labels,
        annotator,
        identity,
        truth,
        scores,
        *options.labels,
        options.annotator,
        options.truth,
    }
    usual = {LABELS, SCORES} | ({TRUTH, *ANNOTATORS} if not labelled else set())
    free = [name for name in names if name not in taken | usual or name == identity in IMAGES]
    free = [name for name in free if name not in _bookkeeping(names)]
    kind, inputs, notes = _inputs(scan, options, free, {name for name in taken if name is not None})
    roles = Roles(labels, identity, annotator, truth, scores, kind, inputs, notes)
    _refuse_double(scan, roles)
    return roles


def _holds_scores(scan: Scan) -> bool:
    """Is there a column of lists of numbers for the candidates?"""
    from pyarrow import types

    if SCORES not in scan.schema.names or not is_list(kind := _type(scan, SCORES)):
        return False
    return types.is_floating(kind.value_type) or types.is_integer(kind.value_type)


def _refuse_nested(scan: Scan, column: str | None, option: str) -> None:
    """Refuse lists and structs where one plain value is expected."""
    if column is not None and not _is_flat(kind := _type(scan, column)):
        raise InputError(
            f"{scan.path}: the column {column!r} ({option}) holds {kind}; expected text or numbers. "
            f"Name another column by --{option}."
        )


def _refuse_double(scan: Scan, roles: Roles) -> None:
    """Refuse a column with two parts; only an image or a text may also be the id."""
    parts: list[tuple[str | None, str]] = [(name, "labels") for name in roles.labels]
    parts += [(roles.annotator, "annotator"), (roles.truth, "truth"), (roles.id, "id")]
    parts += [
        (name, roles.kind if roles.kind in ("images", "text") else "features")
        for name in roles.inputs
    ]
    seen: dict[str, str] = {}
    for name, part in parts:
        if name in seen and (seen[name], part) not in (("id", "images"), ("id", "text")):
            raise InputError(
                f"{scan.path}: the column {name!r} is named twice, by --{seen[name]} and by --{part}. "
                "A column can have only one part."
            )
        if name is not None:
            seen[name] = part


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


def _named(scan: Scan, given: str | None, usual: Sequence[str]) -> str | None:
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
    choices = [
        n
        for n in names
        if is_text(_type(scan, n)) and any('{"choices"' in cell for cell in scan.peek(n))
    ]
    if len(choices) == 1:
        return (choices[0],)
    raise InputError(
        f"{scan.path} has no column {LABELS!r}. Its columns: {', '.join(map(repr, names))}. Name the one with the "
        "candidate labels by --labels NAME, or those of several annotators by --labels NAME,NAME."
    )


def _inputs(
    scan: Scan, options: Options, free: list[str], taken: set[str]
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """(kind of the inputs, their columns, what was left out). `taken`: the columns that play other parts."""
    for kind in ("images", "text"):
        if name := getattr(options, kind):
            return kind, (_text_column(scan, name, kind),), ()
    if options.features:
        chosen, notes = _matching(scan, options.features, taken)
        vectors = len(chosen) == 1 and is_list(_type(scan, chosen[0]))
        return ("vectors", chosen, notes) if vectors else ("table", _flat(scan, chosen), notes)
    if EMBEDDING in free and is_list(_type(scan, EMBEDDING)):
        return "vectors", (EMBEDDING,), ()
    for kind, names in (("images", IMAGES), ("text", (TEXT,))):
        if found := [name for name in names if name in free and is_text(_type(scan, name))]:
            return kind, (found[0],), ()
    return _guess(scan, free)


def _guess(scan: Scan, free: list[str]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Inputs from columns without a telling name: images or prose if there is but one such column, else a table."""
    flat = [name for name in free if _is_flat(_type(scan, name))]
    notes = tuple(
        f"column {name!r} is left out: it holds no plain values."
        for name in free
        if name not in flat
    )
    words = [name for name in flat if is_text(_type(scan, name))]
    pictures = [
        name for name in words if _all(scan, name, lambda cell: cell.lower().endswith(SUFFIXES))
    ]
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
        raise InputError(
            f"{scan.path}: the column {name!r} ({option}) holds {_type(scan, name)}, expected text."
        )
    return name


def _matching(
    scan: Scan, patterns: tuple[str, ...], taken: set[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(columns that the names, or patterns such as "f*", stand for; notes). A pattern passes over what is `taken`."""
    chosen: list[str] = []
    notes: list[str] = []
    for pattern in patterns:
        if pattern in scan.schema.names:
            chosen.append(pattern)
            continue
        found = [name for name in scan.schema.names if fnmatchcase(name, pattern)] or [
            _column(scan, pattern)
        ]
        chosen += [name for name in found if name not in taken]
        if passed := [name for name in found if name in taken]:
            shown = ", ".join(map(repr, passed))
            notes.append(
                f"--features {pattern!r} leaves out {shown}: labels, ids and truth are no features."
            )
    if not chosen:
        raise InputError(
            f"{scan.path}: --features {','.join(patterns)} names no column that is free."
        )
    return tuple(dict.fromkeys(chosen)), tuple(notes)


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

    simple = (
        types.is_integer,
        types.is_floating,
        types.is_boolean,
        types.is_decimal,
        types.is_null,
    )
    dated = (types.is_date, types.is_time, types.is_timestamp)
    return is_text(kind) or any(check(kind) for check in (*simple, *dated))
