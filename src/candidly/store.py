"""RUN folders: complete or absent. Everything that writes results goes through here.

A run is written under the temporary name `NAME.partial` and renamed when it is finished. A partial folder that holds a
checkpoint goes on where it stopped, if its configuration is the same; any other partial folder is cleared away. Runs
may stand inside a run.

    RUN/run.json         configuration, seed, versions, times
    RUN/metrics.jsonl    one line per epoch
    RUN/model/           model.safetensors and model.json
    RUN/arrays.npz       whatever arrays the run wants to keep
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from candidly.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

CHECKPOINT = "checkpoint.safetensors"


class Run:
    """A RUN folder being written; `folder` is its temporary place, `path` its final one."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.folder = path, path.with_name(path.name + ".partial")
        self.config = json.loads(json.dumps(config))
        self.started = time.time()

    def add_metrics(self, row: dict[str, Any]) -> None:
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def keep_metrics(self, epochs: int) -> list[dict[str, Any]]:
        """The metrics of the first `epochs` epochs; later lines, left by an interruption, are dropped."""
        rows = read_metrics(self.folder)[:epochs] if (self.folder / "metrics.jsonl").exists() else []
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        write_atomically(self.folder / "metrics.jsonl", lambda path: path.write_text(lines))
        return rows

    def save_arrays(self, **arrays: np.ndarray) -> None:
        def write(path: Path) -> None:
            with path.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)

        write_atomically(self.folder / "arrays.npz", write)

    def save_model(self, model: nn.Module, description: dict[str, Any]) -> None:
        """Weights as safetensors, and what is needed to build the net again as JSON."""
        (self.folder / "model").mkdir(exist_ok=True)
        write_json(self.folder / "model" / "model.json", description)
        save_tensors(self.folder / "model" / "model.safetensors", model.state_dict())

    def save_checkpoint(self, tensors: dict[str, Tensor], **notes: Any) -> None:
        save_tensors(self.folder / CHECKPOINT, tensors, notes)

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """(tensors, notes) of an interrupted run, or None."""
        return load_tensors(self.folder / CHECKPOINT) if (self.folder / CHECKPOINT).exists() else None

    def describe(self, **more: Any) -> dict[str, Any]:
        return {"config": self.config, "versions": versions(), "started": self.started, **more}


@contextmanager
def writing(path: str | Path, config: dict[str, Any], *, replace: bool = False) -> Iterator[Run]:
    """Write a RUN folder: it appears at `path` when the block ends well, and not at all otherwise."""
    run = Run(Path(path), config)
    _open(run, replace)
    try:
        yield run
    except BaseException:
        if not _resumable(run.folder):
            shutil.rmtree(run.folder, ignore_errors=True)
        raise
    _finish(run)


def _open(run: Run, replace: bool) -> None:
    if run.path.exists() and not replace:
        raise InputError(f"{run.path} exists already: choose another folder, or remove it first.")
    note = run.folder / "run.json"
    if note.exists() and _resumable(run.folder):
        _refuse_other_config(run, json.loads(note.read_text())["config"])
        return
    if run.folder.exists():
        shutil.rmtree(run.folder)
    run.folder.mkdir(parents=True)
    write_json(note, run.describe())


def _resumable(folder: Path) -> bool:
    """Is there a checkpoint, of this run or of one inside it?"""
    return any(folder.rglob(CHECKPOINT))


def _refuse_other_config(run: Run, found: dict[str, Any]) -> None:
    if found != run.config:
        keys = sorted(k for k in {*found, *run.config} if found.get(k) != run.config.get(k))
        differences = "; ".join(f"{k}: {found.get(k)!r} there, {run.config.get(k)!r} now" for k in keys)
        raise InputError(
            f"{run.folder} holds an unfinished run with other settings ({differences}). "
            "Repeat the old settings to go on with it, or remove the folder to start anew."
        )


def _finish(run: Run) -> None:
    (run.folder / CHECKPOINT).unlink(missing_ok=True)
    finished = time.time()
    write_json(run.folder / "run.json", run.describe(finished=finished))
    if run.path.exists():
        old = run.path.with_name(run.path.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        run.path.rename(old)
        run.folder.rename(run.path)
        shutil.rmtree(old)
    else:
        run.folder.rename(run.path)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, sort_keys=True) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))


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


def save_tensors(path: Path, tensors: dict[str, Tensor], notes: dict[str, Any] | None = None) -> None:
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    metadata = {"notes": json.dumps(notes or {})}
    write_atomically(path, lambda temporary: save_file(plain, temporary, metadata))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["notes"])  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a complete safetensors file ({error}). Remove it to start anew.") from error


def load_model(folder: str | Path, model: nn.Module | None = None) -> nn.Module:
    """The model of a finished RUN: one of `NETS` built from its description, or `model` with the stored weights."""
    from candidly.nets import build_net

    folder = Path(folder) / "model"
    if model is None:
        model = build_net(**json.loads((folder / "model.json").read_text()))
    model.load_state_dict(load_tensors(folder / "model.safetensors")[0])
    return model.eval()


def versions() -> dict[str, str]:
    """Versions of what decides the numbers."""
    packages = {name: metadata.version(name) for name in ("candidly", "numpy", "scikit-learn", "torch")}
    return {**packages, "python": platform.python_version(), "revision": _revision()}


def _revision() -> str:
    """The commit of the source tree, or "released" outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "released"
