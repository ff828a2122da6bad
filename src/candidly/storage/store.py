"""RUN folders: complete or absent. Everything that writes results goes through here.

A run is written under the temporary name `NAME.partial` and renamed when it is finished. A partial folder with a
checkpoint resumes where it stopped if its configuration is the same; one that holds nothing worth keeping is cleared.
Runs may contain runs. What is not a run is never touched.

    RUN/run.json         configuration, training (scheme, seed, method, settings, data), versions, times
    RUN/metrics.jsonl    one line per epoch
    RUN/model/           model.safetensors and model.json
    RUN/arrays.npz       whatever arrays the run wants to keep
    RUN/SHA256SUMS       hashes of these files, in the format of sha256sum
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from candidly._version import __version__
from candidly.errors import InputError, RunBusyError, TrainingError
from candidly.storage.atomic import (
    file_hash,
    is_held,
    is_lock,
    is_temporary,
    open_lock,
    remove_orphans,
    write_atomically,
)

if TYPE_CHECKING:
    from torch import Tensor


CHECKPOINT = "checkpoint.safetensors"
NOTE = "run.json"
LOCK = ".candidly.lock"  # in a partial folder
REPLACED = ".replaced"  # in a partial folder: the run that it takes the place of
SUMS = "SHA256SUMS"
UNSUMMED = (LOCK, CHECKPOINT, SUMS, "report.html")  # `candidly report` writes the page again
ATTEMPTS = 100  # to lock a folder that other processes make and remove


class Savable(Protocol):
    """What a RUN can keep in `model/`, such as a `Predictor`."""

    def save(self, folder: Path, net: dict[str, Any] | None = None) -> None: ...


class Run:
    """A RUN folder being written; `folder` is its temporary place, `path` its final one.

    Of many processes only the first writes; in the others `add_...` and `save_...` do nothing.
    """

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        if path.name in ("", ".."):
            raise InputError(f"{str(path)!r} cannot be a run: name a new folder.")
        self.path = path
        self.folder = partial_folder(path)
        self.note: dict[str, Any] = {"config": _plain(config), "started": time.time()}

    def claim(self, **facts: Any) -> None:
        """Keep the facts that decide a training; refuse to go on with a training that had others."""
        facts = _plain(facts)
        _refuse_other(self.folder, self.note.setdefault("training", facts), facts)
        if _leads():
            write_json(self.folder / NOTE, self.note)

    def add_metrics(self, row: dict[str, Any]) -> None:
        if not _leads():
            return
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def keep_metrics(self, epochs: int) -> list[dict[str, Any]]:
        """Return the metrics of the first `epochs` epochs; drop later lines, left by an interruption."""
        rows = (
            read_metrics(self.folder)[:epochs] if (self.folder / "metrics.jsonl").exists() else []
        )
        self.write_metrics(rows)
        return rows

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Write all lines of `metrics.jsonl`."""
        if _leads():
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            write_atomically(self.folder / "metrics.jsonl", lambda path: path.write_text(lines))

    def save_arrays(self, **arrays: np.ndarray) -> None:
        if wrong := [name for name, array in arrays.items() if array.dtype == object]:
            raise InputError(
                f"arrays {wrong} hold objects: only numbers, booleans and strings are stored."
            )

        def write(path: Path) -> None:
            with path.open("wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

        if _leads():
            write_atomically(self.folder / "arrays.npz", write)

    def save_model(self, predictor: Savable, net: dict[str, Any] | None = None) -> None:
        """`model/`, for `Predictor.load`; `net`: the arguments of `build_net`."""
        if _leads():
            predictor.save(self.folder / "model", net)

    def save_checkpoint(self, tensors: dict[str, Tensor], **notes: Any) -> None:
        if _leads():
            save_tensors(self.folder / CHECKPOINT, tensors, notes)

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """(tensors, notes) of an interrupted run, or None."""
        return (
            load_tensors(self.folder / CHECKPOINT) if (self.folder / CHECKPOINT).exists() else None
        )


@contextmanager
def writing(path: str | Path, config: dict[str, Any], *, replace: bool = False) -> Iterator[Run]:
    """Write a RUN folder: it appears at `path` when the block ends well, and not at all otherwise.

    `replace`: an earlier RUN at `path`, and one left unfinished with other settings, give way. Of many processes the
    first one alone writes.
    """
    run = Run(Path(path), config)
    with _locked(run) if _leads() else nullcontext():
        try:
            if _leads():
                _open(run, replace)
            _wait()
            run.note = read_json(run.folder / NOTE)
            yield run
        except BaseException as error:
            if _leads():
                _clear_up(run, error)
            raise
        _wait()
        if _leads():
            _finish(run)
        _wait()


def partial_folder(path: Path) -> Path:
    """Where a run is written until it is finished."""
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
        os.close(descriptor)


def _lock(run: Run) -> int:
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
    """Is a program writing this run? The lock file may outlive its process, the lock does not."""
    return is_held(partial_folder(path) / LOCK)


def _clear_up(run: Run, error: BaseException) -> None:
    """After a failure, keep what can be resumed. A training that diverged would diverge again."""
    if isinstance(error, TrainingError):
        (run.folder / CHECKPOINT).unlink(missing_ok=True)
    if _worth_keeping(run.folder):
        (run.folder / LOCK).unlink(missing_ok=True)
    else:
        shutil.rmtree(run.folder, ignore_errors=True)


def _open(run: Run, replace: bool) -> None:
    """Prepare the partial folder, or resume the run that it holds."""
    for folder in (run.folder, *(path for path in run.folder.rglob("*") if path.is_dir())):
        remove_orphans(folder)
    _restore_replaced(run)
    if run.path.exists() and not replace:
        _remove_leftovers(run.path)
        raise InputError(f"{run.path} exists already: choose another folder, or remove it first.")
    if (run.folder / NOTE).exists():
        found = read_json(run.folder / NOTE)
        if _worth_keeping(run.folder) and not (replace and found["config"] != run.note["config"]):
            _refuse_other(run.folder, found["config"], run.note["config"])
            return
        _empty(run.folder)
    write_json(run.folder / NOTE, {**run.note, "versions": versions()})


def _restore_replaced(run: Run) -> None:
    """Put back the old run that an interrupted `_finish` had moved away."""
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
    """Nothing is ever replaced or removed that is not a run."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder} exists and is not a folder: choose another name.")
    if folder.is_dir() and not _is_run(folder) and not all(map(_is_ours, folder.iterdir())):
        raise InputError(
            f"{folder} exists and is not a run of candidly (by its {NOTE}): choose another name."
        )


def _is_ours(path: Path) -> bool:
    """Is this what a run leaves behind that was killed before it wrote its first file?"""
    return is_temporary(path) or (path.name == LOCK and is_lock(path))


def _is_run(folder: Path) -> bool:
    try:
        note = json.loads((folder / NOTE).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(note, dict) and {"config", "started", "versions"} <= note.keys()


def _worth_keeping(folder: Path) -> bool:
    """Is there a checkpoint, or a finished run inside?"""
    runs = (note.parent for note in folder.rglob(NOTE) if _is_run(note.parent))
    return any(folder.rglob(CHECKPOINT)) or any("finished" in read_json(run / NOTE) for run in runs)


def _refuse_other(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    if found != wanted:
        keys = sorted(k for k in {*found, *wanted} if found.get(k) != wanted.get(k))
        differences = "; ".join(f"{k}: {found.get(k)!r} there, {wanted.get(k)!r} now" for k in keys)
        raise InputError(
            f"{folder} holds an unfinished run with other settings ({differences}). "
            "Repeat the old settings to resume it, or remove the folder to start anew."
        )


def _finish(run: Run) -> None:
    write_json(run.folder / NOTE, {**run.note, "finished": time.time()})
    _write_sums(run.folder)
    if run.path.exists():
        run.path.rename(run.folder / REPLACED)
    run.folder.rename(run.path)
    _remove_leftovers(run.path)


def _remove_leftovers(path: Path) -> None:
    """Remove what only served a run while it was written."""
    if _is_run(path) and "finished" in read_json(path / NOTE):
        shutil.rmtree(path / REPLACED, ignore_errors=True)
        for name in (CHECKPOINT, LOCK):
            (path / name).unlink(missing_ok=True)


# ---- hashes


def _write_sums(folder: Path) -> None:
    """Write the hashes of all files of the run, except those of runs inside it."""
    inner = {note.parent for note in folder.rglob(NOTE)} - {folder}
    files = [
        path for path in folder.rglob("*") if path.is_file() and inner.isdisjoint(path.parents)
    ]
    names = sorted(
        path.relative_to(folder).as_posix() for path in files if path.name not in UNSUMMED
    )
    lines = "".join(f"{file_hash(folder / name)}  {name}\n" for name in names)
    write_atomically(folder / SUMS, lambda path: path.write_text(lines))


def verify(folder: Path, *names: str) -> None:
    """Refuse files of a finished run that are missing or were changed since it was written."""
    sums = _read_sums(folder)
    for name in names:
        if name not in sums or not (folder / name).is_file():
            raise InputError(
                f"{folder / name} is missing: {folder} is no whole run. Make it again."
            )
        if file_hash(folder / name) != sums[name]:
            raise InputError(
                f"{folder / name} was changed or damaged after {folder} was written (its SHA-256 is not the one in "
                f"{SUMS}). Restore it, or make the run again."
            )


def _read_sums(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise InputError(f"{folder} is missing: expected the folder of a finished run.")
    try:
        lines = (folder / SUMS).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{folder / SUMS} cannot be read: {folder} is not a finished run, is damaged, or was written by an older "
            "version of candidly. Make it again."
        ) from error
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


# ---- many processes


def _leads() -> bool:
    """Is this the only process, or the first of many?"""
    return _world() == 1 or sys.modules["torch.distributed"].get_rank() == 0


def _wait() -> None:
    if _world() > 1:
        sys.modules["torch.distributed"].barrier()


def _world() -> int:
    """Number of processes; torch is not imported to find out."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size()


def fingerprint(*arrays: np.ndarray) -> str:
    """SHA-256 over shapes, types and bytes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """As it will come back from JSON."""
    return json.loads(json.dumps(value, default=str))


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, sort_keys=True) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing: is {path.parent} a finished run?") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}).") from error


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`; a last line cut short by a crash is left out."""
    rows = []
    for line in (Path(folder) / "metrics.jsonl").read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def read_arrays(folder: str | Path) -> dict[str, np.ndarray]:
    with np.load(Path(folder) / "arrays.npz", allow_pickle=False) as file:
        return dict(file)


def save_tensors(
    path: Path, tensors: dict[str, Tensor], notes: dict[str, Any] | None = None
) -> None:
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    metadata = {"notes": json.dumps(notes or {})}
    write_atomically(path, lambda temporary: save_file(plain, temporary, metadata))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads((file.metadata() or {}).get("notes", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, notes  # noqa: SIM118 (it is no dict)
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is not a complete safetensors file ({error}). Remove it to start anew."
        ) from error


def versions() -> dict[str, str]:
    """Versions of what decides the numbers."""
    packages = {name: metadata.version(name) for name in ("numpy", "scikit-learn", "torch")}
    return {
        "candidly": __version__,
        **packages,
        "python": platform.python_version(),
        "revision": _revision(),
    }


def _revision() -> str:
    """The commit of the source tree, or "released" outside of one."""
    tree = Path(__file__).parents[3]
    if not (tree / ".git").exists():
        return "released"
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
