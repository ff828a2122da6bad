"""The wooden losses of many rows in one pass over logits and candidates, by loops that numba compiles.

Optional (the extra `fast`): torch alone takes several passes, and nearly twice as long. The loops are written so that a
processor can take many labels at once: the largest values are found as integers, and 2^x is a polynomial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

NOTHING = np.int32(-0x7F800001)  # `in_order` of -inf
TERMS = tuple(
    np.float32(math.log(2) ** k / math.factorial(k)) for k in range(6, -1, -1)
)  # of 2^x: 1e-7 off at +-0.5
PER_LOG = np.float32(1 / math.log(2))
ONE_AT_A_TIME = Lock()  # the number of torch's threads belongs to the process

compiled = njit(nogil=True, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")


def wooden_losses(logits: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(inside, outside, energy) of float32 logits, as `scores` has them up to rounding."""
    best, total = np.empty((2, len(logits)), np.float32), np.empty(len(logits), np.float32)
    candidates = candidates.expand_as(
        logits
    )  # other shapes are refused: the loops would read beyond their ends
    summarise(logits.contiguous().numpy(), candidates.contiguous().numpy(), best, total)
    inside, outside = torch.from_numpy(best)
    top, log_total = torch.maximum(inside, outside), torch.from_numpy(total).log()
    return top - inside + log_total, top - outside + log_total, -top - log_total


def in_threads(work: Callable[[Any], Any], parts: Iterable[Any]) -> list[Any]:
    """Like `map`, on as many threads as torch uses, on each of which its operations stay.

    A thread that calls torch for the first time meanwhile will have but one, too.
    """
    inference = torch.is_inference_mode_enabled()

    def work_as_here(part: Any) -> Any:  # threads begin without this mode
        with torch.inference_mode(inference):
            return work(part)

    with ONE_AT_A_TIME:
        threads = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(
                threads, initializer=torch.set_num_threads, initargs=(1,)
            ) as pool:
                return list(pool.map(work_as_here, parts))
        finally:
            torch.set_num_threads(threads)


@compiled
def summarise(logits, candidates, best, total):
    """The largest logit inside and outside of each set, and the sum of exp(logit - the larger one)."""
    for row in range(len(logits)):
        inside = outside = NOTHING
        for label in range(logits.shape[1]):
            place, chosen = (
                in_order(np.float32(logits[row, label]).view(np.int32)),
                candidates[row, label],
            )
            inside = max(inside, place if chosen else NOTHING)
            outside = max(outside, NOTHING if chosen else place)
        best[0, row] = np.int32(in_order(inside)).view(np.float32)
        best[1, row] = np.int32(in_order(outside)).view(np.float32)
        top, terms = max(best[0, row], best[1, row]), np.float32(0)
        for label in range(logits.shape[1]):
            terms += power_of_two((logits[row, label] - top) * PER_LOG)
        total[row] = terms


@compiled
def in_order(bits):
    """From the bits of floats to integers in the same order; and back."""
    return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))


@compiled
def power_of_two(x):
    """2^x for x <= 0, where less than 2^-126 counts as that; NaN stays NaN."""
    x = np.float32(-126) if x < np.float32(-126) else x
    whole = np.floor(x + np.float32(0.5))
    part, result = x - whole, np.float32(0)
    for term in TERMS:
        result = result * part + term
    return result * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
