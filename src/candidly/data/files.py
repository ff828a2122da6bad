"""Open a file of examples, whatever its format: by its content, and by its name where that does not tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from candidly.data.arrays import read_mat, read_npz
from candidly.data.dataset import Dataset, Examples, Options, names_of
from candidly.data.delimited import read_delimited
from candidly.data.guard import memory_limit
from candidly.data.labels import read_classes
from candidly.data.matlab import refuse_hdf5
from candidly.data.records import read_json, read_json_lines
from candidly.data.roles import AS_TEXT
from candidly.data.scan import Scan, scan_arrow, scan_parquet
from candidly.data.tables import build
from candidly.errors import InputError

MAGIC = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",
    b"PK": "npz",
    b"MATLAB": "mat",
}
REFUSED = {
    b"\x1f\x8b": "is compressed by gzip: unpack it first.",
    b"\x80\x04": "looks like a pickle, which is never loaded, for it can run code. Save the data in another format.",
    b"\x80\x05": "looks like a pickle, which is never loaded, for it can run code. Save the data in another format.",
    b"\xd0\xcf\x11\xe0": "is an old Office file: save it as CSV UTF-8.",
    b"\x93NUMPY": "is a single array: save X and S together by np.savez.",
}
METADATA = ("metadata.csv", "metadata.jsonl")


class Reading(TypedDict, total=False):
    """The options of `read_file`, which explains them."""

    labels: str | Sequence[str] | None
    id: str | None
    images: str | None
    text: str | None
    features: str | Sequence[str] | None
    classes: str | Path | Sequence[Any] | None
    annotator: str | None
    truth: str | None
    sep: str | None
    max_memory: int | str | None


def read_file(path: str | Path, **options: Unpack[Reading]) -> Dataset:
    """Read examples with candidate sets: CSV, TSV, Parquet, Arrow, NPZ, .mat, JSON lines, Label Studio, image folders.

    labels: the column(s) of candidates (Label Studio: the tag); several are annotators, and the set is their union.
    id: the column of names. images, text, features: the column(s) of the inputs, if not by name or guess. classes: a
    file with one class per line, or the names. annotator: with it, several rows may share an id. truth: true labels;
    for evaluation only. sep: separator between the candidates of a cell, "|" if not given. max_memory: refuse a file
    that needs more, in bytes or as "8GB"; by default 1 GiB or 200 times the size of the file, whichever is more.
    """
    found = _read(path, _options(options), labelled=True)
    assert isinstance(found, Dataset)
    return found


def read_examples(path: str | Path, **options: Unpack[Reading]) -> Examples:
    """Read only what is to be classified; candidates need not be there. The options are those of `read_file`."""
    return _read(path, _options(options), labelled=False)


def _options(given: Reading) -> Options:
    named: dict[str, Any] = {**given}
    named |= {name: names_of(named.get(name)) for name in ("labels", "features")}
    if (classes := named.get("classes")) is not None:
        named["classes"] = tuple(read_classes(classes))
    return Options(**named)


def _read(path: str | Path, options: Options, labelled: bool) -> Dataset | Examples:
    with memory_limit(options.max_memory):
        return _read_limited(located(Path(path)), options, labelled)


def _read_limited(path: Path, options: Options, labelled: bool) -> Dataset | Examples:
    form = find_format(path)
    if form == "npz":
        return read_npz(path, options, labelled)
    if form == "mat":
        return read_mat(path, options, labelled)
    if form == "json":
        scan, left = read_json(path, options, labelled)
        return build(scan, left, labelled)
    return build(_scan(path, form, options), options, labelled)


def _scan(path: Path, form: str, options: Options) -> Scan:
    if form == "parquet":
        return scan_parquet(path)
    if form == "arrow":
        return scan_arrow(path)
    if form == "jsonl":
        return read_json_lines(path)
    single = (options.id, options.images, options.text, options.annotator, options.truth)
    return read_delimited(path, {*AS_TEXT, *options.labels, *(name for name in single if name)})


def located(path: Path) -> Path:
    """The file; in a folder, its table."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{str(path)!r}: the name is not UTF-8, which some readers need. Rename the file."
        ) from None
    if path.is_dir():
        found = [path / name for name in METADATA if (path / name).is_file()]
        if len(found) != 1:
            raise InputError(
                f"{path} is a folder: expected one of {' or '.join(METADATA)} in it, found {len(found)}."
            )
        return found[0]
    if not path.is_file():
        raise InputError(f"{path} is missing: there is no such file.")
    return path


def find_format(path: Path) -> str:
    """csv (also for TSV), parquet, arrow, npz, mat, json or jsonl."""
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise InputError(f"{path} cannot be opened: {error.strerror}.") from error
    if not head.strip():
        raise InputError(f"{path} is empty.")
    for magic, advice in REFUSED.items():
        if head.startswith(magic):
            raise InputError(f"{path} {advice}")
    for magic, form in MAGIC.items():
        if head.startswith(magic):
            return form
    if path.suffix == ".mat" or b"\x89HDF" in (head[:4], head[512:516]):
        refuse_hdf5(path)
        return "mat"
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if path.suffix in (".json", ".jsonl", ".ndjson") or (
        start in (b"[", b"{") and path.suffix not in (".csv", ".tsv")
    ):
        return "json" if start == b"[" else "jsonl"
    return "csv"
