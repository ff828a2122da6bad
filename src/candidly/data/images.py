"""Image sets as the world distributes them."""

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
