"""The jobs behind the command line: a file in, a RUN folder out, complete or absent.

RUN/run.json         configuration, input and its hash, versions, times
RUN/audit.parquet    one row per example: verdict, probabilities, suggestion, losses, candidates
RUN/audit.csv        the same
RUN/probs.npz        the model's probabilities of all classes, for rows it was not trained on
RUN/findings.json    what the report shows
RUN/report.html      the page
RUN/model/           of `fit` only: the net, and how inputs become its arrays
RUN/metrics.jsonl    of `fit` only: the training, epoch by epoch
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from candidly.auditing.findings import collect_findings
from candidly.auditing.posterior import probabilities
from candidly.auditing.processes import NAMES as PROCESS_NAMES
from candidly.auditing.processes.union import MOST
from candidly.auditing.verdicts import Audit
from candidly.cells import NO_CLASS_TEXT
from candidly.checks import one_of, whole
from candidly.data import Dataset, Examples, read_examples, read_file
from candidly.data.columns.roles import CONSENSUS
from candidly.data.dataset import UNKNOWN
from candidly.data.export import free_names, joined, write_csv, write_sets
from candidly.data.files import located
from candidly.data.guard import memory_limit
from candidly.data.outputs import write_probabilities
from candidly.errors import InputError, Interrupted, MissingColumnError
from candidly.report.build import FINDINGS, without_rows, write_report
from candidly.report.previews import preview_notes, previews
from candidly.sets import CandidateSets
from candidly.storage.atomic import file_hash, write_atomically
from candidly.storage.integrity import NOTE
from candidly.storage.store import Run, read_json, verify, write_json, writing

if TYPE_CHECKING:
    import pandas as pd

    from candidly.training.estimator import PartialLabelClassifier

AUDIT = "audit.parquet"
PROBS = "probs.npz"
INPUTS = ("images", "text", "features")  # options that name them
DIGITS = 6  # of the numbers in audit.csv


# ---- fit


@dataclass(frozen=True)
class Training:
    """How `fit` trains; see `PartialLabelClassifier`."""

    method: str = "auto"
    preset: str = "auto"
    settings: tuple[str, ...] = ()  # name=value, of the method
    encoder: str = "lite0"  # of images; "none": their pixels
    epochs: int | str = "auto"
    seed: int = 0
    device: str = "auto"
    folds: int = 5

    def model(self) -> PartialLabelClassifier:
        """Make the classifier; it shows its progress."""
        from candidly.methods.settings import choose_method, parse_settings
        from candidly.training.estimator import PartialLabelClassifier

        method = choose_method(self.method)
        return PartialLabelClassifier(
            method,
            preset=self.preset,
            epochs=self.epochs,
            random_state=self.seed,
            device=self.device,
            verbose=None,
            **parse_settings(method, self.settings),
        )


def fit_file(
    file: Path,
    out: Path,
    *,
    reader: dict[str, Any],
    training: Training | None = None,
    process: str = "auto",
    rows: bool = True,
) -> dict[str, Any]:
    """Train on all rows, audit each by a net that did not see it, and write RUN.

    Parameters
    ----------
    file : Path
        The examples.
    out : Path
        The RUN folder to write.
    reader : dict
        Options of `candidly.data.read_file`.
    training : Training, optional
        How to train.
    process : str, default="auto"
        How sets arise; see `candidly.audit`.
    rows : bool, default=True
        If False, findings and report hold nothing of single rows; the tables of the audit do.
        The probabilities are left out.

    Returns
    -------
    dict
        The findings.
    """
    training = training or Training()
    _check_process(process)
    job = {"job": "fit", "file": str(file), "reader": reader, "process": process}
    config = job | asdict(training)
    with writing(out, config) as run:
        from candidly.data.inputs import fit_inputs

        data = _read(file, reader)
        _refuse_process(data, process)
        model = training.model()
        began = time.time()
        transform, X = fit_inputs(data, encoder=training.encoder)
        _refuse_few(file, len(data), training.folds)
        audit = _fit_audit(model, X, data, training.folds)
        audit.process = process  # nothing is fitted before its first use
        made = {"Training": _describe(model, training.folds, len(data), time.time() - began)}
        findings = _write_findings(run, data, audit, made, model.history_, rows)
        model.write(run)
        transform.save(run.folder / "model")
        write_report(run.folder)
    return findings


def _fit_audit(model: PartialLabelClassifier, X: Any, data: Dataset, folds: int) -> Audit:
    known: dict[str, Any] = {}
    if data.answers is not None:
        known["answers"] = data.answers
    if data.gold is not None:
        known["gold"] = list(data.gold_labels())
    try:
        return model.fit_audit(X, data.sets, cv=folds, ids=data.ids, **known)
    except Interrupted:  # its message is about one training; nothing of the whole job is kept
        raise KeyboardInterrupt from None


def _read(file: Path, reader: dict[str, Any]) -> Dataset:
    data = read_file(file, **reader)
    if data.sets.n_classes < 2:
        only = data.sets.classes.tolist()[0]
        raise InputError(f"{file}: the only class is {only!r}. Name all classes with --classes.")
    return data


def _check_process(process: str) -> None:
    one_of(process, ("auto", *PROCESS_NAMES), "--process")


def _refuse_process(data: Dataset, process: str) -> None:
    """Refuse a process that cannot explain such sets, before anything is trained."""
    path = data.source.path
    widest = int(data.sets.sizes.max())
    if process in ("confusion", "annotators") and data.answers is None and widest > 1:
        raise InputError(
            f"--process {process} needs to know who said what, but {path} has one column of "
            "candidates and no annotators: name the columns of several annotators by --labels "
            "A,B, or that of their names by --annotator. For sets that join several answers, use "
            "--process union."
        )
    if process == "union" and widest > MOST:
        raise InputError(
            f"--process union explains sets of at most {MOST} candidates, but {path} has one of "
            f"{widest}: use --process auto."
        )


def _refuse_few(file: Path, n: int, folds: int) -> None:
    """Each fold needs a row."""
    if n < 2:
        raise InputError(
            f"{file} holds 1 row: expected at least 2, to train on one and judge the other."
        )
    if n < whole(folds, "folds", 2):
        raise InputError(
            f"{file} holds {n} rows, too few for {folds} folds: use --folds {n}, or add rows."
        )


# ---- audit


def audit_file(
    file: Path,
    probs: Path,
    out: Path,
    *,
    reader: dict[str, Any],
    process: str = "auto",
    rows: bool = True,
) -> dict[str, Any]:
    """Audit the rows of a file by the outputs of the user's own model, and write RUN.

    Parameters
    ----------
    file : Path
        The examples.
    probs : Path
        The outputs; see `candidly.data.outputs.read_outputs_file`.
    out : Path
        The RUN folder to write.
    reader : dict
        Options of `candidly.data.read_file`.
    process : str, default="auto"
        How sets arise; see `candidly.audit`.
    rows : bool, default=True
        If False, findings and report hold nothing of single rows; the tables of the audit do.
        The probabilities are left out.

    Returns
    -------
    dict
        The findings.
    """
    _check_process(process)
    job = {"job": "audit", "file": str(file), "reader": reader, "process": process}
    config = job | {"probs": str(probs)}
    with writing(out, config) as run:
        from candidly.data.outputs import read_outputs_file

        data = _read(file, reader)
        _refuse_process(data, process)
        with memory_limit(reader.get("max_memory")):
            values, logits = read_outputs_file(probs, data)
        form = "logits" if logits else "probabilities"
        made = {"Outputs": f"{probs.name} of another model, read as {form}"}
        features = data.inputs if data.kind == "vectors" else None
        audit = Audit(
            data.sets,
            None if logits else values,
            logits=values if logits else None,
            features=features,
            answers=data.answers,
            gold=None if data.gold is None else list(data.gold_labels()),
            process=process,
            ids=data.ids,
        )
        findings = _write_findings(run, data, audit, made, [], rows)
        write_report(run.folder)
    return findings


def _write_findings(
    run: Run,
    data: Dataset,
    audit: Audit,
    made: dict[str, str],
    history: list[dict[str, Any]],
    rows: bool,
) -> dict[str, Any]:
    """Write the findings and the tables of an audit."""
    findings = collect_findings(audit, truth=data.unseen_truth())
    findings["explanation"] = _explanation(findings)
    remarks = [*data.notes, *_gold_remarks(data)]
    if rows and (remark := _write_probs(run.folder, audit, data)):
        remarks.append(remark)
    findings |= {
        "file": data.source.path.name,
        "inputs": data.kind,
        "remarks": remarks,
        "history": [_epoch(row) for row in history],
        "made": _provenance(run, data) | made,
    }
    findings = findings if rows else without_rows(findings)
    suspects = [*findings["suspects"], *findings["open_suspects"]]
    shown = [entry["row"] for entry in suspects]
    seen = previews(data, shown)
    findings["notes"] += preview_notes(data, shown)
    for entry in suspects:
        entry["preview"] = seen[entry["row"]]
    run.note["source"] = {**asdict(data.source), "path": str(data.source.path.resolve())}
    run.note["explanation"] = findings["explanation"]
    write_json(run.folder / FINDINGS, findings)
    write_audit(run.folder, audit.table, data)
    return findings


def _explanation(findings: dict[str, Any]) -> str | None:
    """Say why there are no verdicts, if there are none."""
    if findings["reliable"]:
        return None
    reasons = " ".join(findings["notes"])
    return f"The model knows no more than chance, so there are no verdicts. {reasons}"


def _gold_remarks(data: Dataset) -> list[str]:
    if data.gold is None:
        return []
    count = int((data.gold != UNKNOWN).sum())
    return [f"{count:,} row(s) have a gold label: it is taken as certain, and not evaluated."]


def _write_probs(folder: Path, audit: Audit, data: Dataset) -> str | None:
    """Write the model's probabilities; return what was left out, if anything."""
    return write_probabilities(
        folder / PROBS,
        lambda rows: probabilities(audit.outputs, rows),
        data.sets.classes.tolist(),
        data.ids.tolist(),
    )


def _epoch(row: dict[str, Any]) -> dict[str, float]:
    names = ("epoch", "loss", "rate_closed", "rate_open")
    return {name: row[name] for name in names if name in row}


def _provenance(run: Run, data: Dataset) -> dict[str, str]:
    """Say where the findings come from, for the end of the report."""
    versions = run.note["versions"]
    others = [
        f"{name} {version}"
        for name, version in versions.items()
        if name not in ("candidly", "revision")
    ]
    return {
        "Command": f"candidly {run.note['config']['job']}",
        "Date": time.strftime("%Y-%m-%d %H:%M", time.localtime(run.note["started"])),
        "File": f"{data.source.path.name} ({data.source.format}), SHA-256 {data.source.sha256}",
        "Versions": f"candidly {versions['candidly']} ({versions['revision']}); "
        + ", ".join(others),
    }


def _describe(model: PartialLabelClassifier, folds: int, n: int, seconds: float) -> str:
    """Describe the training in a sentence."""
    pixels = len(model.predictor_.shape) == 3
    net = "a convolutional net on pixels" if pixels else "a multilayer perceptron"
    return (
        f"{net}, method {model.method_}, {len(model.history_)} epochs, seed {model.random_state}; "
        f"{n:,} rows in {folds} folds, each judged by a net trained on the others, and a last net "
        f"for all rows: {seconds:,.0f} s"
    )


def write_audit(folder: Path, audit: pd.DataFrame, data: Dataset) -> None:
    """Write `audit.parquet` with candidates as lists, and `audit.csv` with candidates as text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sets = data.sets
    labels = pa.array(sets.classes.tolist()).take(pa.array(sets.indices))
    lists = pa.ListArray.from_arrays(pa.array(sets.indptr, pa.int32()), labels)
    table = pa.Table.from_pandas(audit, preserve_index=False).append_column("candidates", lists)
    write_atomically(folder / AUDIT, lambda path: pq.write_table(table, path))
    cells = [joined(row, data.source.options["sep"]) for row in sets]
    write_csv(audit.round(DIGITS).assign(candidates=cells), folder / "audit.csv")


# ---- later


def rebuild(run: Path, *, rows: bool = True) -> Path:
    """Write RUN/report.html again."""
    _job(run, FINDINGS)
    return write_report(run, rows=rows)


def _job(run: Path, *needed: str) -> dict[str, Any]:
    """Read the note of a RUN of `fit` or `audit`; refuse it if a `needed` file was changed."""
    verify(run, NOTE)
    note = read_json(run / NOTE)
    if note.get("config", {}).get("job") not in ("fit", "audit"):
        raise InputError(f"{run} was not written by `candidly fit` or `candidly audit`.")
    verify(run, *needed)
    return note


def predict_file(
    run: Path,
    file: Path,
    out: Path,
    *,
    reader: dict[str, Any],
    reject: float | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Classify the rows of a file by the model of a RUN; write id, label and probability.

    Parameters
    ----------
    run : Path
        A RUN folder that `fit_file` wrote.
    file : Path
        The examples.
    out : Path
        The file to write, .csv or .parquet.
    reader : dict
        Options of `candidly.data.read_examples`; inputs are found as in training unless named.
    reject : float, optional
        See `PartialLabelClassifier.predict`.
    device : str, default="auto"

    Returns
    -------
    dict
        Number of rows, path, and how often each label was given.
    """
    note = _job(run)
    if note["config"]["job"] != "fit":
        raise InputError(
            f"{run} has no model: `candidly audit` wrote it, which trains none. Use `candidly fit`."
        )
    verify(run, "model/inputs.json", "model/inputs.npz")
    _refuse_existing(out)
    if out.suffix not in (".csv", ".parquet"):
        raise InputError(f"cannot write {out}: use .csv or .parquet.")
    from candidly.data.inputs import InputTransform
    from candidly.training.estimator import PartialLabelClassifier

    model = PartialLabelClassifier.load(run, device=device)
    model.set_params(unknown_label=NO_CLASS_TEXT)
    examples = _to_predict(run, file, _reader_of(note, reader), reader)
    X = InputTransform.load(run / "model").apply(examples)
    labels = model.predict(X, reject=reject)
    probs = model.predict_proba(X).max(axis=1)
    _write_predictions(out, examples, labels, probs)
    values, counts = np.unique(labels.astype(str), return_counts=True)
    return {
        "rows": len(examples),
        "out": str(out),
        "labels": dict(zip(values.tolist(), counts.tolist(), strict=True)),
    }


def _to_predict(run: Path, file: Path, options: dict[str, Any], given: dict[str, Any]) -> Examples:
    """Read the rows of `file`; say who needs an input that is missing and was not `given` now."""
    try:
        return read_examples(file, **options)
    except MissingColumnError as error:
        if any(given.get(kind) for kind in INPUTS) or error.name == options["id"]:
            raise
        raise InputError(
            f"{error} The model of {run} was trained with the column {error.name!r} and needs it."
        ) from None


def _reader_of(note: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The options to read a file as in training, unless others are `given`.

    Ids are read from the same column if it was named in training; so are annotators, whose rows
    of one example belong together.
    """
    asked = note["config"]["reader"]
    resolved = note["source"]["options"]
    inputs = {kind: given.get(kind) for kind in INPUTS}
    if not any(inputs.values()):
        inputs = {kind: resolved[kind] or None for kind in INPUTS}
    names = {name: resolved[name] for name in ("labels", "annotator", "sep")}
    own = {"id": given.get("id") or asked.get("id"), "max_memory": given.get("max_memory")}
    return inputs | names | own


def _refuse_existing(out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise InputError(f"{out} exists already: choose another name, or remove it first.")


def _write_predictions(
    out: Path, examples: Examples, labels: NDArray[Any], probs: NDArray[Any]
) -> None:
    import pandas as pd

    texts = labels.astype(str) if labels.dtype == object else labels
    table = pd.DataFrame({"id": examples.ids, "label": texts, "probability": probs.round(DIGITS)})
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".csv":
        write_csv(table, out)
    else:
        write_atomically(out, lambda path: table.to_parquet(path, index=False))


def export_run(
    run: Path,
    out: Path,
    *,
    input_file: Path | None = None,
    replace: bool = False,
    keep_open: bool = False,
) -> dict[str, Any]:
    """Write the input again with corrected candidate sets; the input itself stays as it is.

    Rows get the consensus label and its probability as new columns; Label Studio's tasks get them
    as a prediction with a score.

    Parameters
    ----------
    run : Path
        A RUN folder that `fit_file` or `audit_file` wrote.
    out : Path
        The file to write, in the format of the input.
    input_file : Path, optional
        The input, if it has moved.
    replace : bool, default=False
        In closed rows, replace the candidates by the suggested label instead of adding it.
    keep_open : bool, default=False
        Keep open rows instead of leaving them out.

    Returns
    -------
    dict
        Path, number of rows, of corrected and of left-out ones, and notes.
    """
    import pandas as pd

    note = _job(run, AUDIT)
    if note.get("explanation") is not None:
        raise InputError(
            f"{run} has nothing to export. {note['explanation']} Correct the outputs or the "
            f"training, and run `candidly {note['config']['job']}` again."
        )
    source = note["source"]
    data = read_file(_input_of(run, source, input_file), **source["options"])
    audit = _read_audit(run, ["verdict", "suggested_label", *CONSENSUS])
    closed, is_open = ((audit["verdict"] == kind).to_numpy() for kind in ("closed", "open"))
    classes = pd.Index(data.sets.classes.tolist())
    consensus = classes.get_indexer(audit["consensus_label"])
    scores = audit["consensus_probability"].round(DIGITS).to_numpy()
    if data.source.format == "label-studio":
        keep = consensus >= 0
        sets = corrected(data.sets, consensus, keep, replace=True)
    else:
        keep = ~is_open | keep_open
        sets = corrected(data.sets, classes.get_indexer(audit["suggested_label"]), closed, replace)
    columns = _consensus_columns(data, consensus, scores)
    write_sets(data, sets, out, keep=keep, scores=scores, columns=columns)
    counts = {
        "corrected": int(closed.sum()),
        "left_out": int((~keep).sum()),
        "rows": int(keep.sum()),
    }
    notes = [*_folder_notes(data, out), *_name_notes(data)]
    return {"out": str(out), **counts, "notes": notes}


def _read_audit(run: Path, columns: list[str]) -> pd.DataFrame:
    """Read columns of RUN/audit.parquet, which earlier versions wrote without some of them."""
    import pandas as pd
    import pyarrow.parquet as pq

    if missing := [name for name in columns if name not in pq.read_schema(run / AUDIT).names]:
        raise InputError(
            f"{run / AUDIT} has no column {missing[0]!r}: an earlier version of candidly wrote it. "
            "Make the run again."
        )
    return pd.read_parquet(run / AUDIT, columns=columns)


def _consensus_columns(
    data: Dataset, consensus: NDArray[Any], scores: NDArray[Any]
) -> dict[str, list[Any]]:
    """Make the columns of an export: the most likely truth, missing if it is no class."""
    labels = [*data.sets.classes.tolist(), None]  # -1 is the last one
    columns = ([labels[i] for i in consensus.tolist()], scores.tolist())
    return dict(zip(CONSENSUS, columns, strict=True))


def _name_notes(data: Dataset) -> list[str]:
    """Say which columns of the export have a number, since the input has one of that name."""
    if data.source.format == "label-studio":
        return []
    return [
        f"{data.source.path.name} has a column {name!r} already: the new one is {new!r}."
        for name, new in free_names(CONSENSUS, data).items()
        if new != name
    ]


def _input_of(run: Path, source: dict[str, Any], named: Path | None) -> Path:
    """Find the file that RUN was made from, by its hash, before anything of it is parsed."""
    path = Path(source["path"]) if named is None else named
    if not path.exists():
        raise InputError(f"{path}, the input of {run}, is missing: name it with --input FILE.")
    path = located(path)
    if file_hash(path) != source["sha256"]:
        raise InputError(
            f"{path} is not the file that {run} was made from (its SHA-256 differs): name that "
            "file with --input FILE."
        )
    return path


def _folder_notes(data: Dataset, out: Path) -> list[str]:
    """Warn that a table of images is read in their folder only."""
    folder = data.source.path.resolve().parent
    has_paths = data.kind == "images" and not isinstance(data.inputs, np.ndarray)
    if not has_paths or out.resolve().parent == folder:
        return []
    return [
        f"{out.name} names its images relative to {folder}: move the file there to read it again."
    ]


def corrected(
    sets: CandidateSets, suggested: NDArray[Any], where: NDArray[np.bool_], replace: bool = False
) -> CandidateSets:
    """Add the suggested class to the sets of the rows `where`, or replace them by it.

    Parameters
    ----------
    sets : CandidateSets
    suggested : array of shape (n,)
        Class indices.
    where : bool array of shape (n,)
        Rows to correct.
    replace : bool, default=False
        Whether the suggestion replaces the candidates.

    Returns
    -------
    CandidateSets

    Examples
    --------
    >>> import numpy as np
    >>> sets = CandidateSets([["a"], ["a", "b"]], classes=["a", "b", "c"])
    >>> list(corrected(sets, np.array([2, 2]), np.array([True, False])))
    [('a', 'c'), ('a', 'b')]
    """
    from scipy import sparse

    owner = np.repeat(np.arange(len(sets)), sets.sizes)
    added = np.flatnonzero(where)
    stays = ~where[owner] if replace else np.full(len(owner), True)
    rows = np.r_[owner[stays], added]
    columns = np.r_[sets.indices[stays], suggested[added]]
    matrix = sparse.csr_array((np.ones(len(rows), dtype=np.int8), (rows, columns)), sets.shape)
    return CandidateSets(matrix.astype(bool), sets.classes)
