"""What `candidly inspect` tells of a file: facts as plain values, and their rendering."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from candidly.data.dataset import NO_CLASS, UNKNOWN, Dataset, Examples
from candidly.sets import CandidateSets
from candidly.terminal import grid, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 20  # classes, pairs and names that are printed; JSON has all classes
PATTERNS = 1000  # distinct sets of one input that are compared with each other
BLOCK = 1 << 21  # entries of a matrix that are hashed together


def gather(dataset: Dataset) -> dict[str, Any]:
    """All facts, JSON-serialisable."""
    sets = dataset.sets
    counts = np.bincount(sets.indices, minlength=sets.n_classes).tolist()
    sizes, rows = np.unique(sets.sizes, return_counts=True)
    classes = sets.classes.tolist()
    return {
        "file": str(dataset.source.path),
        "format": dataset.source.format,
        "sha256": dataset.source.sha256,
        "rows": len(dataset),
        "inputs": _inputs(dataset),
        "annotators": _annotators(dataset),
        "classes": [{"label": label, "rows": count} for label, count in zip(classes, counts, strict=True)],
        "set_sizes": {int(size): int(count) for size, count in zip(sizes, rows, strict=True)},
        "mean_set_size": float(sets.sizes.mean()),
        "empty_sets": 0,  # a file with one is not read at all
        "full_sets": int((sets.sizes == sets.n_classes).sum()) if sets.n_classes > 1 else 0,
        "never_proposed": [label for label, count in zip(classes, counts, strict=True) if not count],
        "similar_names": similar_names(classes),
        "duplicates": _duplicates(dataset),
        "truth": _truth(dataset),
        "notes": list(dataset.notes),
        "options": dataset.source.options,
    }


def _inputs(dataset: Dataset) -> dict[str, Any]:
    options = dataset.source.options
    columns = (
        [options["images"]] if options["images"] else [options["text"]] if options["text"] else options["features"]
    )
    shape = list(dataset.inputs.shape[1:]) if isinstance(dataset.inputs, np.ndarray) else None
    return {"kind": dataset.kind, "columns": columns, "shape": shape}


def _annotators(dataset: Dataset) -> list[dict[str, Any]]:
    if dataset.answers is None:
        return []
    given = np.bincount(dataset.answers.annotator, minlength=len(dataset.answers.annotators)).tolist()
    names = dataset.answers.annotators.tolist()
    return [{"name": name, "answers": count} for name, count in zip(names, given, strict=True)]


def _truth(dataset: Dataset) -> dict[str, int] | None:
    """How many true labels are known, lie outside their sets, and belong to no class."""
    if dataset.truth is None:
        return None
    known, no_class = dataset.truth != UNKNOWN, dataset.truth == NO_CLASS
    inside = dataset.sets.contains(np.maximum(dataset.truth, -1))
    return {
        "known": int(known.sum()),
        "outside": int((known & ~no_class & ~inside).sum()),
        "no_class": int(no_class.sum()),
    }


def similar_names(classes: list[Any]) -> list[list[Any]]:
    """Groups of names that differ by nothing but case and spaces."""
    groups: dict[str, list[Any]] = {}
    for label in classes:
        if isinstance(label, str):
            groups.setdefault("".join(label.split()).casefold(), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


# ---- duplicates


def _duplicates(dataset: Dataset) -> dict[str, Any] | None:
    """Exact duplicates of inputs; and pairs of ids among them whose sets share no label, of each input one."""
    if dataset.kind == "none":
        return None
    _, group, counts = np.unique(input_hashes(dataset), return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)])
    pairs = []
    for number in np.flatnonzero(counts > 1).tolist():
        rows = order[starts[number] : starts[number + 1]]
        if (pair := _disjoint(dataset.sets, rows)) is not None:
            pairs.append(pair)
    ids = [[_plain(dataset.ids[row]) for row in sorted(pair)] for pair in sorted(pairs, key=min)[:SHOWN]]
    return {"rows": int(counts[counts > 1].sum()), "disjoint": len(pairs), "disjoint_ids": ids}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _disjoint(sets: CandidateSets, rows: NDArray[Any]) -> tuple[int, int] | None:
    """Two of the rows without a common candidate."""
    patterns: dict[tuple[Any, ...], int] = {}
    for row in rows.tolist():
        patterns.setdefault(sets[row], row)
        if len(patterns) == PATTERNS:
            break
    distinct = list(patterns.values())
    if len(distinct) < 2:
        return None
    mask = sets.dense(distinct).astype(np.int32)
    first, second = divmod(int((mask @ mask.T == 0).argmax()), len(distinct))
    return (distinct[first], distinct[second]) if not (mask[first] @ mask[second]) else None


def input_hashes(examples: Examples) -> NDArray[Any]:
    """(n,) one value for each input, the same for the same input."""
    import pandas as pd

    if examples.kind == "table":
        return pd.util.hash_pandas_object(examples.inputs, index=False).to_numpy()
    if examples.kind == "text":
        return examples.inputs.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    if isinstance(examples.inputs, np.ndarray):
        return _row_hashes(examples.inputs.reshape(len(examples), -1))
    digests = [hashlib.blake2b(path.read_bytes(), digest_size=8).digest() for path in examples.inputs]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def _row_hashes(matrix: NDArray[Any]) -> NDArray[np.uint64]:
    """Sums of the entries' bits times random odd numbers, modulo 2^64."""
    n, d = matrix.shape
    factors = np.random.default_rng(0).integers(2**63, size=d, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    hashes, step = np.empty(n, dtype=np.uint64), max(1, BLOCK // d)
    for start in range(0, n, step):
        bits = np.ascontiguousarray(matrix[start : start + step]).view(f"u{matrix.itemsize}")
        hashes[start : start + step] = bits.astype(np.uint64) @ factors
    return hashes


# ---- rendering


def render(facts: dict[str, Any]) -> RenderableType:
    """The facts as text; colours appear on a terminal only."""
    from rich.console import Group
    from rich.text import Text

    n = facts["rows"]
    largest = sorted(facts["classes"], key=lambda entry: -entry["rows"])
    classes = {printable(entry["label"]): entry["rows"] for entry in largest[:SHOWN]}
    more = f", the {SHOWN} largest" if len(largest) > SHOWN else ""
    sizes = {str(size): count for size, count in list(facts["set_sizes"].items())[:SHOWN]}
    parts = [
        Text(f"{printable(facts['file'])}: {facts['format']}, {n:,} rows, {len(largest)} classes", style="bold"),
        *(Text(f"  {line}") for line in _summary(facts)),
        *(Text(), Text(f"Rows that have the class as a candidate{more}", style="bold"), _bars(classes, n)),
        *(Text(), Text(f"Size of the sets ({facts['mean_set_size']:.2f} on average)", style="bold"), _bars(sizes, n)),
    ]
    if remarks := _remarks(facts):
        parts += [Text(), Text("Look at this", style="bold yellow"), *(Text(f"  {line}") for line in remarks)]
    trained = "" if facts["inputs"]["kind"] != "none" else " --probs P"
    command = f"candidly {'audit' if trained else 'fit'} {printable(facts['file'])}{trained} --out run"
    return Group(*parts, Text(), Text("Next", style="bold"), Text(f"  {command}   (and the options given here)"))


def _bars(counts: dict[str, int], n: int) -> RenderableType:
    rows = [(f"  {k}", f"{v:,}", f"{100 * v / n:.1f}%", "█" * round(30 * v / n)) for k, v in counts.items()]
    return grid(rows, "lrrl")


def _summary(facts: dict[str, Any]) -> list[str]:
    inputs, options, truth = facts["inputs"], facts["options"], facts["truth"]
    columns = [printable(name) for name in inputs["columns"][:8]]
    rest = len(inputs["columns"]) - len(columns)
    detail = f" from {', '.join(columns)}{f' and {rest} more' if rest else ''}" if columns else ""
    shape = f" of shape {tuple(inputs['shape'])}" if inputs["shape"] else ""
    lines = [f"inputs      {inputs['kind']}{detail}{shape}"]
    if options["labels"]:
        lines.append(f"candidates  from {', '.join(map(printable, options['labels']))}")
    if facts["annotators"]:
        given = sum(entry["answers"] for entry in facts["annotators"])
        lines.append(f"annotators  {len(facts['annotators'])}, who gave {given:,} answers")
    if truth is not None:
        lines.append(
            f"truth       known of {truth['known']:,} rows: {truth['outside']:,} outside their sets, "
            f"{truth['no_class']:,} of no class (only used to evaluate)"
        )
    return lines


def _remarks(facts: dict[str, Any]) -> list[str]:
    """What a careful person would want to know before training."""
    lines = []
    if facts["full_sets"]:
        lines.append(f"{facts['full_sets']:,} sets hold all classes: they say nothing.")
    if names := facts["never_proposed"]:
        shown = ", ".join(map(printable, names[:SHOWN]))
        lines.append(f"nobody proposed {len(names)} of the classes: {shown}{', ...' if len(names) > SHOWN else ''}.")
    for group in facts["similar_names"][:SHOWN]:
        lines.append(f"these names differ by case or space only: {', '.join(repr(name) for name in group)}.")
    duplicates = facts["duplicates"]
    if duplicates and duplicates["disjoint"]:
        pairs = ", ".join(" and ".join(printable(i) for i in pair) for pair in duplicates["disjoint_ids"][:5])
        lines.append(f"{duplicates['disjoint']:,} inputs occur again with a set that shares no label; ids {pairs}.")
    return [*lines, *facts["notes"]]
