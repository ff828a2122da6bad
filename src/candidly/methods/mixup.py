"""Mixup: pairs of examples of a batch, mixed with their targets (Zhang et al., ICLR 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from candidly.methods.base import Batch
from candidly.tensors.distributed import gather, local_part


class Mixture:
    """A random pairing of the examples of a batch, and the weight of the first of each pair.

    The weight is max(l, 1 - l) with l from Beta(a, a), one for the batch. The pairs reach over all
    processes.

    Parameters
    ----------
    batch : Batch
    concentration : int
        a of Beta(a, a).
    among : bool tensor (b,), optional
        Which examples are paired with each other; the rest with themselves. By default all.
    """

    def __init__(self, batch: Batch, concentration: int, among: Tensor | None = None) -> None:
        u = gather(batch.uniform(2 * concentration))
        chosen = torch.ones_like(batch.index) if among is None else among.to(batch.index)
        n_chosen = int(gather(chosen).sum())
        order = torch.where(gather(chosen) > 0, u[:, 0], 2.0).argsort()[:n_chosen]
        partner = torch.arange(len(u), device=u.device)
        partner[order] = order.roll(1)
        self.partner = partner[local_part(len(u))]
        # The median of 2 a - 1 uniform numbers has the law Beta(a, a).
        share = float(u[0, 1:].median())
        self.share = max(share, 1 - share)

    @torch.no_grad()
    def __call__(self, values: Tensor) -> Tensor:
        """Mix l x_i + (1 - l) x_j, without gradient.

        Parameters
        ----------
        values : tensor (b, ...)

        Returns
        -------
        tensor (b, ...)
        """
        return self.share * values + (1 - self.share) * gather(values)[self.partner]
