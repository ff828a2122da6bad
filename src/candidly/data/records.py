"""JSON: lines of objects, an array of objects, and Label Studio's tasks, as tables of arrow columns."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from candidly.checks import one_of
from candidly.data.dataset import Options
from candidly.data.roles import LABELS, TRUTH
from candidly.data.scan import Scan, from_table
from candidly.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

NOBODY = "(unknown)"


def read_json_lines(path: Path) -> Scan:
    """One object a line; blank lines are skipped."""
    return from_table(path, "jsonl", _table(load_lines(path)), "object {} (counting from 1)")


def load_lines(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    number = 0
    try:
        with path.open("rb") as file:
            for line in file:
                number += 1
                if line.strip():
                    found.append(json.loads(line))
                    if not isinstance(found[-1], dict):
                        raise ValueError("no object {...}")
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}, line {number}: {error}. Expected one JSON object a line, in UTF-8.") from None
    return found


def load_json(path: Path) -> list[dict[str, Any]]:
    """An array of objects."""
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}).") from None
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise InputError(f"{path}: expected an array of objects, [{{...}}, ...], such as Label Studio's JSON export.")
    if not found:
        raise InputError(f"{path} holds no rows.")
    return found


def read_json(path: Path, options: Options, labelled: bool) -> tuple[Scan, Options]:
    """Label Studio's tasks, or any array of objects; and the options that are left to apply."""
    tasks = load_json(path)
    if is_label_studio(tasks):
        return read_tasks(path, tasks, options, labelled)
    return from_table(path, "json", _table(tasks), "object {} (counting from 1)"), options


def is_label_studio(tasks: list[dict[str, Any]]) -> bool:
    """Has every object the `data` of a task?"""
    return all(isinstance(task.get("data"), dict) for task in tasks)


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """Columns, each of one type; what has several becomes text."""
    import pyarrow as pa

    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
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
        return pa.array([None if v is None else [as_text(item) for item in v] for v in values], pa.list_(pa.string()))
    return pa.array([None if value is None else as_text(value) for value in values], pa.string())


def as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# ---- Label Studio


def read_tasks(path: Path, tasks: list[dict[str, Any]], options: Options, labelled: bool) -> tuple[Scan, Options]:
    """One row an annotation, or a task if not `labelled`. `labels` names the tag (from_name), if there are several."""
    left = options.with_values(labels=(), id="id", annotator="annotator" if labelled else None)
    if not labelled:
        rows = [{"id": task.get("id", number), **_data(task)} for number, task in enumerate(tasks, 1)]
        return from_table(
            path, "label-studio", _table(rows), "task {} (counting from 1)", (), *options.labels[:1]
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
        raise InputError(f"{path}: no task has an annotation with a choice. Export the labelled tasks as JSON.")
    return from_table(path, "label-studio", _table(rows), "annotation {} (in order)", _told(counts, key), tag), left


def _data(task: dict[str, Any]) -> dict[str, Any]:
    """The task's own fields; names that are taken get a prefix."""
    taken = ("id", "annotator", LABELS, TRUTH)
    return {f"data.{name}" if name in taken else name: value for name, value in task["data"].items()}


def find_tag(path: Path, tasks: list[dict[str, Any]], given: tuple[str, ...]) -> str:
    """The name of the choices that are the candidates."""
    names = sorted(
        {item["from_name"] for task in tasks for item in task_results(task) if item.get("type") == "choices"}
    )
    if not names:
        raise InputError(f"{path}: no annotation holds choices. Only classification by <Choices> is understood.")
    if given:
        return one_of(given[0], names, f"{path}: the choices")
    if len(names) > 1:
        raise InputError(
            f"{path} has several choices: {', '.join(names)}. Say which by --labels, as in --labels {names[0]}."
        )
    return names[0]


def task_results(task: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """All results of all annotations and predictions."""
    for entry in (*(task.get("annotations") or ()), *(task.get("predictions") or ())):
        yield from (item for item in entry.get("result") or () if isinstance(item, dict) and "from_name" in item)


def _answers(
    path: Path, number: int, task: dict[str, Any], key: str, tag: str, counts: dict[str, int]
) -> list[dict[str, Any]]:
    """The rows of a task: {annotator, candidates, label}. A verified label is the truth; alone, it is the set too."""
    given, verified = [], []
    for entry in task.get(key) or ():
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
    try:
        items = [item for item in entry.get("result") or () if item.get("from_name") == name]
        return [choice for item in items for choice in item["value"]["choices"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}, task {number} (counting from 1): a result of {name!r} is not Label Studio's ({error!r})."
        ) from None


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
    return notes if key == "annotations" else (*notes, "there are no annotations: the candidates are the predictions.")
