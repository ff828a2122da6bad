"""Training passes in bfloat16: faster on processors and GPUs made for it, slower on others."""

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
from torch import nn
net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.Flatten(), nn.Linear(2048, 8))
with torch.autocast("cpu", torch.bfloat16):
    net(torch.ones(16, 3, 8, 8)).float().sum().backward()
"""


class Bfloat16Passes:
    """Hooks that run the training passes of a net in bfloat16, until `close` removes them.

    They apply to the net's `features`, if it has any, else to the whole net. Outputs are converted
    back to full precision. Weights, head, losses and passes in evaluation mode are not changed.

    Parameters
    ----------
    model : nn.Module
    """

    def __init__(self, model: nn.Module) -> None:
        body = model.features if has_features(model) else model
        self.entered: list[torch.autocast] = []
        self.handles = [
            body.register_forward_pre_hook(self._enter),
            body.register_forward_hook(self._leave, always_call=True),  # also when the pass fails
        ]

    def _enter(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if module.training:
            self.entered.append(torch.autocast(inputs[0].device.type, torch.bfloat16))
            self.entered[-1].__enter__()

    def _leave(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> Any:
        if not self.entered:
            return None
        self.entered.pop().__exit__(None, None, None)
        return output.to(inputs[0].dtype) if isinstance(output, Tensor) else None

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()


def require_bfloat16(device: torch.device) -> None:
    """Check that passes in bfloat16 do not end the process, as on some virtual machines.

    Parameters
    ----------
    device : torch.device

    Raises
    ------
    InputError
        If a small trial, in a process of its own, fails.
    """
    if device.type == "cpu" and (ended := _ended_by()):
        raise InputError(
            "precision='bfloat16' cannot be used on this processor: a small trial ended with "
            f"{ended}. Use 'float32'."
        )


@lru_cache(maxsize=1)
def _ended_by() -> str:
    """Run a trial in a process of its own; give the signal or code that ended it, or ""."""
    command = [sys.executable, "-c", TRIAL]
    code = subprocess.run(command, capture_output=True, check=False).returncode
    if code < 0:
        return signal.Signals(-code).name
    return f"code {code}" if code else ""
