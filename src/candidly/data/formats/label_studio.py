"""Label Studio's JSON export: tasks whose annotations hold choices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from candidly.checks import one_of
from candidly.data.columns.roles import GROUND_TRUTH, LABELS, TRUTH
from candidly.data.columns.scan import Scan, scan_table
from candidly.data.columns.tables import build_dataset
from candidly.data.dataset import Correction, Dataset, Examples, Options
from candidly.data.formats.base import Format
from candidly.data.formats.records import (
    JsonArray,
    are_objects,
    dump_objects,
    load_objects,
    objects_table,
)
from candidly.errors import InputError

UNKNOWN_ANNOTATOR = "(unknown)"
MODEL_VERSION = "candidly"
LONGEST_SHOWN = 60
# What the user is informed of, by the name of a count.
NOTES = {
    "cancelled": "{} cancelled annotation(s) are left out.",
    "unlabelled": "{} task(s) without a choice are left out.",
    "verified": "{} task(s) have a verified label (ground truth): it is the truth, and a candidate "
    "only if there is no other annotation.",
}
GOLD_NOTE = (
    "verified labels are gold: they are certain, train the model, and are not evaluated. To only "
    "evaluate by them, use --truth label."
)


class LabelStudio(Format):
    """Label Studio's tasks: an array of objects, each with the object `data`.

    Corrected sets are added as predictions; the annotations stay as they are.
    """

    name = "label-studio"
    suffixes = (".json",)

    def recognise(self, path: Path, head: bytes) -> bool:
        if not JsonArray().recognise(path, head):
            return False
        # A quick look first: most arrays of objects need not be parsed a second time.
        if b'"data"' not in head and b'"data"' not in path.read_bytes():
            return False
        return all(isinstance(task.get("data"), dict) for task in load_objects(path))

    def read(self, path: Path, options: Options, labelled: bool) -> Dataset | Examples:
        scan = _scan_answers(path, options) if labelled else _scan_tasks(path, options)
        annotator = "annotator" if labelled else None
        of_columns = options.with_values(labels=(), id="id", annotator=annotator)
        if labelled and options.gold is None and GROUND_TRUTH in scan.schema.names:
            of_columns = of_columns.with_values(gold=GROUND_TRUTH)
        return build_dataset(scan, of_columns, labelled)

    def write(self, correction: Correction, path: Path) -> None:
        dataset, scores = correction.dataset, correction.scores
        source = dataset.source.path
        tasks = load_objects(source)
        tag = _find_tag(source, tasks, tuple(dataset.source.options["labels"]))
        named = (item for item in _named_results(source, tasks) if item["from_name"] == tag)
        common = {"from_name": tag, "to_name": next(named).get("to_name"), "type": "choices"}
        rows = {str(name): row for row, name in enumerate(dataset.ids.tolist())}
        for number, task in enumerate(tasks, 1):
            row = rows.get(str(task.get("id", number)))
            if row is None or not correction.keep[row]:
                continue
            result = common | {"value": {"choices": list(correction.sets[row])}}
            score = {} if scores is None else {"score": round(float(scores[row]), 6)}
            prediction = {"model_version": MODEL_VERSION, **score, "result": [result]}
            task["predictions"] = [*(task.get("predictions") or []), prediction]
        path.write_text(dump_objects(tasks), encoding="utf-8")


# ---- reading


def _scan_tasks(path: Path, options: Options) -> Scan:
    """Make a table with one row per task, without candidates."""
    tasks = load_objects(path)
    rows = [{"id": task.get("id", number), **_data(task)} for number, task in enumerate(tasks, 1)]
    return scan_table(
        path,
        LabelStudio.name,
        objects_table(path, rows),
        "task {} (counting from 1)",
        tag=options.labels[0] if options.labels else None,
    )


def _scan_answers(path: Path, options: Options) -> Scan:
    """Make a table with one row per annotation. `options.labels` names the tag, if any."""
    tasks = load_objects(path)
    tag = _find_tag(path, tasks, options.labels)
    key = "annotations" if any(task.get("annotations") for task in tasks) else "predictions"
    counts = dict.fromkeys(NOTES, 0)
    rows = []
    for number, task in enumerate(tasks, 1):
        answers = _answers(path, number, task, key, tag, counts)
        counts["unlabelled"] += not answers
        rows += [{"id": task.get("id", number), **answer, **_data(task)} for answer in answers]
    if not rows:
        raise InputError(
            f"{path}: no task has an annotation with a choice. Export the labelled tasks as JSON."
        )
    notes = [text.format(counts[name]) for name, text in NOTES.items() if counts[name]]
    may_be_gold = options.gold in (None, GROUND_TRUTH) and options.truth != TRUTH
    if may_be_gold and any(row[TRUTH] is not None for row in rows):
        rows = [row | {GROUND_TRUTH: row[TRUTH]} for row in rows]
        notes.append(GOLD_NOTE)
    if key == "predictions":
        notes.append("there are no annotations: the candidates are the predictions.")
    return scan_table(
        path,
        LabelStudio.name,
        objects_table(path, rows),
        "annotation {} (in order)",
        tuple(notes),
        tag,
    )


def _data(task: dict[str, Any]) -> dict[str, Any]:
    """Return the task's own fields; names that our columns have get a prefix."""
    ours = ("id", "annotator", LABELS, TRUTH, GROUND_TRUTH)
    return {f"data.{name}" if name in ours else name: value for name, value in task["data"].items()}


def _find_tag(path: Path, tasks: list[dict[str, Any]], given: tuple[str, ...]) -> str:
    """Find the name of the choices that are the candidates."""
    results = _named_results(path, tasks)
    names = sorted({item["from_name"] for item in results if item.get("type") == "choices"})
    if not names:
        raise InputError(
            f"{path}: no annotation holds choices. Only classification by <Choices> is supported."
        )
    if given:
        return one_of(given[0], names, f"{path}: the choices")
    if len(names) > 1:
        raise InputError(
            f"{path} has several choices: {', '.join(names)}. Name one by --labels, as in "
            f"--labels {names[0]}."
        )
    return names[0]


def _named_results(path: Path, tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield all results of all annotations and predictions that have a name."""
    for number, task in enumerate(tasks, 1):
        for key in ("annotations", "predictions"):
            for entry in _entries(path, number, task, key):
                yield from (item for item in _results(path, number, entry) if "from_name" in item)


def _entries(path: Path, number: int, task: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the annotations or predictions of a task."""
    found = task.get(key) or []
    if not are_objects(found):
        raise _odd_task(path, number, f"{key!r} is {_shown(found)}; expected a list of objects")
    return found


def _results(path: Path, number: int, entry: dict[str, Any]) -> list[dict[str, Any]]:
    found = entry.get("result") or []
    if not are_objects(found):
        raise _odd_task(path, number, f"'result' is {_shown(found)}; expected a list of objects")
    for item in found:
        name = item.get("from_name", "")
        if not isinstance(name, str):
            raise _odd_task(path, number, f"'from_name' is {_shown(name)}; expected text")
    return found


def _odd_task(path: Path, number: int, what: str) -> InputError:
    return InputError(
        f"{path}, task {number} (counting from 1): {what}, as Label Studio exports it."
    )


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def _answers(
    path: Path, number: int, task: dict[str, Any], key: str, tag: str, counts: dict[str, int]
) -> list[dict[str, Any]]:
    """Make the rows of a task: {annotator, candidates, label}.

    A verified label is the truth; it is the candidate set, too, if there is no other annotation.
    """
    given = []
    verified = []
    for entry in _entries(path, number, task, key):
        choices = _choices(path, number, entry, tag)
        if entry.get("was_cancelled"):
            counts["cancelled"] += 1
        elif choices and entry.get("ground_truth"):
            verified.append((_annotator(entry), choices))
        elif choices:
            given.append((_annotator(entry), choices))
    counts["verified"] += bool(verified)
    single = [choices[0] for _, choices in verified if len(choices) == 1]
    truth = single[0] if single else None
    return [
        {"annotator": name, LABELS: choices, TRUTH: truth} for name, choices in given or verified
    ]


def _choices(path: Path, number: int, entry: dict[str, Any], tag: str) -> list[str]:
    choices: list[str] = []
    for item in _results(path, number, entry):
        if item.get("from_name") != tag:
            continue
        value = item.get("value")
        found = value.get("choices") if isinstance(value, dict) else None
        if not isinstance(found, list) or not all(isinstance(choice, str) for choice in found):
            expected = 'expected {"choices": ["...", ...]}'
            raise _odd_task(path, number, f"the value of {tag!r} is {_shown(value)}; {expected}")
        choices += found
    return choices


def _annotator(entry: dict[str, Any]) -> str:
    """Name the annotator: a number, an object with an e-mail or id; or the model's version."""
    name = entry.get("completed_by", entry.get("model_version"))
    if isinstance(name, dict):
        name = name.get("email") or name.get("id")
    return UNKNOWN_ANNOTATOR if name in (None, "") else str(name)
