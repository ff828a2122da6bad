"""Image sets as the world distributes them; images come back as uint8 (n, height, width[, 3])."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np

from candidly.errors import InputError

IDX_BYTES = 8  # type code of unsigned bytes in the third byte of an idx file


def read_idx(path: str | Path) -> np.ndarray:
    """An idx file of unsigned bytes (MNIST, Fashion-MNIST), gzipped or not, as an array of its declared shape."""
    path = Path(path)
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is not a whole gzip file ({error}). Fetch it again.") from error
    if len(data) < 4 or data[:3] != bytes([0, 0, IDX_BYTES]):
        raise InputError(f"{path} begins with {data[:4].hex(' ')}, not with 00 00 08: it is no idx file of bytes.")
    start = 4 + 4 * data[3]
    shape = tuple(int(size) for size in np.frombuffer(data[4:start], dtype=">u4"))
    if len(data) - start != math.prod(shape):
        raise InputError(
            f"{path} declares {shape}, {math.prod(shape)} bytes, but holds {len(data) - start}. Fetch it again."
        )
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def find_idx(folder: str | Path, name: str) -> Path:
    """`name` in `folder`, plain or gzipped."""
    for path in (Path(folder) / name, Path(folder) / f"{name}.gz"):
        if path.exists():
            return path
    raise InputError(f"{Path(folder) / name} is missing, and so is {name}.gz: is this the folder of the idx files?")


def idx_images(folder: str | Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """(images, labels) of the part "train" or "t10k" of an MNIST-like folder."""
    images = read_idx(find_idx(folder, f"{part}-images-idx3-ubyte"))
    labels = read_idx(find_idx(folder, f"{part}-labels-idx1-ubyte"))
    if len(images) != len(labels):
        raise InputError(f"{folder}: {len(images)} {part} images, but {len(labels)} labels.")
    return images, labels.astype(np.int64)


CIFAR_RECORD = 3072  # bytes of an image: three planes of 32 x 32


def cifar_records(path: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """(images, labels) of a file in CIFAR's binary layout; labels have one column per label byte."""
    if not path.exists():
        raise InputError(f"{path} is missing: is this the folder of CIFAR's binary version?")
    data = np.fromfile(path, dtype=np.uint8)
    width = label_bytes + CIFAR_RECORD
    if not len(data) or len(data) % width:
        raise InputError(
            f"{path} has {len(data)} bytes, which is no multiple of {width}: it is cut short. Fetch it again."
        )
    records = data.reshape(-1, width)
    images = records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, :label_bytes].astype(np.int64)


def cifar10(folder: str | Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """(images, labels) of the part "train" or "test" of `cifar-10-batches-bin`."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if part == "train" else ["test_batch.bin"]
    parts = [cifar_records(Path(folder) / name, 1) for name in names]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels[:, 0] for _, labels in parts])


def svhn(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """(images, digits) of SVHN's cropped format, such as `train_32x32.mat`; the file's class 10 is the digit 0."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    if not Path(path).exists():
        raise InputError(f"{path} is missing: is this SVHN's cropped format?")
    try:
        file = loadmat(path, variable_names=["X", "y"])
        X, y = file["X"], file["y"].reshape(-1)
    except (MatReadError, KeyError, ValueError, TypeError, OSError) as error:
        raise InputError(f"{path} cannot be read as SVHN's X and y ({error}). Fetch it again.") from error
    if X.ndim != 4 or X.shape[3] != len(y):
        raise InputError(f"{path}: X is {X.shape}, y has {len(y)} entries; expected X of height, width, 3, n.")
    return np.ascontiguousarray(X.transpose(3, 0, 1, 2)), y.astype(np.int64) % 10
