"""Rows of memory-mapped arrays, read when they are needed."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


class MappedRows:
    """Rows of a memory-mapped array, with the part of a tensor's interface that views use.

    Indexing reads rows from the file, transforms them, and moves them to the device.

    Parameters
    ----------
    array : ndarray
        Backed by a memory map.
    rows : integer array (n,), optional
        The rows of the array to use, in this order; by default all.
    transform : function, optional
        Maps a tensor of rows as they are stored to a tensor of `dtype`.
    dtype : data type of NumPy, optional
        Type of the transformed rows; by default that of the array.
    device : torch.device
        Where the rows are needed.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> rows = MappedRows(np.array([[1.0], [2.0], [3.0]]), rows=np.array([2, 0]))
    >>> rows[torch.tensor([0])]
    tensor([[3.]], dtype=torch.float64)
    """

    def __init__(
        self,
        array: np.ndarray,
        rows: np.ndarray | None = None,
        *,
        transform: Callable[[Tensor], Tensor] | None = None,
        dtype: Any = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.array = array
        self.rows = rows
        self.transform = transform
        self.dtype = np.dtype(array.dtype if dtype is None else dtype)
        self.device = torch.device(device)
        self.shape = (len(array if rows is None else rows), *array.shape[1:])
        self.ndim = array.ndim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Tensor:
        """Read rows by a slice or an index; a tuple also indexes the next dimensions."""
        first, *others = (_as_index(part) for part in (key if isinstance(key, tuple) else (key,)))
        if self.rows is not None:
            first = self.rows[first]
        read = as_tensor(self.array[(first, *others)])
        return (read if self.transform is None else self.transform(read)).to(self.device)

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """Read the rows of an index; `dim` must be 0."""
        if dim != 0:
            raise ValueError(f"dim={dim}: expected 0, rows are read from the map")
        return self[index]

    def take(self, index: np.ndarray) -> MappedRows:
        """Choose rows, by an integer array, without reading them."""
        rows = index if self.rows is None else self.rows[index]
        return MappedRows(
            self.array, rows, transform=self.transform, dtype=self.dtype, device=self.device
        )

    def then(
        self, function: Callable[[Tensor], Tensor], dtype: Any, device: str | torch.device
    ) -> MappedRows:
        """Add a function, elementwise and with values of `dtype`, that is applied last."""
        first = self.transform

        def transform(rows: Tensor) -> Tensor:
            return function(rows if first is None else first(rows))

        return MappedRows(self.array, self.rows, transform=transform, dtype=dtype, device=device)

    def numpy(self) -> np.ndarray:
        """Read all rows into memory."""
        return self[:].cpu().numpy()

    def sources(self) -> tuple[np.ndarray, ...]:
        """Give the arrays that decide the rows, for a fingerprint."""
        return (self.array,) if self.rows is None else (self.array, self.rows)


def is_mapped(array: np.ndarray) -> bool:
    """Check whether an array, or the array it is a view of, is a memory map.

    Parameters
    ----------
    array : ndarray

    Returns
    -------
    bool
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


def as_tensor(array: np.ndarray) -> Tensor:
    """Make a tensor of an array, without a copy if it is contiguous and in native byte order.

    Parameters
    ----------
    array : ndarray
        It may be read-only: do not write to the tensor.

    Returns
    -------
    tensor
    """
    native = np.require(array, array.dtype.newbyteorder("="), ["C"])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writ")
        return torch.from_numpy(native)


def _as_index(part: Any) -> Any:
    return part.cpu().numpy() if isinstance(part, Tensor) else part
