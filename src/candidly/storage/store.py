"""RUN folders: complete or absent. Everything that writes results goes through here.

A run is written under the temporary name `NAME.partial` and renamed when it is finished. A partial
folder with a checkpoint resumes where it stopped if its configuration is the same; one that holds
nothing worth keeping is cleared. Runs may contain runs. What is not a run is never touched.

    RUN/run.json         format, configuration, training (scheme, seed, method, settings, data),
                         versions, times
    RUN/metrics.jsonl    one line per epoch
    RUN/model/           model.safetensors and model.json
    RUN/arrays.npz       arrays that the run keeps
    RUN/SHA256SUMS       hashes of these files, in the format of sha256sum
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from candidly.errors import InputError, RunBusyError, TrainingError
from candidly.storage.atomic import (
    is_held,
    is_lock,
    is_temporary,
    open_lock,
    release_lock,
    remove_orphans,
    write_atomically,
)
from candidly.storage.files import (
    METRICS,
    add_metrics,
    load_tensors,
    read_arrays,
    read_json,
    read_metrics,
    refuse_objects,
    save_tensors,
    write_arrays,
    write_json,
    write_metrics,
)
from candidly.storage.integrity import (
    NOTE,
    RUN_FORMAT,
    SUMS,
    is_finished,
    is_run,
    refuse_newer_format,
    verify,
    write_sums,
)
from candidly.storage.provenance import fingerprint, versions

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

__all__ = [
    "CHECKPOINT",
    "LOCK",
    "NOTE",
    "REPLACED",
    "RUN_FORMAT",
    "SUMS",
    "Run",
    "Savable",
    "fingerprint",
    "is_locked",
    "load_tensors",
    "partial_folder",
    "read_arrays",
    "read_json",
    "read_metrics",
    "refuse_newer_format",
    "save_tensors",
    "verify",
    "versions",
    "write_atomically",
    "write_json",
    "writing",
]

CHECKPOINT = "checkpoint.safetensors"
# In a partial folder: the lock, and the older run that it replaces.
LOCK = ".candidly.lock"
REPLACED = ".replaced"
# `candidly report` writes the page again, so that its hash would not hold.
WITHOUT_HASH = (LOCK, CHECKPOINT, "report.html")
# Attempts to lock a folder that other processes make and remove.
ATTEMPTS = 100


class Savable(Protocol):
    """What a RUN can keep in `model/`, such as a `Predictor`."""

    def save(self, folder: Path, net: dict[str, Any] | None = None) -> None:
        """Write the files of the model into a folder."""


class Run:
    """A RUN folder that is being written; `writing` opens it.

    Of several processes only the first writes; in the others the methods that write do nothing.

    Parameters
    ----------
    path : Path
        Where the run appears when it is finished.
    config : dict
        What decides the results. An unfinished run is resumed only if this is the same.

    Attributes
    ----------
    folder : Path
        Where its files are until then.
    note : dict
        The content of `run.json`.
    """

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        if path.name in ("", ".."):
            raise InputError(f"{str(path)!r} cannot be a run: name a new folder.")
        self.path = path
        self.folder = partial_folder(path)
        self.note: dict[str, Any] = {
            "format": RUN_FORMAT,
            "config": _as_from_json(config),
            "started": time.time(),
        }

    def claim(self, **facts: Any) -> None:
        """Store the facts that decide a training; refuse to resume one that has other facts."""
        facts = _as_from_json(facts)
        _refuse_other(self.folder, self.note.setdefault("training", facts), facts)
        if _leads():
            write_json(self.folder / NOTE, self.note)

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Append the metrics of one epoch."""
        if _leads():
            add_metrics(self.folder, row)

    def keep_metrics(self, epochs: int) -> list[dict[str, Any]]:
        """Return the metrics of the first `epochs` epochs; drop later ones of an interruption."""
        rows: list[dict[str, Any]] = []
        if (self.folder / METRICS).exists():
            rows = read_metrics(self.folder)[:epochs]
        self.write_metrics(rows)
        return rows

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Write the metrics of all epochs."""
        if _leads():
            write_metrics(self.folder, rows)

    def save_arrays(self, **arrays: np.ndarray) -> None:
        """Keep arrays of numbers, booleans or strings; `read_arrays` returns them."""
        refuse_objects(arrays)
        if _leads():
            write_arrays(self.folder, arrays)

    def save_model(self, predictor: Savable, net: dict[str, Any] | None = None) -> None:
        """Keep a model for `Predictor.load`.

        Parameters
        ----------
        predictor : Savable
            The model.
        net : dict, optional
            The arguments of `build_net` that make its net; `load` then needs no module.
        """
        if _leads():
            predictor.save(self.folder / "model", net)

    def save_checkpoint(self, tensors: dict[str, Tensor], **notes: Any) -> None:
        """Keep what an interrupted training needs to resume."""
        if _leads():
            save_tensors(self.folder / CHECKPOINT, tensors, notes)

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the tensors and notes of an interrupted run, or None."""
        if not (self.folder / CHECKPOINT).exists():
            return None
        return load_tensors(self.folder / CHECKPOINT)


@contextmanager
def writing(path: str | Path, config: dict[str, Any], *, replace: bool = False) -> Iterator[Run]:
    """Write a RUN folder: it appears at `path` if the block succeeds, and not at all otherwise.

    Parameters
    ----------
    path : str or Path
        The folder to make.
    config : dict
        What decides the results, as JSON can hold it. It is kept in `run.json`; an unfinished run
        of the same configuration is resumed.
    replace : bool
        Replace an earlier run at `path`, and an unfinished one with another configuration.

    Yields
    ------
    Run
        The run to write to. Of several processes only the first one writes.

    Raises
    ------
    InputError
        If `path` exists, and is not a run or is not to be replaced.
    RunBusyError
        If another process is writing the run.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run"
    >>> with writing(path, {"seed": 0}) as run:
    ...     run.add_metrics({"epoch": 1, "loss": 0.5})
    >>> read_metrics(path)
    [{'epoch': 1, 'loss': 0.5}]
    """
    run = Run(Path(path), config)
    with _locked(run) if _leads() else nullcontext():
        try:
            if _leads():
                _prepare(run, replace)
            _wait()
            run.note = read_json(run.folder / NOTE)
            yield run
        except BaseException as error:
            if _leads():
                _clean_up(run, error)
            raise
        _wait()
        if _leads():
            _finish(run)
        _wait()


def partial_folder(path: Path) -> Path:
    """Return where a run is written until it is finished."""
    return path.with_name(path.name + ".partial")


@contextmanager
def _locked(run: Run) -> Iterator[None]:
    """Make the partial folder and lock it, so that no two programs write the same run."""
    for folder in (run.path, run.folder):
        _refuse_foreign(folder)
    descriptor = _lock(run)
    try:
        yield
    finally:
        release_lock(descriptor)


def _lock(run: Run) -> int | None:
    """Make and lock the folder, which its last writer may rename or remove until it is locked."""
    for _ in range(ATTEMPTS):
        try:
            run.folder.mkdir(parents=True, exist_ok=True)
            return open_lock(run.folder / LOCK)
        except BlockingIOError:
            break
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(
                f"{run.folder} cannot be written: {error.strerror}. Choose another folder."
            ) from error
    raise RunBusyError(f"{run.path} is being written by another process.")


def is_locked(path: Path) -> bool:
    """Return whether a program is writing this run; the lock ends with its process."""
    return is_held(partial_folder(path) / LOCK)


def _clean_up(run: Run, error: BaseException) -> None:
    """After a failure, keep what can be resumed. A training that diverged would diverge again."""
    if isinstance(error, TrainingError):
        (run.folder / CHECKPOINT).unlink(missing_ok=True)
    if _worth_keeping(run.folder):
        (run.folder / LOCK).unlink(missing_ok=True)
    else:
        shutil.rmtree(run.folder, ignore_errors=True)


def _prepare(run: Run, replace: bool) -> None:
    """Prepare the partial folder, or resume the run that it holds."""
    for folder in (run.folder, *(path for path in run.folder.rglob("*") if path.is_dir())):
        remove_orphans(folder)
    _restore_replaced(run)
    if run.path.exists() and not replace:
        _remove_leftovers(run.path)
        raise InputError(f"{run.path} exists already: choose another folder, or remove it first.")
    if (run.folder / NOTE).exists():
        refuse_newer_format(run.folder)
        found = read_json(run.folder / NOTE)
        if _worth_keeping(run.folder) and not (replace and found["config"] != run.note["config"]):
            _refuse_other(run.folder, found["config"], run.note["config"])
            return
        _empty(run.folder)
    write_json(run.folder / NOTE, {**run.note, "versions": versions()})


def _restore_replaced(run: Run) -> None:
    """Put back the old run that an interrupted `_finish` moved away."""
    if (run.folder / REPLACED).is_dir() and not run.path.exists():
        (run.folder / REPLACED).rename(run.path)


def _empty(folder: Path) -> None:
    """Remove everything but the lock."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _refuse_foreign(folder: Path) -> None:
    """Raise `InputError` for what is not a run: it is never replaced or removed."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder} exists and is not a folder: choose another name.")
    if folder.is_dir() and not is_run(folder) and not all(map(_is_ours, folder.iterdir())):
        raise InputError(
            f"{folder} exists and is not a run of candidly (by its {NOTE}): choose another name."
        )


def _is_ours(path: Path) -> bool:
    """Return whether a run that was killed before it wrote its first file leaves this behind."""
    return is_temporary(path) or (path.name == LOCK and is_lock(path))


def _worth_keeping(folder: Path) -> bool:
    """Return whether there is a checkpoint, or a finished run inside."""
    inner = (note.parent for note in folder.rglob(NOTE))
    return any(folder.rglob(CHECKPOINT)) or any(map(is_finished, inner))


def _refuse_other(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    if found == wanted:
        return
    keys = sorted(k for k in {*found, *wanted} if found.get(k) != wanted.get(k))
    differences = "; ".join(f"{k}: {found.get(k)!r} there, {wanted.get(k)!r} now" for k in keys)
    raise InputError(
        f"{folder} holds an unfinished run with other settings ({differences}). "
        "Repeat the old settings to resume it, or remove the folder to start anew."
    )


def _finish(run: Run) -> None:
    write_json(run.folder / NOTE, {**run.note, "finished": time.time()})
    write_sums(run.folder, without=WITHOUT_HASH)
    if run.path.exists():
        run.path.rename(run.folder / REPLACED)
    run.folder.rename(run.path)
    _remove_leftovers(run.path)


def _remove_leftovers(path: Path) -> None:
    """Remove what a run only needs while it is written."""
    if is_finished(path):
        shutil.rmtree(path / REPLACED, ignore_errors=True)
        for name in (CHECKPOINT, LOCK):
            (path / name).unlink(missing_ok=True)


def _as_from_json(value: Any) -> Any:
    """Return a value as it will come back from JSON."""
    return json.loads(json.dumps(value, default=str))


# ---- several processes


def _leads() -> bool:
    """Return whether this is the only process, or the first of several."""
    return _world() == 1 or sys.modules["torch.distributed"].get_rank() == 0


def _wait() -> None:
    if _world() > 1:
        sys.modules["torch.distributed"].barrier()


def _world() -> int:
    """Return the number of processes, without importing torch."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size()
