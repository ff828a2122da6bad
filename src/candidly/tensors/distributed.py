"""Exchange between the processes of one training; with a single process nothing happens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def world() -> int:
    """Give the number of processes that train together.

    Returns
    -------
    int
    """
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Give the number of this process; 0 is the one that writes files.

    Returns
    -------
    int
    """
    return dist.get_rank() if world() > 1 else 0


def local_part(n: int) -> slice:
    """Give the rows of a global batch that belong to this process.

    Parameters
    ----------
    n : int
        Size of the global batch.

    Returns
    -------
    slice

    Examples
    --------
    >>> local_part(8)
    slice(0, 8, None)
    """
    return slice(n * rank() // world(), n * (rank() + 1) // world())


def gather(local: Tensor) -> Tensor:
    """Join the parts of all processes to one global batch, differentiably.

    Parameters
    ----------
    local : tensor (b, ...)
        The rows of this process, see `local_part`.

    Returns
    -------
    tensor (n, ...)
    """
    if world() == 1:
        return local
    n = torch.tensor(len(local), device=local.device)
    dist.all_reduce(n)
    part = local_part(int(n))
    before = _zeros(local, part.start)
    after = _zeros(local, int(n) - part.stop)
    return _Sum.apply(torch.cat([before, local, after]))


class _Sum(torch.autograd.Function):
    """The sum over all processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _summed(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _summed(gradient)


def _summed(x: Tensor) -> Tensor:
    total = x.contiguous().clone()
    dist.all_reduce(total)
    return total


def share_state(module: nn.Module) -> None:
    """Copy parameters and buffers of the first process to all others.

    Parameters
    ----------
    module : nn.Module
    """
    if world() > 1:
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, 0)


def sum_gradients(module: nn.Module) -> None:
    """Add up the gradients of all processes, in one message.

    Parameters
    ----------
    module : nn.Module
    """
    if world() == 1:
        return
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in gradients])
    dist.all_reduce(flat)
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def bring_together(states: Iterable[Tensor], mine: Tensor) -> None:
    """Exchange per-example states: each row comes from the process that trained on it.

    Parameters
    ----------
    states : iterable of tensors (n, ...)
        Changed in place.
    mine : bool tensor (n,)
        The rows that this process trained on.
    """
    if world() == 1:
        return
    for rows in states:
        rows[~mine] = 0
        dist.all_reduce(rows)


def average_buffers(model: nn.Module) -> None:
    """Average floating-point buffers, such as batch-norm statistics, over the processes.

    Parameters
    ----------
    model : nn.Module
    """
    if world() == 1:
        return
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer.div_(world())


def _zeros(like: Tensor, rows: int) -> Tensor:
    return torch.zeros((rows, *like.shape[1:]), dtype=like.dtype, device=like.device)
