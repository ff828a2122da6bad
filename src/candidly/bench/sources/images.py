"""Read image sets in their official formats: uint8 images, and int64 labels from 0.

Images have the shape (n, height, width) or (n, height, width, 3). Pixels are as they are stored:
nothing is subtracted, mirrored or cut away.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from candidly.errors import InputError

IDX_BYTES = 8  # type code of unsigned bytes in the third byte of an idx file
PLANES = 3072  # bytes of a 32 x 32 image: its red, green and blue plane

Parts = Mapping[str, tuple[str, ...]]
IDX: Parts = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
CIFAR10: Parts = {
    "train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test": ("test_batch.bin",),
}
CIFAR100: Parts = {"train": ("train.bin",), "test": ("test.bin",)}
SVHN: Parts = {"train": ("train_32x32.mat",), "test": ("test_32x32.mat",)}
IMAGENET32: Parts = {"train": ("train_data_batch_*.npz",), "test": ("val_data.npz",)}


def read_idx(path: str | Path) -> np.ndarray:
    """Read an idx file of unsigned bytes (MNIST, Fashion-MNIST), gzipped or not."""
    path = _existing(path)
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path} is not a complete gzip file ({error}). Fetch it again."
        ) from error
    if len(data) < 4 or data[:3] != bytes([0, 0, IDX_BYTES]):
        raise InputError(
            f"{path} begins with {data[:4].hex(' ')}; an idx file of bytes begins with 00 00 08."
        )
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise InputError(f"{path} ends within its header of {start} bytes. Fetch it again.")
    shape = tuple(int(size) for size in np.frombuffer(data[4:start], dtype=">u4"))
    size = len(data) - start
    if size != math.prod(shape):
        declared = f"{shape}, {math.prod(shape)} bytes"
        raise InputError(f"{path} declares {declared}, but holds {size}. Fetch it again.")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape).copy()


def find_idx(folder: str | Path, name: str) -> Path:
    """Find `name` in `folder`, gzipped or not."""
    plain = Path(folder) / name
    for path in (plain, Path(folder) / f"{name}.gz"):
        if path.exists():
            return path
    raise InputError(f"{plain} is missing, and so is {name}.gz: expected a folder of idx files.")


def idx_images(folder: str | Path, part: str, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Read (images, labels) of an MNIST-like folder; the part "test" is also called "t10k"."""
    names = _names(IDX, "test" if part == "t10k" else part)
    image_path, label_path = (find_idx(folder, name) for name in names)
    images = _pixels(image_path, "the array", read_idx(image_path), (None, None, None))
    return images, _labels(label_path, read_idx(label_path), len(images), range(classes))


def cifar10(folder: str | Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read (images, labels) of the part "train" or "test" of `cifar-10-batches-bin`."""
    return _cifar(folder, _names(CIFAR10, part), (10,))


def cifar100(folder: str | Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read (images, fine labels) of the part "train" or "test" of `cifar-100-binary`."""
    return _cifar(folder, _names(CIFAR100, part), (20, 100))


def _cifar(
    folder: str | Path, names: tuple[str, ...], classes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Read CIFAR's binary layout: records of one byte for each kind of label, then the planes.

    The last kind of label counts.
    """
    width = len(classes) + PLANES
    images: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for path in (_existing(Path(folder) / name) for name in names):
        data = np.fromfile(path, dtype=np.uint8)
        if not len(data) or len(data) % width:
            raise InputError(
                f"{path} has {len(data)} bytes, not a multiple of {width}: it is cut short. "
                "Fetch it again."
            )
        records = data.reshape(-1, width)
        kinds = [
            _labels(path, records[:, i], len(records), range(count))
            for i, count in enumerate(classes)
        ]
        images.append(_from_planes(records[:, len(classes) :]))
        labels.append(kinds[-1])
        if len(records) != len(labels[0]):
            raise InputError(
                f"{path} has {len(records)} images, and {names[0]} has {len(labels[0])}: "
                "one of them is cut short. Fetch them again."
            )
    return np.concatenate(images), np.concatenate(labels)


def svhn(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Read (images, digits) of SVHN's cropped format, such as `train_32x32.mat`.

    Class 10 of the file is the digit 0.
    """
    from candidly.data.formats.matlab import load_mat

    path = _existing(path)
    found = load_mat(path, ("X", "y"))
    if not {"X", "y"} <= found.keys():
        raise InputError(f"{path} lacks SVHN's X or y. Fetch it again.")
    images = _pixels(path, "X", found["X"], (32, 32, 3, None)).transpose(3, 0, 1, 2)
    labels = _labels(path, found["y"].reshape(-1), len(images), range(1, 11))
    return np.ascontiguousarray(images), labels % 10


def imagenet32(folder: str | Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read (images, labels) of all batches of "train", or of "test" (the validation images).

    Class 1 of the files is label 0.
    """
    (pattern,) = _names(IMAGENET32, part)
    # By length first: batch 10 comes after batch 9.
    paths = sorted(Path(folder).glob(pattern), key=lambda path: (len(path.name), path.name))
    if not paths:
        raise InputError(
            f"{Path(folder) / pattern} is missing: expected a folder of ImageNet32's npz files."
        )
    labels = [_labels(path, _npz_array(path, "labels"), None, range(1, 1001)) - 1 for path in paths]
    # The whole set has 3.9 GB: it should be in memory only once.
    images = np.empty((sum(map(len, labels)), 32, 32, 3), np.uint8)
    start = 0
    for path, batch in zip(paths, labels, strict=True):
        data = _pixels(path, "data", _npz_array(path, "data"), (len(batch), PLANES))
        images[start : start + len(batch)] = _from_planes(data)
        start += len(batch)
    return images, np.concatenate(labels)


def _npz_array(path: Path, name: str) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as file:
            return np.asarray(file[name])
    except Exception as error:  # on damaged files NumPy and zipfile raise almost anything
        raise InputError(
            f"{path}: {name!r} cannot be read as a plain array ({error}). Fetch the file again."
        ) from error


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} is missing: expected the official layout of the set.")
    return path


def _names(parts: Parts, part: str) -> tuple[str, ...]:
    if part not in parts:
        raise InputError(f"part={part!r}: expected {' or '.join(map(repr, parts))}.")
    return parts[part]


def _from_planes(planes: np.ndarray) -> np.ndarray:
    """Turn (n, 3072) bytes, one plane for each colour, into images (n, 32, 32, 3)."""
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _pixels(path: Path, name: str, array: np.ndarray, shape: tuple[int | None, ...]) -> np.ndarray:
    """Return `array` if it holds bytes in the expected shape; None means any size."""
    fits = array.ndim == len(shape)
    if fits:
        fits = all(want in (None, size) for want, size in zip(shape, array.shape, strict=True))
    if array.dtype != np.uint8 or not fits or not array.size:
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise InputError(
            f"{path}: {name} is {array.dtype} {array.shape}, but images are uint8 ({expected})."
        )
    return array


def _labels(path: Path, labels: np.ndarray, count: int | None, allowed: range) -> np.ndarray:
    """Return `labels` as int64 if they are `count` integers in the allowed range.

    None means any count but zero.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not labels.size:
        raise InputError(
            f"{path}: the labels are {labels.dtype} {labels.shape}, expected a row of integers."
        )
    if count not in (None, len(labels)):
        raise InputError(f"{path}: {len(labels)} labels for {count} images.")
    low, high = int(labels.min()), int(labels.max())
    if low not in allowed or high not in allowed:
        raise InputError(
            f"{path}: labels from {low} to {high}, expected {allowed[0]} to {allowed[-1]}."
        )
    return labels.astype(np.int64)
