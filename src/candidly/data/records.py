"""JSON: lines of objects, an array of objects, and Label Studio's tasks, as tables of arrow columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from candidly.checks import one_of
from candidly.data.dataset import Options
from candidly.data.guard import refuse_larger_than_memory
from candidly.data.roles import LABELS, TRUTH
from candidly.data.scan import Scan, from_table
from candidly.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

NOBODY = "(unknown)"


def read_json_lines(path: Path) -> Scan:
    """One object a line; blank lines are skipped."""
    return from_table(path, "jsonl", _table(path, load_lines(path)), "object {} (counting from 1)")


def load_lines(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    number = 0
    try:
        with path.open("rb") as file:
            for line in file:
                number += 1
                if line.strip():
                    found.append(json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8")))
                    if not isinstance(found[-1], dict):
                        raise ValueError("no object {...}")
                    if b"\\ud" in line.lower():
                        _refuse_half_characters(found[-1])
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}, line {number}: {error}. Expected one JSON object per line, in UTF-8."
        ) from None
    return found


def load_json(path: Path) -> list[dict[str, Any]]:
    """An array of objects."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}).") from None
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise InputError(
            f"{path}: expected an array of objects, [{{...}}, ...], such as Label Studio's JSON export."
        )
    if not found:
        raise InputError(f"{path} holds no rows.")
    for number, entry in enumerate(found if "\\ud" in text.lower() else [], 1):
        try:
            _refuse_half_characters(entry)
        except ValueError as error:
            raise InputError(f"{path}, object {number} (counting from 1): {error}.") from None
    return found


def _refuse_half_characters(entry: dict[str, Any]) -> None:
    """JSON can name one half of a character that takes two, such as an emoji; no file can hold it."""
    try:
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = json.dumps(error.object[error.start])
        raise ValueError(f"{half} is half a character. Correct or remove it") from None


def read_json(path: Path, options: Options, labelled: bool) -> tuple[Scan, Options]:
    """Label Studio's tasks, or any array of objects; and the options that are left to apply."""
    tasks = load_json(path)
    if is_label_studio(tasks):
        return read_tasks(path, tasks, options, labelled)
    return from_table(path, "json", _table(path, tasks), "object {} (counting from 1)"), options


def is_label_studio(tasks: list[dict[str, Any]]) -> bool:
    """Has every object the `data` of a task?"""
    return all(isinstance(task.get("data"), dict) for task in tasks)


def _table(path: Path, rows: list[dict[str, Any]]) -> pa.Table:
    """Columns, each of one type; what has several becomes text."""
    import pyarrow as pa

    columns = {}
    names = dict.fromkeys(name for row in rows for name in row)
    refuse_larger_than_memory(
        8 * len(rows) * len(names), f"{path}: a table of {len(names):,} columns", path
    )
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            columns[name] = _mixed(values)
    return pa.table(columns)


def _mixed(values: list[Any]) -> pa.Array:
    """Values of several types: lists of labels as lists of text, all else as text."""
    import pyarrow as pa

    if all(value is None or isinstance(value, list) for value in values):
        return pa.array(
            [None if v is None else [as_text(item) for item in v] for v in values],
            pa.list_(pa.string()),
        )
    return pa.array([None if value is None else as_text(value) for value in values], pa.string())


def as_text(value: Any) -> str | None:
    return (
        value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    )


# ---- Label Studio


def read_tasks(
    path: Path, tasks: list[dict[str, Any]], options: Options, labelled: bool
) -> tuple[Scan, Options]:
    """One row an annotation, or a task if not `labelled`. `labels` names the tag (from_name), if there are several."""
    left = options.with_values(labels=(), id="id", annotator="annotator" if labelled else None)
    if not labelled:
        rows = [
            {"id": task.get("id", number), **_data(task)} for number, task in enumerate(tasks, 1)
        ]
        return from_table(
            path,
            "label-studio",
            _table(path, rows),
            "task {} (counting from 1)",
            (),
            *options.labels[:1],
        ), left
    tag = find_tag(path, tasks, options.labels)
    counts = {"cancelled": 0, "unlabelled": 0, "verified": 0}
    key = "annotations" if any(task.get("annotations") for task in tasks) else "predictions"
    rows = []
    for number, task in enumerate(tasks, 1):
        answers = _answers(path, number, task, key, tag, counts)
        counts["unlabelled"] += not answers
        rows += [{"id": task.get("id", number), **answer, **_data(task)} for answer in answers]
    if not rows:
        raise InputError(
            f"{path}: no task has an annotation with a choice. Export the labelled tasks as JSON."
        )
    return from_table(
        path,
        "label-studio",
        _table(path, rows),
        "annotation {} (in order)",
        _told(counts, key),
        tag,
    ), left


def _data(task: dict[str, Any]) -> dict[str, Any]:
    """The task's own fields; names that are taken get a prefix."""
    taken = ("id", "annotator", LABELS, TRUTH)
    return {
        f"data.{name}" if name in taken else name: value for name, value in task["data"].items()
    }


def find_tag(path: Path, tasks: list[dict[str, Any]], given: tuple[str, ...]) -> str:
    """The name of the choices that are the candidates."""
    results = (
        item for number, task in enumerate(tasks, 1) for item in task_results(path, number, task)
    )
    names = sorted({item["from_name"] for item in results if item.get("type") == "choices"})
    if not names:
        raise InputError(
            f"{path}: no annotation holds choices. Only classification by <Choices> is understood."
        )
    if given:
        return one_of(given[0], names, f"{path}: the choices")
    if len(names) > 1:
        raise InputError(
            f"{path} has several choices: {', '.join(names)}. Say which by --labels, as in --labels {names[0]}."
        )
    return names[0]


def task_results(path: Path, number: int, task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All results of all annotations and predictions that have a name."""
    for key in ("annotations", "predictions"):
        for entry in _entries(path, number, task, key):
            yield from (item for item in _results(path, number, entry) if "from_name" in item)


def _entries(path: Path, number: int, task: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The annotations or predictions of a task."""
    found = task.get(key) or []
    if not _are_objects(found):
        raise _odd_task(path, number, f"{key!r} is {_shown(found)}; expected a list of objects")
    return found


def _results(path: Path, number: int, entry: dict[str, Any]) -> list[dict[str, Any]]:
    found = entry.get("result") or []
    if not _are_objects(found):
        raise _odd_task(path, number, f"'result' is {_shown(found)}; expected a list of objects")
    if odd := [
        item["from_name"] for item in found if not isinstance(item.get("from_name", ""), str)
    ]:
        raise _odd_task(path, number, f"'from_name' is {_shown(odd[0])}; expected text")
    return found


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _odd_task(path: Path, number: int, what: str) -> InputError:
    return InputError(
        f"{path}, task {number} (counting from 1): {what}, as Label Studio exports it."
    )


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _answers(
    path: Path, number: int, task: dict[str, Any], key: str, tag: str, counts: dict[str, int]
) -> list[dict[str, Any]]:
    """The rows of a task: {annotator, candidates, label}. A verified label is the truth; alone, it is the set too."""
    given, verified = [], []
    for entry in _entries(path, number, task, key):
        choices = _choices(path, number, entry, tag)
        if entry.get("was_cancelled"):
            counts["cancelled"] += 1
        elif choices and entry.get("ground_truth"):
            verified.append((_who(entry), choices))
        elif choices:
            given.append((_who(entry), choices))
    counts["verified"] += bool(verified)
    single = [choices[0] for _, choices in verified if len(choices) == 1]
    truth = single[0] if single else None
    return [{"annotator": who, LABELS: choices, TRUTH: truth} for who, choices in given or verified]


def _choices(path: Path, number: int, entry: dict[str, Any], name: str) -> list[str]:
    choices: list[str] = []
    for item in _results(path, number, entry):
        if item.get("from_name") == name:
            value = item.get("value")
            found = value.get("choices") if isinstance(value, dict) else None
            if not isinstance(found, list) or not all(isinstance(choice, str) for choice in found):
                expected = 'expected {"choices": ["...", ...]}'
                raise _odd_task(
                    path, number, f"the value of {name!r} is {_shown(value)}; {expected}"
                )
            choices += found
    return choices


def _who(entry: dict[str, Any]) -> str:
    """The annotator: a number, an object with an e-mail or id; or the model's version."""
    who = entry.get("completed_by", entry.get("model_version"))
    if isinstance(who, dict):
        who = who.get("email") or who.get("id")
    return NOBODY if who in (None, "") else str(who)


def _told(counts: dict[str, int], key: str) -> tuple[str, ...]:
    told = {
        "cancelled": "{} cancelled annotation(s) are left out.",
        "unlabelled": "{} task(s) without a choice are left out.",
        "verified": "{} task(s) have a verified label (ground truth): it is the truth, and a candidate only if "
        "there is no other annotation.",
    }
    notes = tuple(text.format(counts[name]) for name, text in told.items() if counts[name])
    return (
        notes
        if key == "annotations"
        else (*notes, "there are no annotations: the candidates are the predictions.")
    )
