"""Write corrected candidate sets in the format they came in. The input is never overwritten."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.data.arrays import MAT_NAMES, load_npz
from candidly.data.dataset import Dataset
from candidly.data.delimited import csv_writer, find_dialect, read_cells
from candidly.data.labels import is_list, is_text, split_cell
from candidly.data.matlab import load_mat, rewrite_mat
from candidly.data.records import find_tag, load_json, load_lines, task_results
from candidly.data.roles import LABELS, SCORES
from candidly.data.scan import scan_arrow, scan_parquet
from candidly.errors import InputError
from candidly.sets import CandidateSets
from candidly.storage.atomic import file_hash, write_atomically

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

FORMULA = re.compile(r"'*[=+\-@\t\r]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
MODEL = "candidly"
ENDINGS = {
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "parquet": (".parquet",),
    "arrow": (".arrow", ".feather"),
    "npz": (".npz",),
    "mat": (".mat",),
    "jsonl": (".jsonl", ".ndjson"),
    "json": (".json",),
    "label-studio": (".json",),
}  # of names by format; that of the input will do, too
BLOCK = 1 << 16  # rows that are plain values at a time


def write_sets(
    dataset: Dataset,
    sets: CandidateSets,
    path: str | Path,
    *,
    keep: NDArray[np.bool_] | None = None,
    scores: NDArray[Any] | None = None,
) -> Path:
    """Write the file that `dataset` was read from once more, with `sets` in place of its candidates.

    keep: (n,) rows to write; None: all. scores: (n,) for Label Studio, whose tasks get the sets as predictions.
    Rows of several annotators become one row with the column `candidates`.
    """
    path = Path(path)
    if len(sets) != len(dataset):
        raise InputError(
            f"{len(sets)} sets for the {len(dataset)} rows of {dataset.source.path}: expected one a row."
        )
    _refuse(dataset, path)
    mask = np.ones(len(dataset), dtype=bool) if keep is None else np.asarray(keep, dtype=bool)
    if mask.shape != (len(dataset),):
        raise InputError(f"keep is of shape {mask.shape}, but there are {len(dataset)} rows.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write = _WRITERS.get(dataset.source.format, partial(_write_tasks, scores=scores))
    write_atomically(path, lambda temporary: write(dataset, sets, mask, temporary))
    return path


def _refuse(dataset: Dataset, path: Path) -> None:
    """Neither the input nor anything else is overwritten; an input that changed is not mixed with old sets; a name
    must not promise another format."""
    source = dataset.source
    endings = ENDINGS[source.format]
    if path.suffix.lower() not in (*endings, source.path.suffix.lower()):
        better = path.with_suffix(endings[0]).name
        raise InputError(
            f"{path} would be of the format {source.format}, as {source.path} is: call it {better!r}."
        )
    if path.exists() and source.path.exists() and path.samefile(source.path):
        raise InputError(f"{path} is the input, which is never overwritten: choose another name.")
    if path.exists() or path.is_symlink():
        raise InputError(f"{path} exists already: choose another name, or remove it first.")
    if not source.path.is_file():
        raise InputError(
            f"{source.path} is missing: the file the sets were read from is needed to write them back."
        )
    if file_hash(source.path) != source.sha256:
        raise InputError(f"{source.path} has changed since it was read: read it again.")


# ---- CSV and TSV


def write_csv(frame: pd.DataFrame, path: str | Path, delimiter: str = ",") -> None:
    """A table as CSV in UTF-8 that spreadsheets show and never run: see `harmless`."""
    write_atomically(
        Path(path),
        lambda temporary: _write_rows(temporary, list(frame), _plain_rows(frame), delimiter),
    )


def _plain_rows(frame: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """The rows as plain values, which take much more memory than the table: block by block."""
    for start in range(0, len(frame), BLOCK):
        part = frame.iloc[start : start + BLOCK]
        columns = [
            part[name].astype(object).where(part[name].notna(), "").tolist() for name in part
        ]
        yield from zip(*columns, strict=True)


def _write_rows(
    path: Path, names: list[Any], rows: Any, delimiter: str, encoding: str = "utf-8"
) -> None:
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv_writer(file, delimiter)
        writer.writerow([harmless(name) for name in names])
        writer.writerows([harmless(cell) for cell in row] for row in rows)


def harmless(cell: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe in front; reading takes it off again."""
    if isinstance(cell, str) and FORMULA.match(cell) and not NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def _write_delimited(
    dataset: Dataset, sets: CandidateSets, keep: NDArray[np.bool_], path: Path
) -> None:
    import pyarrow as pa

    source = dataset.source.path
    dialect = find_dialect(source)
    table, name = _one_row_each(dataset, read_cells(source, dialect, dialect.names), pa.string())
    cells = [joined(labels, dataset.source.options["sep"]) for labels in sets]
    columns = [
        cells if column == name else table.column(column).to_pylist()
        for column in table.schema.names
    ]
    rows = (
        row for row, kept in zip(zip(*columns, strict=True), keep.tolist(), strict=True) if kept
    )
    with source.open("rb") as file:
        marked = file.read(3) == codecs.BOM_UTF8
    encoding = dialect.encoding if marked or dialect.encoding == "utf-16" else "utf-8"
    _write_rows(path, table.schema.names, rows, dialect.delimiter, encoding)


def joined(labels: tuple[Any, ...], sep: str | None) -> str:
    """ "cat|dog"; or a JSON array where that would not be read back the same, or start a formula."""
    names = [str(label) for label in labels]
    text = (sep or "|").join(names)
    if FORMULA.match(text) or text.startswith("'"):
        return json.dumps(names, ensure_ascii=False)
    try:
        same = split_cell(text, sep) == names
    except ValueError:
        same = False
    return text if same else json.dumps(names, ensure_ascii=False)


def _one_row_each(dataset: Dataset, table: pa.Table, kind: pa.DataType) -> tuple[pa.Table, str]:
    """The table with one row an example, and the name of its column of candidates; answers make room for one."""
    import pyarrow as pa

    if dataset.answers is None:
        return table, dataset.source.options["labels"][0]
    if dataset.source.options["annotator"] is not None:
        table = table.take(
            pa.array(_first_rows(table.column(dataset.source.options["id"]).to_pylist()))
        )
    table = table.select([name for name in table.schema.names if name not in _dropped(dataset)])
    return table.append_column(pa.field(LABELS, kind), pa.nulls(len(table), kind)), LABELS


def _first_rows(ids: list[Any]) -> list[int]:
    """Where each id stands first."""
    first: dict[Any, int] = {}
    for row, name in enumerate(ids):
        first.setdefault(name, row)
    return list(first.values())


def _dropped(dataset: Dataset) -> set[str | None]:
    """What corrected sets put out of date: the answers of annotators, and scores of single candidates."""
    options = dataset.source.options
    answers = (
        {LABELS, *options["labels"], options["annotator"]} if dataset.answers is not None else set()
    )
    return answers | ({SCORES} if dataset.scores is not None else set())


# ---- Parquet and Arrow


def _write_columnar(
    dataset: Dataset, sets: CandidateSets, keep: NDArray[np.bool_], path: Path
) -> None:
    """Batch by batch, so that columns which were never needed do not fill the memory."""
    import pyarrow as pa

    batches, name, kind = _columns_of(dataset, sets)
    writer, row = None, 0
    for batch in batches:
        part = slice(row, row + batch.num_rows)
        at = batch.schema.get_field_index(name)
        column = _arrow_sets(sets[part], kind, dataset.source.options["sep"])
        corrected = batch.set_column(at, pa.field(name, kind), column).drop_columns(
            [n for n in batch.schema.names if n in _dropped(dataset) and n != name]
        )
        writer = writer or _columnar_writer(path, dataset.source.format, corrected.schema)
        writer.write_batch(corrected.filter(pa.array(keep[part])))
        row = part.stop
    if writer is not None:
        writer.close()


def _columns_of(
    dataset: Dataset, sets: CandidateSets
) -> tuple[Iterator[pa.RecordBatch], str, pa.DataType]:
    """The batches of the file, one row an example; the column of candidates, and its type in the new file."""
    import pyarrow as pa

    source = dataset.source
    scan = scan_parquet(source.path) if source.format == "parquet" else scan_arrow(source.path)
    batches = scan.plain_batches()
    if dataset.answers is not None:
        kind = pa.list_(pa.int64() if sets.classes.dtype.kind in "iu" else pa.string())
        table, name = _one_row_each(dataset, pa.Table.from_batches(batches), kind)
        return iter(table.to_batches()), name, kind
    name = source.options["labels"][0]
    kind = scan.schema.field(name).type
    if is_text(kind):
        return batches, name, pa.string()
    return batches, name, pa.list_(kind.value_type if is_list(kind) else kind)


def _arrow_sets(sets: CandidateSets, kind: pa.DataType, sep: str | None) -> pa.Array:
    """The sets as a column; whole numbers that stand for names are positions in the class list."""
    import pyarrow as pa

    if not is_list(kind):
        return pa.array([joined(labels, sep) for labels in sets], pa.string())
    positions = pa.types.is_integer(kind.value_type) and sets.classes.dtype.kind not in "iu"
    labels = pa.array(range(sets.n_classes)) if positions else pa.array(sets.classes.tolist())
    values = labels.take(pa.array(sets.indices)).cast(kind.value_type)
    return pa.ListArray.from_arrays(pa.array(sets.indptr, pa.int32()), values).cast(kind)


def _columnar_writer(path: Path, form: str, schema: pa.Schema) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return (
        pq.ParquetWriter(path, schema) if form == "parquet" else pa.ipc.new_file(str(path), schema)
    )


# ---- arrays


def _write_npz(dataset: Dataset, sets: CandidateSets, keep: NDArray[np.bool_], path: Path) -> None:
    arrays = load_npz(dataset.source.path)
    arrays |= {name: arrays[name][keep] for name in ("X", "y", "id") if name in arrays}
    kept = sets[keep]
    if "S" in arrays:
        arrays["S"] = kept.dense().astype(arrays["S"].dtype)
    else:
        arrays |= {"indptr": kept.indptr, "indices": kept.indices}
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _write_mat(dataset: Dataset, sets: CandidateSets, keep: NDArray[np.bool_], path: Path) -> None:
    """Stored as it was: (c, n) or (n, c), sparse or dense."""
    found = load_mat(dataset.source.path, MAT_NAMES)
    lying = found["partial_target"].shape[0] != len(dataset)
    for name in {"data", "target"} & found.keys():
        across = name == "target" and lying
        matrix = sparse.csc_array(found[name]) if sparse.issparse(found[name]) else found[name]
        found[name] = matrix[:, keep] if across else matrix[keep]
    target = sets[keep].dense().astype(np.float64)
    target = target.T if lying else target
    found["partial_target"] = (
        sparse.csc_array(target) if sparse.issparse(found["partial_target"]) else target
    )
    rewrite_mat(dataset.source.path, path, found)


# ---- JSON


def _write_json(dataset: Dataset, sets: CandidateSets, keep: NDArray[np.bool_], path: Path) -> None:
    """Objects as they were, a line each or in an array, with other candidates."""
    source, options = dataset.source, dataset.source.options
    rows = load_lines(source.path) if source.format == "jsonl" else load_json(source.path)
    if options["annotator"] is not None:
        rows = [rows[i] for i in _first_rows([row[options["id"]] for row in rows])]
    name = LABELS if dataset.answers is not None else options["labels"][0]
    gone = _dropped(dataset)
    written = []
    for row, labels in zip(rows, sets, strict=True):
        cell = joined(labels, options["sep"]) if isinstance(row.get(name), str) else list(labels)
        written.append({key: value for key, value in row.items() if key not in gone} | {name: cell})
    chosen = [row for row, kept in zip(written, keep.tolist(), strict=True) if kept]
    if source.format == "jsonl":
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen)
    else:
        text = json.dumps(chosen, ensure_ascii=False, indent=2) + "\n"
    path.write_text(text, encoding="utf-8")


def _write_tasks(
    dataset: Dataset,
    sets: CandidateSets,
    keep: NDArray[np.bool_],
    path: Path,
    scores: NDArray[Any] | None,
) -> None:
    """Label Studio's tasks, each with a prediction more; its annotations stay as they are."""
    source = dataset.source
    tasks = load_json(source.path)
    tag = find_tag(source.path, tasks, tuple(source.options["labels"]))
    results = (
        item
        for number, task in enumerate(tasks, 1)
        for item in task_results(source.path, number, task)
    )
    target = next(item.get("to_name") for item in results if item["from_name"] == tag)
    rows = {str(name): row for row, name in enumerate(dataset.ids.tolist())}
    for number, task in enumerate(tasks, 1):
        row = rows.get(str(task.get("id", number)))
        if row is None or not keep[row]:
            continue
        result = {
            "from_name": tag,
            "to_name": target,
            "type": "choices",
            "value": {"choices": list(sets[row])},
        }
        score = {} if scores is None else {"score": round(float(scores[row]), 6)}
        task["predictions"] = [
            *(task.get("predictions") or []),
            {"model_version": MODEL, **score, "result": [result]},
        ]
    path.write_text(json.dumps(tasks, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


_WRITERS: dict[str, Callable[[Dataset, CandidateSets, NDArray[np.bool_], Path], None]] = {
    "csv": _write_delimited,
    "tsv": _write_delimited,
    "parquet": _write_columnar,
    "arrow": _write_columnar,
    "npz": _write_npz,
    "mat": _write_mat,
    "jsonl": _write_json,
    "json": _write_json,
}
