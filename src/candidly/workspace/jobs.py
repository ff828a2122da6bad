"""The jobs behind the command line: a file in, a RUN folder out, complete or absent.

RUN/run.json         configuration, input and its hash, versions, times
RUN/audit.parquet    a row an example: verdict, probabilities, suggestion, losses, candidates; audit.csv: the same
RUN/findings.json    what the report shows
RUN/report.html      the page
RUN/model/           of `fit` only: the net and how inputs become its arrays; metrics.jsonl: its training
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from candidly.auditing.evidence import Outputs
from candidly.auditing.findings import gather
from candidly.checks import whole
from candidly.console.progress import bar
from candidly.data import Dataset, Examples, read_examples, read_file
from candidly.data.dataset import NO_CLASS_TEXT
from candidly.data.export import joined, write_csv, write_sets
from candidly.data.files import located
from candidly.data.guard import memory_limit
from candidly.errors import InputError, Interrupted, MissingColumnError
from candidly.report.build import without_rows, write_report
from candidly.report.previews import preview_notes, previews
from candidly.sets import CandidateSets
from candidly.storage.atomic import file_hash, write_atomically
from candidly.storage.store import Run, read_json, verify, write_json, writing

if TYPE_CHECKING:
    import pandas as pd

    from candidly.training.estimator import PartialLabelClassifier

FINDINGS, AUDIT, NOTE = "findings.json", "audit.parquet", "run.json"
INPUTS = ("images", "text", "features")  # options that name them
DIGITS = 6  # of the numbers in audit.csv
MANY = 50_000  # rows of a table beyond which "auto" counts
ROWS_SEEN, IMAGES_SEEN = 1_000_000, 15_000  # in a training, epoch by epoch; of images, their pixels
SHORT, LONG = 5, 20  # epochs


# ---- fit


@dataclass(frozen=True)
class Training:
    """How `fit` trains; see `PartialLabelClassifier`."""

    method: str = "ooc"
    preset: str = "auto"
    settings: tuple[str, ...] = ()  # name=value, of the method
    encoder: str = "lite0"  # of images; "none": their pixels
    epochs: int | str = "auto"
    seed: int = 0
    device: str = "auto"
    folds: int = 5

    def model(self) -> PartialLabelClassifier:
        from candidly.methods.settings import parse_settings
        from candidly.training.estimator import PartialLabelClassifier

        given: dict[str, Any] = {
            "preset": self.preset,
            "epochs": self.epochs,
            "random_state": self.seed,
        }
        given |= {
            "device": self.device,
            "calibrate": 0,
            **parse_settings(self.method, self.settings),
        }
        return PartialLabelClassifier(self.method, **given)

    def sized(self, X: NDArray[Any]) -> dict[str, Any]:
        """What the model is told of its inputs, (n, d) or images: much of either is seen fewer times."""
        pixels = X.ndim > 2
        if self.epochs != "auto" or not (pixels or len(X) > MANY):
            return {}
        seen = IMAGES_SEEN if pixels else ROWS_SEEN
        return {"epochs": min(LONG, max(SHORT, seen // len(X)))}


def fit_file(
    file: Path,
    out: Path,
    *,
    reader: dict[str, Any],
    training: Training | None = None,
    rows: bool = True,
) -> dict[str, Any]:
    """Train on all rows, audit each by a net that did not see it, write RUN; the findings are returned.

    Not `rows`: findings and report hold nothing of single rows; the tables of the audit do.
    """
    training = training or Training()
    with writing(
        out, {"job": "fit", "file": str(file), "reader": reader, **asdict(training)}
    ) as run:
        data = _read(file, reader)
        from candidly.data.inputs import fit_inputs

        model, began = training.model(), time.time()
        transform, X = fit_inputs(data, encoder=training.encoder)
        _refuse_few(file, len(data), training.folds)
        model.set_params(**training.sized(X))
        logits = _train(model, X, data.sets, training.seed, training.folds)
        made = {"Training": _told(model, training.folds, len(data), time.time() - began)}
        features = (
            None if X.ndim > 2 or data.kind == "text" else X
        )  # near in words is not near in meaning
        outputs = Outputs(data.sets, logits, True, features)
        audit, findings = _conclude(run, data, outputs, made, model.history_, rows)
        _calibrate(model, logits, audit)
        model.write(run)
        transform.save(run.folder / "model")
        write_report(run.folder)
    return findings


def _read(file: Path, reader: dict[str, Any]) -> Dataset:
    data = read_file(file, **reader)
    if data.sets.n_classes < 2:
        told = (
            f"the only class is {data.sets.classes.tolist()[0]!r}. Name all classes by --classes."
        )
        raise InputError(f"{file}: {told}")
    return data


def _refuse_few(file: Path, n: int, folds: int) -> None:
    """Each fold needs a row."""
    if n < 2:
        raise InputError(
            f"{file} holds 1 row: at least two are needed to train on one and judge the other."
        )
    if n < whole(folds, "folds", 2):
        raise InputError(
            f"{file} holds {n} rows, too few for {folds} folds: use --folds {n}, or add rows."
        )


def _train(
    model: PartialLabelClassifier, X: NDArray[Any], sets: CandidateSets, seed: int, folds: int
) -> NDArray[np.float32]:
    """Fit the model to all rows; (n, c) logits of each row by a net that was trained on the other folds."""
    from sklearn.base import clone

    from candidly.training.estimator import split

    fold, logits = split(sets, folds, seed), np.empty(sets.shape, dtype=np.float32)
    try:
        with bar(folds + 1, "training") as advance:
            for part in range(folds):
                mine = fold == part
                logits[mine] = clone(model).fit(X[~mine], sets[~mine]).predictor_.logits(X[mine])
                advance(f"{part + 1} of {folds} folds")
            model.fit(X, sets)
            advance("all rows")
    except Interrupted:
        raise KeyboardInterrupt from None
    return logits


def _calibrate(
    model: PartialLabelClassifier, logits: NDArray[np.float32], audit: pd.DataFrame
) -> None:
    """What `predict --reject` compares with: the energies of unseen rows judged normal, largest first."""
    from candidly.scores import energy

    model.known_energies_ = -np.sort(-energy(logits[(audit["verdict"] == "normal").to_numpy()]))


# ---- audit


def audit_file(
    file: Path, probs: Path, out: Path, *, reader: dict[str, Any], rows: bool = True
) -> dict[str, Any]:
    """Judge the rows by the outputs of the user's own model, write RUN; the findings are returned."""
    with writing(
        out, {"job": "audit", "file": str(file), "reader": reader, "probs": str(probs)}
    ) as run:
        from candidly.data.outputs import read_outputs_file

        data = _read(file, reader)
        with memory_limit(reader.get("max_memory")):
            values, logits = read_outputs_file(probs, data)
        made = {
            "Outputs": f"{probs.name} of another model, read as {'logits' if logits else 'probabilities'}"
        }
        features = data.inputs if data.kind == "vectors" else None
        _, findings = _conclude(
            run, data, Outputs(data.sets, values, logits, features), made, [], rows
        )
        write_report(run.folder)
    return findings


def _conclude(
    run: Run,
    data: Dataset,
    outputs: Outputs,
    made: dict[str, str],
    history: list[dict[str, Any]],
    rows: bool,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Audit, and write all but the model and the report."""
    from candidly.auditing.rates import estimate_rates
    from candidly.auditing.verdicts import audit

    given = {"logits" if outputs.logits else "probs": outputs.values, "features": outputs.features}
    estimate, table = estimate_rates(data.sets, **given), audit(data.sets, **given, ids=data.ids)
    findings = gather(outputs, table, estimate, answers=data.answers, truth=data.truth)
    findings |= {"file": data.source.path.name, "inputs": data.kind, "remarks": list(data.notes)}
    findings |= {"history": [_epoch(row) for row in history], "made": _made(run, data) | made}
    findings = findings if rows else without_rows(findings)
    suspects = [entry for entries in findings["suspects"].values() for entry in entries]
    shown = [entry["row"] for entry in suspects]
    seen = previews(data, shown)
    findings["notes"] += preview_notes(data, shown)
    for entry in suspects:
        entry["preview"] = seen[entry["row"]]
    run.note["source"] = {**asdict(data.source), "path": str(data.source.path.resolve())}
    write_json(run.folder / FINDINGS, findings)
    write_audit(run.folder, table, data)
    return table, findings


def _epoch(row: dict[str, Any]) -> dict[str, float]:
    return {
        name: row[name] for name in ("epoch", "loss", "rate_closed", "rate_open") if name in row
    }


def _made(run: Run, data: Dataset) -> dict[str, str]:
    """For the end of the report."""
    versions = run.note["versions"]
    told = ", ".join(
        f"{name} {versions[name]}" for name in ("numpy", "scikit-learn", "torch", "python")
    )
    return {
        "Command": f"candidly {run.note['config']['job']}",
        "Date": time.strftime("%Y-%m-%d %H:%M", time.localtime(run.note["started"])),
        "File": f"{data.source.path.name} ({data.source.format}), SHA-256 {data.source.sha256}",
        "Versions": f"candidly {versions['candidly']} ({versions['revision']}); {told}",
    }


def _told(model: PartialLabelClassifier, folds: int, n: int, seconds: float) -> str:
    """The training in a sentence."""
    epochs, width = len(model.history_), len(model.predictor_.shape)
    net = "a convolutional net on pixels" if width == 3 else "a multilayer perceptron"
    return (
        f"{net}, method {model.method}, {epochs} epochs, seed {model.random_state}; {n:,} rows in {folds} folds, each "
        f"judged by a net trained on the others, and a last net for all rows: {seconds:,.0f} s"
    )


def write_audit(folder: Path, audit: pd.DataFrame, data: Dataset) -> None:
    """`audit.parquet` with candidates as lists, and `audit.csv` with candidates as text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sets = data.sets
    labels = pa.array(sets.classes.tolist()).take(pa.array(sets.indices))
    lists = pa.ListArray.from_arrays(pa.array(sets.indptr, pa.int32()), labels)
    table = pa.Table.from_pandas(audit, preserve_index=False).append_column("candidates", lists)
    write_atomically(folder / AUDIT, lambda path: pq.write_table(table, path))
    written = audit.round(DIGITS).assign(
        candidates=[joined(row, data.source.options["sep"]) for row in sets]
    )
    write_csv(written, folder / "audit.csv")


# ---- later


def rebuild(run: Path, *, rows: bool = True) -> Path:
    """Write RUN/report.html again."""
    _job(run, FINDINGS)
    return write_report(run, rows=rows)


def _job(run: Path, *needed: str) -> dict[str, Any]:
    """The note of a RUN of `fit` or `audit`, after a check that the files `needed` are as they were written."""
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
    """Classify the rows of a file by the model of a RUN; writes id, label and probability as CSV or Parquet."""
    note = _job(run)
    if note["config"]["job"] != "fit":
        raise InputError(
            f"{run} has no model: it was written by `candidly audit`, which trains none."
        )
    verify(run, "model/inputs.json", "model/inputs.npz")
    _refuse_existing(out)
    if out.suffix not in (".csv", ".parquet"):
        raise InputError(
            f"{out} is to be written: expected a name that ends with .csv or .parquet."
        )
    from candidly.data.inputs import InputTransform
    from candidly.training.estimator import PartialLabelClassifier

    model = PartialLabelClassifier.load(run, device=device)
    model.set_params(unknown_label=NO_CLASS_TEXT)
    examples = _to_predict(run, file, _reader_of(note, reader), reader)
    X = InputTransform.load(run / "model").apply(examples)
    labels, probs = model.predict(X, reject=reject), model.predict_proba(X).max(axis=1)
    _write_predictions(out, examples, labels, probs)
    values, counts = np.unique(labels.astype(str), return_counts=True)
    return {
        "rows": len(examples),
        "out": str(out),
        "labels": dict(zip(values.tolist(), counts.tolist(), strict=True)),
    }


def _to_predict(run: Path, file: Path, options: dict[str, Any], given: dict[str, Any]) -> Examples:
    """The rows of `file`; if it lacks an input that was not `given` now, the message says who needs it."""
    try:
        return read_examples(file, **options)
    except MissingColumnError as error:
        if any(given.get(kind) for kind in INPUTS) or error.name == options["id"]:
            raise
        raise InputError(
            f"{error} The model of {run} was trained with the column {error.name!r}, and needs it."
        ) from None


def _reader_of(note: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The inputs are found as in training, unless others are named; so are ids, if they were named then, and the
    annotators of rows that are one example."""
    asked, resolved = note["config"]["reader"], note["source"]["options"]
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
    """Write the input once more with corrected candidate sets; the input itself stays as it is.

    Where the verdict is "closed", the suggested label joins the candidates, or takes their place (`replace`); rows that
    are "open" are left out, unless `keep_open`. Label Studio's tasks get the suggestion as a prediction with a score.
    """
    import pandas as pd

    source = _job(run, AUDIT)["source"]
    data = read_file(_input_of(run, source, input_file), **source["options"])
    audit = pd.read_parquet(
        run / AUDIT, columns=["verdict", "suggested_label", "suggested_probability"]
    )
    closed, is_open = ((audit["verdict"] == kind).to_numpy() for kind in ("closed", "open"))
    suggested = pd.Index(data.sets.classes.tolist()).get_indexer(audit["suggested_label"])
    tasks = data.source.format == "label-studio"
    sets = corrected(data.sets, suggested, ~is_open if tasks else closed, replace or tasks)
    keep = np.full(len(data), True) if keep_open and not tasks else ~is_open
    write_sets(data, sets, out, keep=keep, scores=audit["suggested_probability"].to_numpy())
    counts = {
        "corrected": int(closed.sum()),
        "left_out": int((~keep).sum()),
        "rows": int(keep.sum()),
    }
    return {"out": str(out), **counts, "notes": _moved(data, out)}


def _input_of(run: Path, source: dict[str, Any], named: Path | None) -> Path:
    """The file that RUN was made from. It is compared by its hash before anything of it is parsed."""
    path = Path(source["path"]) if named is None else named
    if not path.exists():
        raise InputError(f"{path}, the input of {run}, is missing: name the file by --input FILE.")
    path = located(path)
    if file_hash(path) != source["sha256"]:
        raise InputError(
            f"{path} is not the file that {run} was made from (its SHA-256 differs): name that file by --input FILE."
        )
    return path


def _moved(data: Dataset, out: Path) -> list[str]:
    """A table of images is read in their folder only."""
    folder = data.source.path.resolve().parent
    if (
        data.kind != "images"
        or isinstance(data.inputs, np.ndarray)
        or out.resolve().parent == folder
    ):
        return []
    return [
        f"the images of {out.name} are named as seen from {folder}: move it there to read it again."
    ]


def corrected(
    sets: CandidateSets, suggested: NDArray[Any], where: NDArray[np.bool_], replace: bool = False
) -> CandidateSets:
    """The sets, and in the rows `where` the suggested class too; or alone."""
    from scipy import sparse

    of, rows = np.repeat(np.arange(len(sets)), sets.sizes), np.flatnonzero(where)
    kept = ~where[of] if replace else np.full(len(of), True)
    at = (np.r_[of[kept], rows], np.r_[sets.indices[kept], suggested[rows]])
    matrix = sparse.csr_array((np.ones(len(at[0]), dtype=np.int8), at), sets.shape)
    return CandidateSets(matrix.astype(bool), sets.classes)
