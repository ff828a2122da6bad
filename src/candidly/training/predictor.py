"""A trained net with all it needs to classify raw inputs: its normalisation and its class list."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from candidly.errors import CandidlyError, InputError, TrainingError
from candidly.sets import label_array
from candidly.storage.store import load_tensors, read_json, save_tensors, write_json
from candidly.tensors import distributed
from candidly.tensors.nets import build_net, channels_last
from candidly.tensors.views import Views, make_views


@dataclass
class Predictor:
    """Raw inputs in, classes out; `save` and `load` keep it in a folder without pickle."""

    model: nn.Module
    classes: np.ndarray
    shape: tuple[int, ...]  # of one input as the net sees it
    mean: np.ndarray  # per channel or feature
    std: np.ndarray

    def logits(self, X: Any) -> np.ndarray:
        """(n, c) outputs of the net, inputs normalised as in training."""
        self._check(np.shape(X)[1:])
        device = next(self.model.parameters()).device
        logits = predict(self.model, make_views(X, mean=self.mean, std=self.std, device=device))
        if (row := first_undefined(logits)) is not None:
            raise self._undefined(row, logits[row].tolist())
        return logits.cpu().numpy()

    def _undefined(self, row: int, outputs: list[float]) -> CandidlyError:
        """Say whether the model or an input is at fault."""
        remedy = "training diverged: train the model with a smaller lr."
        weights = [*self.model.parameters(), *self.model.buffers()]
        if not all(weight.isfinite().all() for weight in weights):
            return TrainingError(f"the model's weights are not finite: {remedy}")
        shown = ", ".join(f"{value:.3g}" for value in outputs[:6])
        return InputError(
            f"X, row {row}: the model's outputs, {shown}, give no probabilities. Expected inputs "
            f"like those of the training data; if this happens to them too, {remedy}"
        )

    def _check(self, shape: tuple[int, ...]) -> None:
        """Images come as (h, w, c), or (h, w) if they are grey."""
        expected = (*self.shape[1:], self.shape[0]) if len(self.shape) == 3 else self.shape
        if expected not in (shape, (*shape, 1)):
            raise InputError(
                f"an input has the shape {shape}; the model was trained on {expected}."
            )

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, c) probabilities."""
        return torch.from_numpy(self.logits(X)).softmax(-1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """(n,) labels of the most probable classes."""
        return self.classes[self.logits(X).argmax(-1)]

    def save(self, folder: str | Path, net: dict[str, Any] | None = None) -> None:
        """Weights as safetensors, the rest as JSON. `net`: the arguments of `build_net`; `load` then needs no model."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        facts = {"classes": self.classes.tolist(), "shape": list(self.shape)}
        moments = {"mean": self.mean.tolist(), "std": self.std.tolist()}
        write_json(folder / "model.json", {"net": net, **facts, **moments})
        save_tensors(folder / "model.safetensors", self.model.state_dict())

    @classmethod
    def load(cls, run: str | Path, model: nn.Module | None = None) -> Predictor:
        """The model of a finished RUN, or of a folder that `save` wrote; `model`: the net, if it is none of `NETS`."""
        folder = Path(run) / "model" if (Path(run) / "model").is_dir() else Path(run)
        facts = read_json(folder / "model.json")
        if model is None and facts["net"] is None:
            raise InputError(
                f"{folder} was saved without a description of its net: pass the module as model=..."
            )
        model = build_net(**facts["net"]) if model is None else model
        model.load_state_dict(load_tensors(folder / "model.safetensors")[0])
        model = channels_last(model, facts["shape"])
        moments = (np.array(facts[key]) for key in ("mean", "std"))
        return cls(model.eval(), label_array(facts["classes"]), tuple(facts["shape"]), *moments)


def first_undefined(logits: Tensor) -> int | None:
    """The first row of logits (n, c) without a softmax: with NaN or +inf, or all -inf; or None."""
    undefined = (~logits.amax(-1).isfinite()).nonzero()
    return int(undefined[0]) if len(undefined) else None


def predict(
    model: nn.Module,
    views: Views,
    batch_size: int = 512,
    *,
    shared: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Logits of all examples, un-augmented, in evaluation mode; `shared`: all processes take part in it."""
    was_training = model.training
    model.eval()
    rows = torch.arange(len(views))
    if shared:
        rows = rows[distributed.local_part(len(views))]
    with torch.no_grad():
        first = model(views(rows[:batch_size], "plain"))
        logits = first.new_empty(
            (len(rows), *first.shape[1:]), dtype=dtype
        )  # all of them are there only once
        logits[:batch_size] = first
        for start in range(batch_size, len(rows), batch_size):
            part = slice(start, start + batch_size)
            logits[part] = model(views(rows[part], "plain"))
    model.train(was_training)
    return distributed.gather(logits) if shared else logits
