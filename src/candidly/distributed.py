"""One process or many: what the trainer and the methods need to know of the others. Identity in a single process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn


def world() -> int:
    """Number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process, 0 for the one that writes files."""
    return dist.get_rank() if world() > 1 else 0


def local_part(n: int) -> slice:
    """The rows of a global batch of n that belong to this process."""
    return slice(n * rank() // world(), n * (rank() + 1) // world())


def gather(local: Tensor) -> Tensor:
    """The parts of all processes as one global batch, differentiable."""
    if world() == 1:
        return local
    from torch.distributed.nn.functional import all_reduce  # noqa: PLC0415 (only exists in distributed builds)

    n = torch.tensor(len(local), device=local.device)
    dist.all_reduce(n)
    part = local_part(int(n))
    return all_reduce(torch.cat([_zeros(local, part.start), local, _zeros(local, int(n) - part.stop)]))


def bring_together(method: nn.Module, mine: Tensor) -> None:
    """Give every process the per-example state of all: each row comes from the process that trained on it (`mine`)."""
    if world() == 1:
        return
    for name in getattr(method, "row_names", ()):
        rows = getattr(method, name)
        rows[~mine] = 0
        dist.all_reduce(rows)


def average_buffers(model: nn.Module) -> None:
    """Average floating-point buffers (batch-norm statistics) over the processes."""
    if world() == 1:
        return
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= world()


def _zeros(like: Tensor, rows: int) -> Tensor:
    return torch.zeros((rows, *like.shape[1:]), dtype=like.dtype, device=like.device)
