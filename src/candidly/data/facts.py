"""What `candidly inspect` says about a file: facts as plain values, and their rendering."""

from __future__ import annotations

import hashlib
import shlex
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from candidly.agreement import agreement_facts
from candidly.blocks import row_blocks
from candidly.console.terminal import counted, grid, printable
from candidly.data.dataset import NO_CLASS, UNKNOWN, Dataset, Examples
from candidly.sets import CandidateSets

if TYPE_CHECKING:
    from rich.console import RenderableType

# Classes, pairs and names that are printed; JSON has all classes.
SHOWN = 20
# Separators that cells of several candidates may have.
SEPARATORS = (",", ";", "|", "/", "+", "&", "\t")
# Sets of one input that are compared with all its others.
ROUNDS = 64
HASHED_ENTRIES = 1 << 21
# What Krippendorff's alpha from each value on means, by his own rule of thumb.
ALPHA_MEANS = (
    (0.8, "the answers are reliable"),
    (0.667, "good enough for tentative conclusions"),
    (0.2, "annotators often disagree; check the instructions and the classes"),
    (-np.inf, "little better than chance, or worse; do not rely on single answers"),
)


def collect_facts(dataset: Dataset) -> dict[str, Any]:
    """Collect what is in a dataset, and what is odd about it.

    Parameters
    ----------
    dataset : Dataset
        What `read_file` returned.

    Returns
    -------
    dict
        JSON-serialisable facts.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from candidly.data import read_file
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pets.csv"
    ...     _ = path.write_text("candidates,weight\\ncat|dog,4.1\\ndog,23.0\\n")
    ...     facts = collect_facts(read_file(path))
    >>> facts["rows"], facts["mean_set_size"], facts["full_sets"]
    (2, 1.5, 1)
    """
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
        "agreement": None if dataset.answers is None else agreement_facts(dataset.answers),
        "classes": [
            {"label": label, "rows": count} for label, count in zip(classes, counts, strict=True)
        ],
        "set_sizes": {int(size): int(count) for size, count in zip(sizes, rows, strict=True)},
        "mean_set_size": float(sets.sizes.mean()),
        "empty_sets": 0,  # a file with one is not read at all
        "full_sets": int((sets.sizes == sets.n_classes).sum()) if sets.n_classes > 1 else 0,
        "never_proposed": [
            label for label, count in zip(classes, counts, strict=True) if not count
        ],
        "similar_names": similar_names(classes),
        "joined_names": joined_names(classes),
        "duplicates": _duplicates(dataset),
        "truth": _known(dataset, dataset.truth),
        "gold": _known(dataset, dataset.gold),
        "notes": list(dataset.notes),
        "options": dataset.source.options,
    }


def _inputs(dataset: Dataset) -> dict[str, Any]:
    options = dataset.source.options
    single = options["images"] or options["text"]
    columns = [single] if single else options["features"]
    shape = list(dataset.inputs.shape[1:]) if isinstance(dataset.inputs, np.ndarray) else None
    return {"kind": dataset.kind, "columns": columns, "shape": shape, "missing": _missing(dataset)}


def _missing(dataset: Dataset) -> dict[str, Any]:
    """Count the rows of a table that lack a value, in all and per column."""
    if dataset.kind != "table":
        return {"rows": 0, "columns": {}}
    gone = dataset.inputs.isna() | (dataset.inputs == "")
    counts = {str(name): int(count) for name, count in gone.sum().items() if count}
    return {"rows": int(gone.any(axis=1).sum()), "columns": counts}


def _annotators(dataset: Dataset) -> list[dict[str, Any]]:
    if dataset.answers is None:
        return []
    answers = dataset.answers
    given = np.bincount(answers.annotator, minlength=len(answers.annotators)).tolist()
    names = answers.annotators.tolist()
    return [{"name": name, "answers": count} for name, count in zip(names, given, strict=True)]


def _known(dataset: Dataset, labels: NDArray[np.int64] | None) -> dict[str, int] | None:
    """Count true or gold labels: known, outside their sets, and of no class."""
    if labels is None:
        return None
    known = labels != UNKNOWN
    no_class = labels == NO_CLASS
    is_candidate = dataset.sets.contains(np.maximum(labels, -1))
    return {
        "known": int(known.sum()),
        "outside": int((known & ~no_class & ~is_candidate).sum()),
        "no_class": int(no_class.sum()),
    }


def similar_names(classes: list[Any]) -> list[list[Any]]:
    """Group names that differ by nothing but case and spaces."""
    groups: dict[str, list[Any]] = {}
    for label in classes:
        if isinstance(label, str):
            groups.setdefault("".join(label.split()).casefold(), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def joined_names(classes: list[Any]) -> list[dict[str, str]]:
    """Find names that a separator joins of other classes: cells of several candidates, perhaps."""
    names = {label for label in classes if isinstance(label, str)}
    found = []
    for label in sorted(names):
        for sep in SEPARATORS:
            parts = [part.strip() for part in label.split(sep)]
            if len(parts) > 1 and names.issuperset(parts):
                found.append({"label": label, "sep": sep})
                break
    return found


# ---- duplicates


def _duplicates(dataset: Dataset) -> dict[str, Any] | None:
    """Count exact duplicates of inputs, and find pairs of them whose sets share no label."""
    if dataset.kind == "none":
        return None
    _, group, counts = np.unique(input_hashes(dataset), return_inverse=True, return_counts=True)
    pairs = sorted(disjoint_pairs(dataset.sets, group))
    ids = [[_plain(dataset.ids[row]) for row in pair] for pair in pairs[:SHOWN]]
    return {"rows": int(counts[counts > 1].sum()), "disjoint": len(pairs), "disjoint_ids": ids}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def disjoint_pairs(sets: CandidateSets, group: NDArray[Any]) -> list[tuple[int, int]]:
    """Find two rows per group whose sets share no label, the earlier row first.

    Each round compares the smallest set of a group with the group's others, then drops it, and
    with it the sets too large to be disjoint from any. After `ROUNDS` rounds the search ends: it
    takes time linear in the rows, and may miss a pair in a group of more different sets.
    """
    sizes = sets.sizes
    rows = _distinct_rows(sets, group)
    pairs: list[tuple[int, int]] = []
    for _ in range(ROUNDS):
        rows = rows[_in_company(group[rows])]
        if not len(rows):
            break
        smallest = _starts(group[rows])
        number = np.cumsum(smallest) - 1
        apart = np.flatnonzero(~_meets_smallest(sets[rows], smallest, number))
        found, first = np.unique(number[apart], return_index=True)
        partners = zip(rows[smallest][found].tolist(), rows[apart[first]].tolist(), strict=True)
        pairs += [(min(pair), max(pair)) for pair in partners]
        small_enough = sizes[rows] + sizes[rows[smallest]][number] <= sets.n_classes
        rows = rows[~smallest & small_enough & ~np.isin(number, found)]
    return pairs


def _distinct_rows(sets: CandidateSets, group: NDArray[Any]) -> NDArray[Any]:
    """Find the first row of each distinct set of a group, sorted by group, size and row."""
    codes = np.random.default_rng(0).integers(2**63, size=sets.n_classes, dtype=np.uint64)
    pattern = np.add.reduceat(codes[sets.indices], sets.indptr[:-1])
    order = np.lexsort((pattern, group))
    rows = order[_starts(group[order]) | _starts(pattern[order])]
    return rows[np.lexsort((rows, sets.sizes[rows], group[rows]))]


def _starts(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark where a run of equal values begins."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


def _in_company(sorted_group: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark entries of groups that have another one."""
    first = _starts(sorted_group)
    last = np.append(first[1:], True)[: len(first)]
    return ~(first & last)


def _meets_smallest(
    sets: CandidateSets, smallest: NDArray[np.bool_], number: NDArray[Any]
) -> NDArray[np.bool_]:
    """Mark sets that share a label with the smallest set of their group."""
    labels = np.repeat(number, sets.sizes) * sets.n_classes + sets.indices
    shared = np.isin(labels, labels[np.repeat(smallest, sets.sizes)])
    return np.logical_or.reduceat(shared, sets.indptr[:-1])


def input_hashes(examples: Examples) -> NDArray[Any]:
    """Compute one value per input, the same for the same input.

    Parameters
    ----------
    examples : Examples
        Examples with inputs.

    Returns
    -------
    ndarray of shape (n,)
    """
    import pandas as pd

    if examples.kind == "table":
        return pd.util.hash_pandas_object(examples.inputs, index=False).to_numpy()
    if examples.kind == "text":
        return examples.inputs.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    if isinstance(examples.inputs, np.ndarray):
        return _row_hashes(examples.inputs.reshape(len(examples), -1))
    digests = [
        hashlib.blake2b(path.read_bytes(), digest_size=8).digest() for path in examples.inputs
    ]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def _row_hashes(matrix: NDArray[Any]) -> NDArray[np.uint64]:
    """Sum the entries' bits times random odd numbers, modulo 2^64."""
    n, d = matrix.shape
    numbers = np.random.default_rng(0).integers(2**63, size=d, dtype=np.uint64)
    factors = numbers * np.uint64(2) + np.uint64(1)
    hashes = np.empty(n, dtype=np.uint64)
    for block in row_blocks(n, d, HASHED_ENTRIES):
        bits = np.ascontiguousarray(matrix[block]).view(f"u{matrix.itemsize}")
        hashes[block] = bits.astype(np.uint64) @ factors
    return hashes


# ---- rendering


def render_facts(facts: dict[str, Any], given: dict[str, Any]) -> RenderableType:
    """Render facts as text, with colours on a terminal.

    Parameters
    ----------
    facts : dict
        What `collect_facts` returned.
    given : dict
        The options that the file was read with.

    Returns
    -------
    rich renderable
    """
    from rich.console import Group
    from rich.text import Text

    n = facts["rows"]
    largest = sorted(facts["classes"], key=lambda entry: -entry["rows"])
    classes = {printable(entry["label"]): entry["rows"] for entry in largest[:SHOWN]}
    more = f", the {SHOWN} largest" if len(largest) > SHOWN else ""
    size = f"{counted(n, 'row')}, {counted(len(largest), 'class', 'classes')}"
    sizes = {str(size): count for size, count in list(facts["set_sizes"].items())[:SHOWN]}
    parts = [
        Text(f"{printable(facts['file'])}: {facts['format']}, {size}", style="bold"),
        *(Text(f"  {line}") for line in _summary(facts)),
        Text(),
        Text(f"Rows that have the class as a candidate{more}", style="bold"),
        _bars(classes, n),
        Text(),
        Text(f"Size of the sets ({facts['mean_set_size']:.2f} on average)", style="bold"),
        _bars(sizes, n),
    ]
    if remarks := _remarks(facts):
        parts += [Text(), Text("Look at this", style="bold yellow")]
        parts += [Text(f"  {line}") for line in remarks]
    return Group(*parts, Text(), Text("Next", style="bold"), Text(f"  {_command(facts, given)}"))


def _command(facts: dict[str, Any], given: dict[str, Any]) -> str:
    """Write the next command, with the options that were given here."""
    chosen = [
        (name, value)
        for name, value in given.items()
        if value is not None and (name, value) != ("sep", "|")
    ]
    options = [part for name, value in chosen for part in (_flag(name), str(value))]
    if facts["inputs"]["kind"] == "none":
        command = ["audit", facts["file"], *options, "--probs", "P"]
    else:
        command = ["fit", facts["file"], *options]
    return printable(shlex.join(["candidly", *command, "--out", "run"]))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _bars(counts: dict[str, int], n: int) -> RenderableType:
    rows = [
        (f"  {k}", f"{v:,}", f"{100 * v / n:.1f}%", "█" * round(30 * v / n))
        for k, v in counts.items()
    ]
    return grid(rows, "lrrl")


def _summary(facts: dict[str, Any]) -> list[str]:
    inputs = facts["inputs"]
    options = facts["options"]
    truth = facts["truth"]
    gold = facts["gold"]
    columns = [printable(name) for name in inputs["columns"][:8]]
    rest = len(inputs["columns"]) - len(columns)
    more = f" and {rest} more" if rest else ""
    detail = f" from {', '.join(columns)}{more}" if columns else ""
    shape = f" of shape {tuple(inputs['shape'])}" if inputs["shape"] else ""
    lines = [f"inputs      {inputs['kind']}{detail}{shape}"]
    if options["labels"]:
        lines.append(f"candidates  from {', '.join(map(printable, options['labels']))}")
    if facts["annotators"]:
        given = sum(entry["answers"] for entry in facts["annotators"])
        lines.append(f"annotators  {len(facts['annotators'])}, who gave {counted(given, 'answer')}")
    if facts["agreement"] and facts["agreement"]["rows"]:
        first, *others = _agreement(facts["agreement"])
        lines += [f"agreement   {first}", *(f"            {line}" for line in others)]
    if truth is not None and truth["known"]:
        lines.append(
            f"truth       known of {counted(truth['known'], 'row')}: {truth['outside']:,} outside "
            f"their sets, {truth['no_class']:,} of no class (only used to evaluate)"
        )
    if gold is not None:
        lines.append(
            f"gold        {counted(gold['known'], 'row')}: {gold['outside']:,} outside their sets, "
            f"{gold['no_class']:,} of no class (taken as certain, not evaluated)"
        )
    return lines


def _agreement(found: dict[str, Any]) -> list[str]:
    """Say how well annotators agree where a row has several answers."""
    rows = counted(found["rows"], "row has", "rows have")
    lines = [f"{rows} several answers; all agree in {100 * found['unanimous']:.1f}% of them"]
    if found["alpha"] is not None:
        meaning = next(text for least, text in ALPHA_MEANS if found["alpha"] >= least)
        lines.append(f"Krippendorff's alpha {found['alpha']:.2f} (1 is full agreement): {meaning}")
    if found["lowest"] is not None:
        pairs = [found["lowest"]]
        if found["highest"] != found["lowest"]:
            pairs.append(found["highest"])
        names = ("lowest", "highest") if len(pairs) > 1 else ("only pair",)
        shown = ", ".join(f"{name} {_pair(pair)}" for name, pair in zip(names, pairs, strict=True))
        lines.append(f"Cohen's kappa: {shown}")
    return lines


def _pair(entry: dict[str, Any]) -> str:
    """Show the kappa of two annotators."""
    who = f"{printable(entry['first'])} and {printable(entry['second'])}"
    return f"{entry['kappa']:.2f} ({who}, {counted(entry['rows'], 'row')})"


def _remarks(facts: dict[str, Any]) -> list[str]:
    """List what a careful person would want to know before training."""
    lines = _refusals(facts)
    if full := facts["full_sets"]:
        lines.append(f"{counted(full, 'set holds', 'sets hold')} all classes, which says nothing.")
    if names := facts["never_proposed"]:
        shown = ", ".join(map(printable, names[:SHOWN]))
        rest = ", ..." if len(names) > SHOWN else ""
        lines.append(f"nobody proposed {len(names)} of the classes: {shown}{rest}.")
    for group in facts["similar_names"][:SHOWN]:
        lines.append(
            f"these names differ by case or space only: {', '.join(repr(name) for name in group)}."
        )
    for entry in facts["joined_names"][:SHOWN]:
        parts = " and ".join(repr(part.strip()) for part in entry["label"].split(entry["sep"]))
        hint = f"if it is several candidates, read the file with --sep {entry['sep']!r}"
        lines.append(f"{entry['label']!r} is one class, but {parts} are classes, too: {hint}.")
    if (missing := facts["inputs"]["missing"])["rows"]:
        lines.append(_gaps(missing))
    duplicates = facts["duplicates"]
    if duplicates and duplicates["disjoint"]:
        pairs = ", ".join(
            " and ".join(printable(i) for i in pair) for pair in duplicates["disjoint_ids"][:5]
        )
        again = counted(duplicates["disjoint"], "input occurs", "inputs occur")
        lines.append(f"{again} again with a set that shares no label; ids {pairs}.")
    return [*lines, *facts["notes"]]


def _refusals(facts: dict[str, Any]) -> list[str]:
    """List what `fit` will refuse."""
    lines = []
    if facts["rows"] == 1:
        lines.append("there is only one row: `fit` needs at least two.")
    if len(facts["classes"]) == 1:
        lines.append(
            "there is only one class: `fit` and `audit` need at least two. Name all by --classes."
        )
    return lines


def _gaps(missing: dict[str, Any]) -> str:
    """Say where values of a table are missing, and what `fit` does about it."""
    most = sorted(missing["columns"].items(), key=lambda item: -item[1])[:5]
    named = ", ".join(f"{printable(name)} {count:,}" for name, count in most)
    rest = ", ..." if len(missing["columns"]) > len(most) else ""
    rows = counted(missing["rows"], "row lacks", "rows lack")
    return (
        f"{rows} a value ({named}{rest}): `fit` takes the mean of a number, and a category of its "
        "own for a word."
    )
