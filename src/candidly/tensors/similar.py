"""What the candidates of similar rows say of a row."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from candidly.blocks import row_blocks

POOL = 10_000  # rows among which similar ones are sought


def similar_votes(features: Tensor, candidates: Tensor, count: int) -> Tensor:
    """Compute the sum over the nearest other rows k of y_k - mean y, divided by sqrt(count).

    Random sets give numbers of the same size, whatever the count.

    Parameters
    ----------
    features : tensor (n, d)
        Rows are near if the cosine of their features is large.
    candidates : bool tensor (n, c)
        y of the formula. Neighbours are sought among the first `POOL` rows.
    count : int
        Number of neighbours, at most half as many as there are rows per class.

    Returns
    -------
    tensor (n, c)
        Zeros, if there are too few rows for a neighbour.

    Examples
    --------
    >>> features = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-1.0, 0.0]])
    >>> candidates = torch.tensor([[True], [True], [False], [False]])
    >>> similar_votes(features, candidates, count=1).flatten()
    tensor([ 0.5000, -0.5000,  0.5000, -0.5000])
    """
    n, c = candidates.shape
    unit = F.normalize(features.to(torch.get_default_dtype()), dim=-1)
    sets = candidates[:POOL].to(unit)
    centred = sets - sets.mean(0)
    count = min(count, len(sets) // (2 * c))
    votes = torch.zeros((n, c), dtype=unit.dtype, device=unit.device)
    if count == 0:
        return votes
    for rows in row_blocks(n, len(sets)):
        similarities = unit[rows] @ unit[: len(sets)].T
        itself = torch.arange(rows.start, max(rows.start, min(rows.stop, len(sets))))
        similarities[itself - rows.start, itself] = -torch.inf
        nearest = similarities.topk(count, dim=-1).indices
        votes[rows] = centred[nearest].sum(1) / math.sqrt(count)
    return votes
