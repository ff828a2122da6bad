"""Training passes in bfloat16: less time on processors and GPUs that are made for it, more on others."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from candidly.errors import InputError
from candidly.tensors.nets import has_features

PRECISIONS = ("float32", "bfloat16")
TRIAL = """
import torch
net = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(2048, 8))
with torch.autocast("cpu", torch.bfloat16):
    net(torch.ones(16, 3, 8, 8)).float().sum().backward()
"""


class Lowered:
    """While it lasts, what a net makes of its inputs in training is computed in bfloat16, and leaves in full precision.

    That is the net's `features`, if it has any, else the whole net. Weights, head, losses and all passes outside of
    training steps are not touched.
    """

    def __init__(self, model: nn.Module) -> None:
        body = model.features if has_features(model) else model
        self.entered: list[torch.autocast] = []
        self.handles = [
            body.register_forward_pre_hook(self.enter),
            body.register_forward_hook(self.leave, always_call=True),  # also when the pass fails
        ]

    def enter(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if module.training:
            self.entered.append(torch.autocast(inputs[0].device.type, torch.bfloat16))
            self.entered[-1].__enter__()

    def leave(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> Any:
        if not self.entered:
            return None
        self.entered.pop().__exit__(None, None, None)
        return None if output is None else output.to(inputs[0].dtype)

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()


def require_bfloat16(device: torch.device) -> None:
    """An error where a pass in bfloat16 would end the process: some virtual machines promise what they refuse."""
    if device.type == "cpu" and (ended := _ended_by()):
        raise InputError(
            f"precision='bfloat16' cannot be used on this processor: a small trial ended with {ended}. Use 'float32'."
        )


@lru_cache(maxsize=1)
def _ended_by() -> str:
    """What ended a trial in a process of its own; empty if all went well."""
    code = subprocess.run(
        [sys.executable, "-c", TRIAL], capture_output=True, check=False
    ).returncode
    return "" if code == 0 else signal.Signals(-code).name if code < 0 else f"code {code}"
