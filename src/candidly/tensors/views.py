"""Views: batches of augmented inputs, made on the device from data that are stored there.

Random views use numbers that are drawn for all rows of a batch, and then cut to the part that a
process works on, so that any number of processes sees the same views as one (see `recipes`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from candidly.blocks import row_blocks
from candidly.checks import one_of
from candidly.errors import InputError
from candidly.tensors.mapped import MappedRows, as_tensor, is_mapped
from candidly.tensors.recipes import RECIPES, VIEWS, Draw

__all__ = [
    "RECIPES",
    "VIEWS",
    "ImageViews",
    "TableViews",
    "VersionViews",
    "Views",
    "make_views",
]

# Rows of a table that are converted to double precision together
ROWS_TOGETHER = 4096
# Least standard deviation of a column: squares of smaller numbers underflow
LEAST_STD = 1e-150


def make_views(
    X: Any,
    *,
    versions: bool = False,
    rows: Any = None,
    mean: Any = None,
    std: Any = None,
    device: str | torch.device = "cpu",
) -> Views:
    """Make views of images or of a table.

    Parameters
    ----------
    X : array-like
        Images, uint8 of shape (n, h, w) or (n, h, w, 1 or 3), or a table of finite numbers (n, d).
        With `versions`, a table with versions of each row, (n, k, d). Do not change X while the
        views are in use: data that are already on the device are not copied. Memory-mapped arrays
        are not read into memory: each batch reads its rows.
    versions : bool
        Whether X has versions of each row, as `candidly.data.encoders.encode_versions` makes them:
        the row as it is, its weak copies, and as many strong ones.
    rows : array-like of int or bool, optional
        The rows of X to use, as an index or a mask; by default all.
    mean, std : array-like, optional
        One value per channel (in units of 0..1) or per column; by default those of the used rows.
    device : str or torch.device
        Where batches are made.

    Returns
    -------
    Views

    Raises
    ------
    InputError
        If X has another type or shape, or numbers that are not finite in float32.

    Examples
    --------
    >>> import torch
    >>> views = make_views([[1.0, 5.0], [3.0, 9.0]])
    >>> views(torch.tensor([1, 0]), "plain")
    tensor([[ 1.,  1.],
            [-1., -1.]])
    """
    data = _as_rows(X, rows)
    kind: type[Views] = TableViews
    if versions:
        kind = VersionViews
    elif _type_name(data) == "uint8" and data.ndim in (3, 4):
        kind = ImageViews
    return kind(data, mean=mean, std=std, device=device)


class Views(ABC):
    """Views of some data: `views(index, kind, rng)` is a batch for a net.

    Parameters
    ----------
    X : array-like
    mean, std : array-like, optional
        One value per channel or column; by default those of X.
    device : str or torch.device
        Where batches are made.

    Attributes
    ----------
    shape : tuple of int
        Shape of one example as the net sees it.
    data : tensor or MappedRows
        The stored data: images as they are, tables standardised.
    mean, std : float64 tensors
    """

    shape: tuple[int, ...]
    data: Tensor | MappedRows
    mean: Tensor
    std: Tensor

    @abstractmethod
    def __init__(
        self, X: Any, *, mean: Any = None, std: Any = None, device: str | torch.device = "cpu"
    ) -> None: ...

    @abstractmethod
    def _view(self, index: Tensor, kind: str, draw: Draw) -> Tensor: ...

    def __len__(self) -> int:
        return len(self.data)

    def __call__(
        self,
        index: Tensor,
        kind: str,
        rng: torch.Generator | None = None,
        part: slice | Tensor = slice(None),
    ) -> Tensor:
        """Make a view of each of the rows `index[part]`.

        Parameters
        ----------
        index : integer tensor (b,)
        kind : str
            A name in `VIEWS`.
        rng : torch.Generator, optional
            On the CPU; draws random numbers for the whole of `index`.
        part : slice or tensor
            The rows of the batch to make.

        Returns
        -------
        float32 tensor (b, *shape)
        """
        one_of(kind, VIEWS, "view")
        device = self.data.device

        def draw(k: int, law: Callable[..., Tensor] = torch.rand) -> Tensor:
            return law(len(index), k, generator=rng)[part].to(device)

        return self._view(index[part].to(device), kind, draw)

    def like(self, X: Any) -> Views:
        """Make views of other data with this normalisation, such as the test set.

        Parameters
        ----------
        X : array-like
            Examples of the same shape.

        Returns
        -------
        Views
        """
        data = _as_rows(X)
        expected = tuple(self.data.shape[1:])
        if expected not in (tuple(data.shape[1:]), (*data.shape[1:], 1)):
            raise InputError(
                f"X is {_describe(data)}; expected n examples of shape {expected} each, as in "
                "training. Bring X to that shape."
            )
        return type(self)(data, mean=self.mean, std=self.std, device=self.data.device)


class ImageViews(Views):
    """Views of uint8 images; batches are (b, c, h, w), with channels last in memory."""

    def __init__(
        self, X: Any, *, mean: Any = None, std: Any = None, device: str | torch.device = "cpu"
    ) -> None:
        given = _as_rows(X)
        images = _with_channels(given) if given.ndim == 3 else given
        is_image = _type_name(images) == "uint8" and images.ndim == 4 and images.shape[-1] in (1, 3)
        if not is_image or not math.prod(images.shape):
            raise InputError(
                f"X is {_describe(given)}; expected images, uint8 of shape (n, h, w) or "
                "(n, h, w, 1 or 3). If channels come first, put them last with "
                "np.moveaxis(X, 1, -1)."
            )
        if isinstance(images, MappedRows):
            self.data = images.then(lambda rows: rows, images.dtype, device)
        else:
            self.data = images.contiguous().to(device)
        _, h, w, c = images.shape
        self.shape = (c, h, w)
        if mean is None or std is None:
            own_mean, own_std = _pixel_moments(images)
            mean = own_mean if mean is None else mean
            std = own_std if std is None else std
        self.mean, self.std = _checked_moments(mean, std, c)
        # A whole image of factors: the innermost loop then runs over many numbers, not over three.
        self._factor = (1 / (255 * self.std)).float().expand(h, w, c).contiguous().to(device)
        self._offset = (self.mean / self.std).float().expand(h, w, c).contiguous().to(device)

    def _view(self, index: Tensor, kind: str, draw: Draw) -> Tensor:
        pixels = RECIPES[kind](self.data.index_select(0, index), draw).contiguous().float()
        return pixels.mul_(self._factor).sub_(self._offset).permute(0, 3, 1, 2)


class TableViews(Views):
    """Views of a table, standardised.

    Weak views have noise of 0.1 standard deviations. Strong views have noise of 0.2, and each
    feature is set to its mean with probability 0.2. Resized views are the same as weak and strong
    ones.
    """

    def __init__(
        self, X: Any, *, mean: Any = None, std: Any = None, device: str | torch.device = "cpu"
    ) -> None:
        table = _as_rows(X)
        is_complex = isinstance(table, Tensor) and table.is_complex()
        if table.ndim != 2 or is_complex or not math.prod(table.shape):
            advice = "Turn images with values 0..1 into (255 * X).round().astype('uint8')."
            if table.ndim == 3:
                advice += (
                    " For versions of each row (n, k, d), as encode_versions makes them, use "
                    "make_views(X, versions=True)."
                )
            raise InputError(
                f"X is {_describe(table)}; expected a table of numbers (n, d), or images, uint8 of "
                f"shape (n, h, w) or (n, h, w, 1 or 3). {advice}"
            )
        self.shape = (table.shape[1],)
        self._standardise(table, mean, std, device)

    def _plain(self, rows: Tensor) -> Tensor:
        """Give the part of some rows that the moments are computed from."""
        return rows

    def _standardise(
        self, table: Tensor | MappedRows, mean: Any, std: Any, device: str | torch.device
    ) -> None:
        """Check the table, find its moments, and set `data`: at once, or a map row by row."""
        _check_finite(table)
        if mean is None or std is None:
            own_mean, own_std = _column_moments(
                lambda: (self._plain(rows) for _, rows in _blocks(table)), len(table)
            )
            mean = own_mean if mean is None else mean
            std = own_std if std is None else std
        self.mean, self.std = _checked_moments(mean, std, self.shape[0])
        dtype = torch.get_default_dtype()

        def standardised(rows: Tensor) -> Tensor:
            return (rows.cpu().double() - self.mean) / self.std

        if isinstance(table, MappedRows):
            for start, rows in _blocks(table):
                _check_distance(standardised(rows), start)
            stored = torch.empty(0, dtype=dtype).numpy().dtype
            self.data = table.then(lambda rows: standardised(rows).to(dtype), stored, device)
            return
        self.data = torch.empty(table.shape, dtype=dtype, device=device)
        for start, rows in _blocks(table):
            block = standardised(rows)
            _check_distance(block, start)
            self.data[start : start + len(block)] = block

    def _view(self, index: Tensor, kind: str, draw: Draw) -> Tensor:
        rows = self.data.index_select(0, index)
        if kind == "plain":
            return rows
        noise = draw(rows.shape[1], torch.randn)
        if kind in ("weak", "resized"):
            return rows + 0.1 * noise
        return (rows + 0.2 * noise).masked_fill(draw(rows.shape[1]) < 0.2, 0)


class VersionViews(TableViews):
    """Views of a table with versions of each row, (n, 1 + 2 copies, d), standardised.

    The versions are the row as it is, its weak copies, and its strong copies. A weak view is the
    row or one of its weak copies, drawn at random; a strong view is one of its strong copies. Both
    have noise of 0.1 standard deviations, because there are few copies. Resized views are the same
    as weak and strong ones.
    """

    def __init__(
        self, X: Any, *, mean: Any = None, std: Any = None, device: str | torch.device = "cpu"
    ) -> None:
        table = _as_rows(X)
        versions = table.shape[1] if table.ndim == 3 else 0
        if versions < 3 or versions % 2 == 0 or not math.prod(table.shape):
            raise InputError(
                f"X is {_describe(table)}; with versions=True expected versions of rows (n, k, d) "
                "with an odd k of at least 3: the row as it is, its weak copies, and as many "
                "strong ones."
            )
        self.shape = (table.shape[2],)
        self._standardise(table, mean, std, device)

    def _plain(self, rows: Tensor) -> Tensor:
        return rows[:, 0]

    def _view(self, index: Tensor, kind: str, draw: Draw) -> Tensor:
        if kind == "plain":
            return self.data[index, 0]
        copies = self.data.shape[1] // 2
        u = draw(1)[:, 0]
        if kind in ("weak", "resized"):
            version = (u * (1 + copies)).long()
        else:
            version = 1 + copies + (u * copies).long()  # the sum could be rounded up
        return self._chosen(index, version) + 0.1 * draw(self.shape[0], torch.randn)

    def _chosen(self, index: Tensor, version: Tensor) -> Tensor:
        if isinstance(self.data, MappedRows):
            return self.data[index, version]
        # Six times as fast as two indices
        return self.data.flatten(0, 1).index_select(0, index * self.data.shape[1] + version)

    def like(self, X: Any) -> Views:
        """Make views of other rows, (n, d) or with versions, with this normalisation."""
        data = _as_rows(X)
        kind = VersionViews if data.ndim == 3 else TableViews
        return kind(data, mean=self.mean, std=self.std, device=self.data.device)


# Reading and checks


def _as_rows(X: Any, rows: Any = None) -> Tensor | MappedRows:
    """Give the rows of X as a tensor, or as MappedRows if X is memory-mapped."""
    if isinstance(X, MappedRows):
        return X if rows is None else X.take(_as_index(rows, len(X)))
    if isinstance(X, Tensor):
        return X.detach() if rows is None else X.detach()[_as_index(rows, len(X))]
    array = np.asarray(X)
    if array.dtype.kind not in "buif":
        raise InputError(
            f"X is {_describe(array)}; expected numbers. Encode text and categories as numbers "
            "first."
        )
    index = None if rows is None else _as_index(rows, len(array))
    if is_mapped(array) and array.ndim:
        return MappedRows(array, index)
    return as_tensor(array if index is None else array[index])


def _as_index(rows: Any, n: int) -> np.ndarray:
    """Give the rows, an index or a mask, as an index."""
    index = np.asarray(rows)
    if index.dtype == bool and index.shape == (n,):
        return np.flatnonzero(index)
    if index.ndim != 1 or (index.dtype.kind not in "iu" and len(index)):
        raise InputError(
            f"rows is {_describe(index)}; expected row numbers of X, or a mask of shape ({n},)."
        )
    if len(index) and not 0 <= index.min() <= index.max() < n:
        raise InputError(
            f"rows reach from {index.min()} to {index.max()}; expected row numbers 0..{n - 1}."
        )
    return index.astype(np.int64)


def _with_channels(images: Tensor | MappedRows) -> Tensor | MappedRows:
    if not isinstance(images, MappedRows):
        return images[..., None]
    with_channels = MappedRows(images.array[..., None], images.rows)
    if (transform := images.transform) is None:
        return with_channels
    return with_channels.then(
        lambda rows: transform(rows[..., 0])[..., None], images.dtype, images.device
    )


def _blocks(table: Tensor | MappedRows) -> Iterator[tuple[int, Tensor]]:
    """Go through the rows of a table: (number of the first row, rows) of each block."""
    for block in row_blocks(len(table), 1, ROWS_TOGETHER):
        yield block.start, table[block]


def _type_name(X: Any) -> str:
    return str(X.dtype).removeprefix("torch.")


def _describe(X: Any) -> str:
    return f"{_type_name(X)} of shape {tuple(X.shape)}"


def _check_finite(table: Tensor | MappedRows) -> None:
    """Refuse NaN, infinities and numbers too large for float32, in a table (n, d) or (n, k, d)."""
    count = 0
    first: tuple[int, int, float] | None = None
    for start, rows in _blocks(table):
        bad = (~rows.float().isfinite()).nonzero()
        if len(bad) and first is None:
            place = tuple(bad[0].tolist())
            first = start + place[0], place[-1], rows[place].item()
        count += len(bad)
    if first is not None:
        row, column, value = first
        raise InputError(
            f"X holds {value} at row {row}, column {column} ({count} such cells in all); expected "
            "finite numbers of at most 3.4e38 (float32). Fill in or rescale these cells, or leave "
            "their rows or columns out."
        )


def _check_distance(standardised: Tensor, start: int) -> None:
    """Refuse rows too far from the mean for float32; they are numbered from `start`."""
    bad = (~standardised.float().isfinite()).nonzero()
    if len(bad):
        first = tuple(bad[0].tolist())
        raise InputError(
            f"X at row {start + first[0]}, column {first[-1]} is {standardised[first].item():.2g} "
            "standard deviations from the mean, too far for float32; expected values like those of "
            "the training data. Is the column in the same unit?"
        )


def _checked_moments(mean: Any, std: Any, width: int) -> tuple[Tensor, Tensor]:
    """Give mean and standard deviation as float64 of shape (width,), after a check."""
    moments = []
    for name, value in (("mean", mean), ("std", std)):
        values = torch.as_tensor(value, dtype=torch.float64, device="cpu")
        wrong = values.shape != (width,) or not values.isfinite().all()
        if wrong or (name == "std" and not (values > 0).all()):
            sign = "positive " if name == "std" else ""
            raise InputError(
                f"{name} is {value}; expected {width} finite {sign}numbers, one per channel or "
                "column."
            )
        moments.append(values)
    return moments[0], moments[1]


def _column_moments(blocks: Callable[[], Iterator[Tensor]], n: int) -> tuple[Tensor, Tensor]:
    """Compute mean and standard deviation of each column, in double precision.

    The standard deviation of a constant column is set to 1.
    """
    mean = torch.stack([block.cpu().double().sum(0) for block in blocks()]).sum(0) / n
    first = next(blocks())[0]
    squares = []
    constant = torch.ones(mean.shape, dtype=torch.bool)
    for block in blocks():
        squares.append(((block.cpu().double() - mean) ** 2).sum(0))
        constant &= (block == first).all(0).cpu()
    std = (torch.stack(squares).sum(0) / n).sqrt()
    return mean, std.masked_fill(constant | (std < LEAST_STD), 1)


def _pixel_moments(images: Tensor | MappedRows) -> tuple[Tensor, Tensor]:
    """Compute mean and standard deviation of each channel, in units of 0..1, exactly."""
    counts = []
    for rows in row_blocks(len(images), math.prod(images.shape[1:])):
        planes = images[rows].unbind(-1)
        counts.append(
            torch.stack([torch.bincount(plane.flatten(), minlength=256) for plane in planes])
        )
    histogram = torch.stack(counts).sum(0).double()
    share = (histogram / histogram.sum(1, keepdim=True)).cpu()
    level = torch.arange(256, dtype=torch.float64) / 255
    mean = share @ level
    std = (share * (level - mean[:, None]) ** 2).sum(1).sqrt()
    return mean, torch.where(std > 0, std, 1.0)
