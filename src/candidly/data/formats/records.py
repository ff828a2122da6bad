"""JSON: one object per line, or an array of objects."""

from __future__ import annotations

import json
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from candidly.data.columns.corrected import first_rows, joined, outdated_columns
from candidly.data.columns.roles import LABELS
from candidly.data.columns.scan import scan_table
from candidly.data.columns.tables import build_dataset
from candidly.data.dataset import Correction, Dataset, Examples, Options
from candidly.data.formats.base import Format
from candidly.data.guard import refuse_larger_than_memory
from candidly.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

ARRAY_START = b"["
OBJECT_START = b"{"
PLACE = "object {} (counting from 1)"


class ObjectFormat(Format):
    """A format that holds one JSON object per example or answer."""

    @abstractmethod
    def load(self, path: Path) -> list[dict[str, Any]]:
        """Load all objects of a file."""

    @abstractmethod
    def dump(self, objects: list[dict[str, Any]]) -> str:
        """Return objects as the text of a file."""

    def read(self, path: Path, options: Options, labelled: bool) -> Dataset | Examples:
        table = objects_table(path, self.load(path))
        return build_dataset(scan_table(path, self.name, table, PLACE), options, labelled)

    def write(self, correction: Correction, path: Path) -> None:
        objects = _corrected(correction, self.load(correction.dataset.source.path))
        path.write_text(self.dump(objects), encoding="utf-8")


class JsonLines(ObjectFormat):
    """One JSON object per line; blank lines are skipped."""

    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")

    def recognise(self, path: Path, head: bytes) -> bool:
        return _is_json(path, head) and _first_byte(head) != ARRAY_START

    def load(self, path: Path) -> list[dict[str, Any]]:
        return load_lines(path)

    def dump(self, objects: list[dict[str, Any]]) -> str:
        return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in objects)


class JsonArray(ObjectFormat):
    """A JSON array of objects."""

    name = "json"
    suffixes = (".json",)

    def recognise(self, path: Path, head: bytes) -> bool:
        return _is_json(path, head) and _first_byte(head) == ARRAY_START

    def load(self, path: Path) -> list[dict[str, Any]]:
        return load_objects(path)

    def dump(self, objects: list[dict[str, Any]]) -> str:
        return dump_objects(objects)


def _is_json(path: Path, head: bytes) -> bool:
    if path.suffix in (".json", ".jsonl", ".ndjson"):
        return True
    return _first_byte(head) in (ARRAY_START, OBJECT_START) and path.suffix not in (".csv", ".tsv")


def _first_byte(head: bytes) -> bytes:
    """Return the first byte that is neither blank nor part of a byte order mark."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]


# ---- reading


def load_lines(path: Path) -> list[dict[str, Any]]:
    """Load one object per line."""
    found: list[dict[str, Any]] = []
    number = 0
    try:
        with path.open("rb") as file:
            for line in file:
                number += 1
                if line.strip():
                    encoding = "utf-8-sig" if number == 1 else "utf-8"
                    found.append(_load_object(line.decode(encoding)))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}, line {number}: {error}. Expected one JSON object per line, in UTF-8."
        ) from None
    return found


def _load_object(line: str) -> dict[str, Any]:
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("not an object {...}")
    if "\\ud" in line.lower():
        _refuse_half_characters(found)
    return found


def load_objects(path: Path) -> list[dict[str, Any]]:
    """Load an array of objects."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}).") from None
    if not are_objects(found):
        raise InputError(
            f"{path}: expected an array of objects, [{{...}}, ...], such as Label Studio's JSON "
            "export."
        )
    if not found:
        raise InputError(f"{path} holds no rows.")
    for number, entry in enumerate(found if "\\ud" in text.lower() else [], 1):
        try:
            _refuse_half_characters(entry)
        except ValueError as error:
            raise InputError(f"{path}, {PLACE.format(number)}: {error}.") from None
    return found


def are_objects(value: Any) -> bool:
    """Say whether a JSON value is an array of objects."""
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _refuse_half_characters(entry: dict[str, Any]) -> None:
    """Refuse one half of a character that takes two, such as an emoji: no file can hold it."""
    try:
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = json.dumps(error.object[error.start])
        raise ValueError(f"{half} is half a character. Correct or remove it") from None


def objects_table(path: Path, objects: list[dict[str, Any]]) -> pa.Table:
    """Make columns of objects, each of one type; values of several types become text."""
    import pyarrow as pa

    columns = {}
    names = dict.fromkeys(name for entry in objects for name in entry)
    refuse_larger_than_memory(
        8 * len(objects) * len(names), f"{path}: a table of {len(names):,} columns", path
    )
    for name in names:
        values = [entry.get(name) for entry in objects]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            columns[name] = _mixed_column(values)
    return pa.table(columns)


def _mixed_column(values: list[Any]) -> pa.Array:
    """Turn lists into lists of text, and all other values into text."""
    import pyarrow as pa

    if all(value is None or isinstance(value, list) for value in values):
        lists = [None if value is None else [_as_text(item) for item in value] for value in values]
        return pa.array(lists, pa.list_(pa.string()))
    return pa.array([_as_text(value) for value in values], pa.string())


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


# ---- writing


def dump_objects(objects: list[dict[str, Any]]) -> str:
    """Return an array of objects as text."""
    return json.dumps(objects, ensure_ascii=False, indent=2) + "\n"


def _corrected(correction: Correction, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put other candidates into objects that are otherwise as they were."""
    dataset = correction.dataset
    options = dataset.source.options
    if options["annotator"] is not None:
        ids = [entry[options["id"]] for entry in objects]
        gold = None
        if options["gold"] is not None:
            gold = [entry.get(options["gold"]) for entry in objects]
        objects = [objects[i] for i in first_rows(ids, gold)]
    name = options["labels"][0] if dataset.answers is None else LABELS
    outdated = outdated_columns(dataset)
    corrected = []
    kept = correction.keep.tolist()
    for row, (entry, labels) in enumerate(zip(objects, correction.sets, strict=True)):
        if kept[row]:
            is_text = isinstance(entry.get(name), str)
            cell = joined(labels, options["sep"]) if is_text else list(labels)
            rest = {key: value for key, value in entry.items() if key not in outdated}
            new = {column: values[row] for column, values in correction.columns.items()}
            corrected.append(rest | {name: cell} | new)
    return corrected
