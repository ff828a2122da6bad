"""The image sets by name: their files, where they come from, and how to read them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from candidly.bench.sources.images import (
    CIFAR10,
    CIFAR100,
    IDX,
    IMAGENET32,
    SVHN,
    Parts,
    cifar10,
    cifar100,
    idx_images,
    imagenet32,
    svhn,
)
from candidly.checks import one_of
from candidly.errors import InputError

VARIABLE = "CANDIDLY_DATA"
UNNAMED = (
    f"no data folder is named: pass --data-dir DIR (data_dir in Python), or set {VARIABLE}=DIR."
)


@dataclass(frozen=True)
class Download:
    """An official file: a set's file as it is, or a `.tar.gz` with the set's folder."""

    url: str
    sha256: str
    size: int  # bytes
    parts: tuple[str, ...] = ("train", "test")

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[-1]

    @property
    def packed(self) -> bool:
        return self.file.endswith(".tar.gz")


@dataclass(frozen=True)
class ImageSet:
    """An image set.

    Parameters
    ----------
    title, page : str
        Its full name, and the address of its page.
    folders : tuple of str
        Folders below the data folder, searched in turn; a fetched set goes into the first.
    parts : dict
        The names of the files of "train" and "test"; patterns are allowed.
    read : callable
        `read(folder, part)` returns (images, labels).
    sizes : dict
        Number of images of the official parts.
    downloads : tuple of Download
        Official files that can be fetched.
    suffixes : tuple of str
        What the names of the files may end with.
    advice : str
        How to get a set that cannot be fetched.
    """

    title: str
    page: str
    folders: tuple[str, ...]
    parts: Parts
    read: Callable[[Path, str], tuple[np.ndarray, np.ndarray]]
    sizes: dict[str, int]
    downloads: tuple[Download, ...] = ()
    suffixes: tuple[str, ...] = ("",)
    advice: str = ""

    def holds(self, folder: Path, part: str) -> bool:
        """Return whether all files of a part are in this folder; they are not opened."""
        patterns = [[name + suffix for suffix in self.suffixes] for name in self.parts[part]]
        return all(any(path for name in names for path in folder.glob(name)) for names in patterns)


def _idx_downloads(base: str, *checks: tuple[str, int]) -> tuple[Download, ...]:
    """List the official idx files; `checks` are their checksums and sizes."""
    files = [(part, name) for part, names in IDX.items() for name in names]
    return tuple(
        Download(f"{base}{name}.gz", sha256, size, (part,))
        for (part, name), (sha256, size) in zip(files, checks, strict=True)
    )


SETS = {
    "cifar10": ImageSet(
        "CIFAR-10, binary version",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        ("cifar-10-batches-bin", "cifar10", "."),
        CIFAR10,
        cifar10,
        {"train": 50_000, "test": 10_000},
        (
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                170_052_171,
            ),
        ),
    ),
    "cifar100": ImageSet(
        "CIFAR-100, binary version",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        ("cifar-100-binary", "cifar100"),
        CIFAR100,
        cifar100,
        {"train": 50_000, "test": 10_000},
        (
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                168_513_733,
            ),
        ),
    ),
    "svhn": ImageSet(
        "Street View House Numbers, cropped digits",
        "http://ufldl.stanford.edu/housenumbers/",
        ("svhn", "SVHN", "."),
        SVHN,
        lambda folder, part: svhn(folder / SVHN[part][0]),
        {"train": 73_257, "test": 26_032},
        (
            Download(
                "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
                182_040_794,
                ("train",),
            ),
            Download(
                "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
                64_275_384,
                ("test",),
            ),
        ),
    ),
    "imagenet32": ImageSet(
        "ImageNet, 32 x 32 pixels, npz files",
        "https://image-net.org/download-images",
        ("imagenet32", "Imagenet32_train_npz", "Imagenet32_val_npz", "."),
        IMAGENET32,
        imagenet32,
        {"train": 1_281_167, "test": 50_000},
        advice="it needs a login: download the npz archives of the 32 x 32 images there, and "
        "unpack them into",
    ),
    "fashion-mnist": ImageSet(
        "Fashion-MNIST",
        "https://github.com/zalandoresearch/fashion-mnist",
        ("fashion-mnist", "FashionMNIST/raw"),
        IDX,
        idx_images,
        {"train": 60_000, "test": 10_000},
        _idx_downloads(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
            ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
            ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
            ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
        ),
        suffixes=("", ".gz"),
    ),
    "mnist": ImageSet(
        "MNIST",
        "http://yann.lecun.com/exdb/mnist/",
        ("mnist", "MNIST/raw"),
        IDX,
        idx_images,
        {"train": 60_000, "test": 10_000},
        _idx_downloads(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
            ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
            ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
            ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
        ),
        suffixes=("", ".gz"),
    ),
}


def load_set(
    name: str, part: str, data_dir: str | Path | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read a part of an image set.

    Parameters
    ----------
    name : str
        A key of `SETS`.
    part : {"train", "test"}
        Which part.
    data_dir : path, optional
        Folder of the image sets; by default the environment variable CANDIDLY_DATA names it.

    Returns
    -------
    images : array (n, height, width) or (n, height, width, 3) of uint8
    labels : array (n,) of int64

    Raises
    ------
    InputError
        If the part is missing or damaged.
    """
    return find_set(name).read(require(name, part, data_dir), part)


def require(name: str, part: str, data_dir: str | Path | None = None) -> Path:
    """Return the folder of a part of a set, or raise an error that says how to get it."""
    chosen = find_set(name)
    root = data_folder(data_dir)
    if part not in chosen.parts:
        raise InputError(f"{name}, part={part!r}: expected {' or '.join(map(repr, chosen.parts))}.")
    folder = locate(chosen, part, root)
    if folder is None:
        raise InputError(_missing(name, part, root))
    return folder


def find_set(name: str) -> ImageSet:
    """Return the set of this name."""
    return SETS[one_of(name, SETS, "image set")]


def data_folder(data_dir: str | Path | None) -> Path:
    """Return the folder of the image sets: the argument, or that of CANDIDLY_DATA."""
    folder = _named_folder(data_dir)
    if folder is None:
        raise InputError(UNNAMED)
    return folder


def _named_folder(data_dir: str | Path | None) -> Path | None:
    chosen = data_dir or os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else None


def locate(chosen: ImageSet, part: str, root: Path) -> Path | None:
    """Return the first of the set's folders under `root` that holds all files of a part."""
    return next((root / name for name in chosen.folders if chosen.holds(root / name, part)), None)


def how_to_get(name: str, root: Path) -> str:
    """Say which command fetches the set, or what to do by hand; and its page."""
    chosen = SETS[name]
    if not chosen.downloads:
        return f"Its page is {chosen.page}; {chosen.advice} {root / chosen.folders[0]}."
    command = f"candidly data fetch {name} --data-dir {shlex.quote(str(root))}"
    return f"Get it with `{command}`; its page is {chosen.page}."


def _missing(name: str, part: str, root: Path) -> str:
    chosen = SETS[name]
    files = ", ".join(chosen.parts[part])
    files += "".join(f" (or with {suffix})" for suffix in chosen.suffixes if suffix)
    folders = ", ".join(str(root / folder) for folder in chosen.folders)
    return f"{name} ({part}) is missing: looked for {files} in {folders}. {how_to_get(name, root)}"


def survey(data_dir: str | Path | None = None) -> list[dict[str, Any]]:
    """List every set with its page and the folders where its parts are.

    Without a data folder, none is found.
    """
    root = _named_folder(data_dir)
    rows = []
    for name, chosen in SETS.items():
        places = {part: locate(chosen, part, root) if root else None for part in chosen.parts}
        found = {part: str(place) for part, place in places.items() if place}
        rows.append({"name": name, "title": chosen.title, "found": found, "page": chosen.page})
    return rows


def survey_text(data_dir: str | Path | None = None) -> str:
    """Write the survey as text for a terminal."""
    lines = [
        f"{row['name']:<14} {', '.join(row['found']) or '-':<12} {row['title']:<42} {row['page']}"
        for row in survey(data_dir)
    ]
    root = _named_folder(data_dir)
    return "\n".join([f"Found in {root}:" if root else f"Nothing is found: {UNNAMED}", *lines])
