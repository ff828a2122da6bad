"""MATLAB files, read and written by SciPy in a process of its own.

SciPy's reader can crash the interpreter on a damaged file, or ask for any amount of memory. A child
process with limits does the reading; it answers with a line of JSON and the arrays, as NumPy writes
them. Windows has no such limits: a damaged file can take all memory there before it is refused.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
from numpy.lib.format import read_array, write_array
from scipy import sparse

from candidly.data.guard import allowed_memory, refuse_larger_than_memory
from candidly.errors import InputError

ITEM_BYTES = {
    "logical": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "single": 4,
    "int32": 4,
    "uint32": 4,
}
# Address space that Python and SciPy take themselves.
OWN_BYTES = 1 << 30
# Reading is never slower than this.
BYTES_PER_SECOND = 1e6
MIN_SECONDS = 60


def load_mat(path: Path, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Load variables of a MATLAB file.

    Parameters
    ----------
    path : Path
        The file, of a version before 7.3.
    names : tuple of str, optional
        The variables to load, where present; by default all but cells, structs and the like.

    Returns
    -------
    dict
        Arrays or sparse matrices by name.

    Raises
    ------
    InputError
        If the file is damaged, of version 7.3, or takes too much memory.
    """
    return _ask(path, {"names": names})


def rewrite_mat(path: Path, out: Path, replaced: dict[str, Any]) -> None:
    """Copy the MATLAB file `path` to `out`, with other values of the variables `replaced`."""
    _ask(path, {"out": str(out)}, replaced)


def _ask(
    path: Path, request: dict[str, Any], given: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Let a child process answer a request."""
    refuse_hdf5(path)
    limit = allowed_memory(path)
    request |= {"path": str(path), "limit": limit, "size": path.stat().st_size}
    command = [sys.executable, "-m", "candidly.data.formats.matlab", json.dumps(request)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            _send(child.stdin, given or {})
            child.stdin.close()
            answer = json.loads(child.stdout.readline())
            found = {} if "error" in answer else _receive(child.stdout)
        except (OSError, ValueError):  # the child ended early
            raise InputError(
                f"{path} is a damaged MATLAB file: reading it failed. Save it again with -v7."
            ) from None
        finally:
            child.kill()
    refuse_larger_than_memory(
        answer.get("needed", 0), f"{path}: reading {answer.get('names')}", path
    )
    if "error" in answer:
        raise InputError(
            f"{path} cannot be read as a MATLAB file ({answer['error']}). Save it again with -v7."
        )
    return found


def refuse_hdf5(path: Path) -> None:
    """Refuse version 7.3, which is HDF5 under another name."""
    with path.open("rb") as file:
        head = file.read(520)
    if b"MATLAB 7.3" in head[:128] or b"\x89HDF" in (head[:4], head[512:516]):
        raise InputError(
            f"{path} is a MATLAB file of version 7.3 (HDF5), which is not read. In MATLAB: load "
            "it, then save('new.mat', 'data', 'partial_target', 'target', '-v7'); in Python: read "
            "it with h5py and write an NPZ file with X (n, d) and S (n, c)."
        )


# ---- variables through a pipe


def _send(file: IO[bytes], variables: dict[str, Any]) -> None:
    pipe = SimpleNamespace(write=file.write)  # NumPy would seek in a real file
    plain = {
        name: value
        for name, value in variables.items()
        if sparse.issparse(value) or not value.dtype.hasobject
    }
    listed = [{"name": name, "sparse": sparse.issparse(value)} for name, value in plain.items()]
    file.write(json.dumps(listed).encode() + b"\n")
    for value in plain.values():
        for array in _parts(value):
            write_array(pipe, array, allow_pickle=False)


def _parts(value: Any) -> tuple[np.ndarray, ...]:
    if not sparse.issparse(value):
        return (np.asarray(value),)
    matrix = sparse.csc_array(value)
    return matrix.data, matrix.indices, matrix.indptr, np.array(matrix.shape)


def _receive(file: IO[bytes]) -> dict[str, Any]:
    return {entry["name"]: _value(file, entry["sparse"]) for entry in json.loads(file.readline())}


def _value(file: IO[bytes], is_sparse: bool) -> Any:
    pipe = SimpleNamespace(read=file.read)
    if not is_sparse:
        return read_array(pipe, allow_pickle=False)
    data, indices, indptr, shape = (read_array(pipe, allow_pickle=False) for _ in range(4))
    return sparse.csc_array((data, indices, indptr), shape=tuple(shape.tolist()))


# ---- the child process


def _answer(request: dict[str, Any]) -> None:
    _limit_resources(request["limit"] + OWN_BYTES, request["size"])
    given = _receive(sys.stdin.buffer)
    try:
        answer, found = _carry_out(request, given)
    except Exception as error:  # on damaged files SciPy raises almost anything
        answer = {"error": str(error) or type(error).__name__}
        found = {}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    _send(sys.stdout.buffer, found)
    sys.stdout.buffer.flush()


def _limit_resources(memory: int, file_size: int) -> None:
    try:
        import resource
    except ImportError:  # Windows cannot limit a process: the file is read without limits
        return
    seconds = MIN_SECONDS + int(file_size / BYTES_PER_SECOND)
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_CORE: 0,
    }
    for kind, wanted in limits.items():
        most = resource.getrlimit(kind)[1]
        limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(kind, (limit, most))


def _carry_out(
    request: dict[str, Any], given: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load variables, and write them if the request names a file; return (facts, variables)."""
    from scipy.io import loadmat, savemat, whosmat

    names = request.get("names")
    listed = [entry for entry in whosmat(request["path"]) if names is None or entry[0] in names]
    chosen = [name for name, *_ in listed]
    facts = {"names": ", ".join(chosen), "needed": sum(_needed(*entry) for entry in listed)}
    if facts["needed"] > request["limit"]:
        return facts | {"error": "it needs more memory than is free"}, {}
    loaded = loadmat(request["path"], variable_names=chosen)
    found = {name: value for name, value in loaded.items() if not name.startswith("__")}
    for value in found.values():
        if sparse.issparse(value):
            value.check_format(full_check=True)
    if "out" not in request:
        return facts, found
    with open(request["out"], "wb") as file:
        savemat(file, found | given, do_compression=True)
    return facts, {}


def _needed(name: str, shape: tuple[int, ...], kind: str) -> int:
    """Count the bytes of a variable; features are made dense, label matrices stay sparse."""
    if kind == "sparse" and name != "data":
        return 8 * sum(shape)
    return ITEM_BYTES.get(kind, 8) * math.prod(shape)


if __name__ == "__main__":
    _answer(json.loads(sys.argv[1]))
