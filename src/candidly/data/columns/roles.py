"""Which column plays which part: as the options say, else by the usual names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from candidly.checks import one_of
from candidly.data.columns.scan import Scan, is_list, is_text
from candidly.data.dataset import Options
from candidly.errors import InputError, MissingColumnError

if TYPE_CHECKING:
    import pyarrow as pa

LABELS = "candidates"
TRUTH = "label"
GROUND_TRUTH = "ground_truth"  # of Label Studio
SCORES = "scores"
EMBEDDING = "embedding"
TEXT = "text"
ANNOTATORS = ("annotator", "worker")
IDS = ("id", "task")
IMAGES = ("file_name", "image", "image_path")
IMAGE_SUFFIXES = (
    ".png",
    ".jpg",
    ".jpeg",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".webp",
    ".ppm",
    ".pgm",
)
# Columns that `candidly export` adds, and the ending that keeps them apart from older ones.
CONSENSUS = ("consensus_label", "consensus_probability")
OUTPUT = re.compile(rf"({'|'.join(CONSENSUS)})(_\d+)?")
# Columns of Label Studio's CSV export that are never inputs.
LABEL_STUDIO_COLUMNS = ("annotation_id", "created_at", "updated_at", "lead_time")
# Share of the first cells by which a column counts as images or prose.
NEARLY_ALL = 0.9


@dataclass(frozen=True)
class Roles:
    """Names of columns by their part; `inputs` are those that make up the kind of input."""

    labels: tuple[str, ...]
    id: str | None
    annotator: str | None
    truth: str | None
    gold: str | None
    scores: str | None
    kind: str
    inputs: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def columns(self) -> list[str]:
        """List the columns that play a part."""
        single = (self.id, self.annotator, self.truth, self.gold, self.scores)
        named = [name for name in single if name is not None]
        return list(dict.fromkeys([*self.labels, *named, *self.inputs]))


def text_columns(options: Options) -> set[str]:
    """Name the columns of an untyped file, such as CSV, whose cells stay as they are written."""
    usual = {LABELS, TRUTH, TEXT, *ANNOTATORS, *IDS, *IMAGES}
    inputs = (options.images, options.text)
    single = (options.id, options.annotator, options.truth, options.gold, *inputs)
    return usual | {*options.labels} | {name for name in single if name}


def assign_roles(scan: Scan, options: Options, labelled: bool) -> Roles:
    """Assign a part to each column.

    Parameters
    ----------
    scan : Scan
        The table.
    options : Options
        Columns that the user names.
    labelled : bool
        If False, candidates, truth and gold are ignored, and annotators unless the table has the
        column that `options` names.

    Returns
    -------
    Roles
    """
    names = scan.schema.names
    chosen = {*options.labels, options.annotator, options.truth, options.gold, *options.features}
    identity = _named(scan, options.id, [name for name in IDS if name not in chosen])
    labels: tuple[str, ...] = ()
    annotator = truth = gold = scores = None
    if labelled:
        free_annotators = [name for name in ANNOTATORS if name not in chosen]
        annotator = _named(scan, options.annotator, free_annotators)
        labels = _label_columns(scan, options, annotator)
        free_truth = [TRUTH] if TRUTH not in {*labels, *chosen} else []
        truth = _named(scan, options.truth, free_truth)
        gold = _named(scan, options.gold, ())
        if len(labels) == 1 and _holds_scores(scan):
            scores = SCORES
    elif options.annotator in names and identity is not None:
        annotator = options.annotator
    single = {"id": identity, "annotator": annotator, "truth": truth, "gold": gold}
    for option, column in single.items():
        _refuse_nested(scan, column, option)
    if annotator is not None and identity is None:
        raise InputError(
            f"{scan.path}: the column {annotator!r} names annotators, but no column says which "
            "rows are one example: name it with --id."
        )
    taken = {*labels, annotator, identity, truth, gold, scores}
    taken |= {*options.labels, options.annotator, options.truth, options.gold}
    outputs = [name for name in names if OUTPUT.fullmatch(name) and name not in taken]
    taken |= {*outputs}
    never_inputs = {LABELS, SCORES, *_bookkeeping(names)}
    if not labelled:
        never_inputs |= {TRUTH, *ANNOTATORS}
    if scan.tag is not None:
        never_inputs |= {TRUTH, GROUND_TRUTH}
    free = [
        name
        for name in names
        if name not in taken | never_inputs or (name == identity and name in IMAGES)
    ]
    kind, inputs, notes = _inputs(scan, options, free, {name for name in taken if name is not None})
    notes = (*_output_notes([name for name in outputs if name not in inputs]), *notes)
    roles = Roles(labels, identity, annotator, truth, gold, scores, kind, inputs, notes)
    _refuse_double(scan, roles)
    return roles


def _output_notes(names: list[str]) -> tuple[str, ...]:
    """Say which columns of an earlier export are not used."""
    if not names:
        return ()
    shown = ", ".join(map(repr, names))
    return (
        f"left out: {shown}. `candidly export` writes columns of such names; name one by an "
        "option, such as --truth, to use it.",
    )


def _holds_scores(scan: Scan) -> bool:
    """Say whether there is a column of lists of numbers for the candidates."""
    from pyarrow import types

    if SCORES not in scan.schema.names or not is_list(kind := _type(scan, SCORES)):
        return False
    return types.is_floating(kind.value_type) or types.is_integer(kind.value_type)


def _refuse_nested(scan: Scan, column: str | None, option: str) -> None:
    """Refuse lists and structs where one plain value is expected."""
    if column is not None and not _is_flat(kind := _type(scan, column)):
        raise InputError(
            f"{scan.path}: the column {column!r} ({option}) holds {kind}; expected text or "
            f"numbers. Name another column by --{option}."
        )


def _refuse_double(scan: Scan, roles: Roles) -> None:
    """Refuse a column with two parts; only an image or a text may also be the id."""
    parts: list[tuple[str | None, str]] = [(name, "labels") for name in roles.labels]
    parts += [(roles.annotator, "annotator"), (roles.truth, "truth")]
    parts += [(roles.gold, "gold"), (roles.id, "id")]
    kind = roles.kind if roles.kind in ("images", "text") else "features"
    parts += [(name, kind) for name in roles.inputs]
    seen: dict[str, str] = {}
    for name, part in parts:
        if name in seen and (seen[name], part) not in (("id", "images"), ("id", "text")):
            raise InputError(
                f"{scan.path}: the column {name!r} is named twice, by --{seen[name]} and by "
                f"--{part}. A column can have only one part."
            )
        if name is not None:
            seen[name] = part


def _bookkeeping(names: list[str]) -> tuple[str, ...]:
    return LABEL_STUDIO_COLUMNS if {"annotation_id", "lead_time"} <= {*names} else ()


def _type(scan: Scan, name: str) -> pa.DataType:
    return scan.schema.field(name).type


def _column(scan: Scan, name: str) -> str:
    """Return the name if the file has such a column."""
    try:
        return one_of(name, scan.schema.names, f"{scan.path}: column")
    except InputError as error:
        raise MissingColumnError(str(error), name) from None


def _named(scan: Scan, given: str | None, usual: Sequence[str]) -> str | None:
    if given is not None:
        return _column(scan, given)
    return next((name for name in usual if name in scan.schema.names), None)


def _label_columns(scan: Scan, options: Options, annotator: str | None) -> tuple[str, ...]:
    """Find the columns that hold candidates."""
    names = scan.schema.names
    if options.labels:
        return tuple(_column(scan, name) for name in options.labels)
    if LABELS in names:
        return (LABELS,)
    if annotator is not None and TRUTH in names and TRUTH not in (options.truth, options.gold):
        # A crowd table: task, worker, label.
        return (TRUTH,)
    texts = [name for name in names if is_text(_type(scan, name))]
    choices = [name for name in texts if any('{"choices"' in cell for cell in scan.peek(name))]
    if len(choices) == 1:
        return (choices[0],)
    raise InputError(
        f"{scan.path} has no column {LABELS!r}. Its columns: {', '.join(map(repr, names))}. Name "
        "the one with the candidate labels by --labels NAME, or those of several annotators by "
        "--labels NAME,NAME."
    )


def _inputs(
    scan: Scan, options: Options, free: list[str], taken: set[str]
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return (kind of the inputs, their columns, notes); `taken` columns play other parts."""
    for kind in ("images", "text"):
        if name := getattr(options, kind):
            return kind, (_text_column(scan, name, kind),), ()
    if options.features:
        chosen, notes = _matching(scan, options.features, taken)
        if len(chosen) == 1 and is_list(_type(scan, chosen[0])):
            return "vectors", chosen, notes
        _refuse_lists(scan, chosen)
        return "table", chosen, notes
    if EMBEDDING in free and is_list(_type(scan, EMBEDDING)):
        return "vectors", (EMBEDDING,), ()
    for kind, names in (("images", IMAGES), ("text", (TEXT,))):
        if found := [name for name in names if name in free and is_text(_type(scan, name))]:
            return kind, (found[0],), ()
    return _guess(scan, free)


def _guess(scan: Scan, free: list[str]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Guess the inputs: images or prose if exactly one column holds them, else a table."""
    flat = [name for name in free if _is_flat(_type(scan, name))]
    nested = [name for name in free if name not in flat]
    notes = tuple(
        f"column {name!r} is left out: it holds {_type(scan, name)}, not plain values."
        for name in nested
    )
    words = [name for name in flat if is_text(_type(scan, name))]
    pictures = [name for name in words if _nearly_all(scan, name, _names_image)]
    if len(pictures) == 1:
        return "images", (pictures[0],), notes
    prose = [name for name in words if _nearly_all(scan, name, _is_prose)]
    if len(prose) == 1 and len(words) == len(flat):
        return "text", (prose[0],), notes
    return ("table" if flat else "none"), tuple(flat), notes


def _nearly_all(scan: Scan, name: str, holds: Callable[[str], bool]) -> bool:
    """Say whether nearly all of the first cells satisfy a condition."""
    cells = [cell for cell in scan.peek(name) if cell]
    return bool(cells) and sum(map(holds, cells)) >= NEARLY_ALL * len(cells)


def _names_image(cell: str) -> bool:
    return cell.lower().endswith(IMAGE_SUFFIXES)


def _is_prose(cell: str) -> bool:
    return cell.count(" ") >= 2


def _text_column(scan: Scan, name: str, option: str) -> str:
    if not is_text(_type(scan, _column(scan, name))):
        raise InputError(
            f"{scan.path}: the column {name!r} ({option}) holds {_type(scan, name)}; expected text."
        )
    return name


def _matching(
    scan: Scan, patterns: tuple[str, ...], taken: set[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (columns that match names or patterns such as "f*", notes).

    A pattern passes over columns that are `taken`.
    """
    chosen: list[str] = []
    notes: list[str] = []
    for pattern in patterns:
        if pattern in scan.schema.names:
            chosen.append(pattern)
            continue
        found = [name for name in scan.schema.names if fnmatchcase(name, pattern)]
        found = found or [_column(scan, pattern)]
        chosen += [name for name in found if name not in taken]
        if passed := [name for name in found if name in taken]:
            shown = ", ".join(map(repr, passed))
            notes.append(
                f"--features {pattern!r} leaves out {shown}: labels, ids, truth, gold and "
                "columns of an export are not features."
            )
    if not chosen:
        raise InputError(
            f"{scan.path}: --features {','.join(patterns)} names no column that is free."
        )
    return tuple(dict.fromkeys(chosen)), tuple(notes)


def _refuse_lists(scan: Scan, names: tuple[str, ...]) -> None:
    for name in names:
        if not _is_flat(_type(scan, name)):
            raise InputError(
                f"{scan.path}: the column {name!r} holds {_type(scan, name)}; expected numbers, "
                "text, dates or true/false. A list of numbers must be the only feature."
            )


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
