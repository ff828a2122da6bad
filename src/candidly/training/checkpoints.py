"""The state of a training as named tensors, for checkpoints."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Optimizer

STEP = "step."
OPTIMIZER = "optimizer."
RECORDED = "recorded"


def pack_state(step: nn.Module, optimizer: Optimizer, recorded: Tensor | None) -> dict[str, Tensor]:
    """Collect the state of a training.

    Parameters
    ----------
    step : nn.Module
        Model and method.
    optimizer : Optimizer
    recorded : tensor, optional
        Outputs recorded in the last epoch.

    Returns
    -------
    dict
    """
    state = {STEP + name: tensor for name, tensor in step.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items():
        for name, tensor in values.items():
            if tensor is not None:
                state[f"{OPTIMIZER}{number}.{name}"] = tensor
    if recorded is not None:
        state[RECORDED] = recorded
    return state


def unpack_state(state: dict[str, Tensor], step: nn.Module, optimizer: Optimizer) -> Tensor | None:
    """Load what `pack_state` collected.

    Parameters
    ----------
    state : dict
    step : nn.Module
    optimizer : Optimizer

    Returns
    -------
    tensor or None
        The recorded outputs.
    """
    step.load_state_dict(_part(state, STEP))
    whole = optimizer.state_dict()
    for name, tensor in _part(state, OPTIMIZER).items():
        number, key = name.split(".", 1)
        whole["state"].setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict(whole)
    return state.get(RECORDED)


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
