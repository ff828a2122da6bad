"""Training: one loop for all methods, with checkpoints, on one process or many (under `torchrun`)."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from candidly import metrics
from candidly.checks import number, one_of, whole
from candidly.console.progress import bar
from candidly.errors import InputError, Interrupted, TrainingError
from candidly.kinds import Selection, Truth
from candidly.methods.base import Batch, Method, state_dtype
from candidly.sets import CandidateSets
from candidly.storage.store import Run, fingerprint
from candidly.tensors import distributed
from candidly.tensors.bits import Bits
from candidly.tensors.flops import FlopMeter
from candidly.tensors.nets import channels_last
from candidly.tensors.precision import PRECISIONS, Bfloat16Passes, require_bfloat16
from candidly.tensors.views import Views, make_views
from candidly.training.predictor import Predictor, first_undefined, predict

TOGETHER = 1 << 21  # numbers of a view, for several batches, that are made together
CHECKED = 500  # examples at least, if there are as many, whose outputs are checked after training
PREPARED = 2000  # examples at least, if there are as many, that a net may look at before the training starts


@dataclass(frozen=True)
class Scheme:
    """How to train: everything that is the same for all methods."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    schedule: str  # "cosine" per epoch, or "onecycle" per step
    views: tuple[str, ...]  # for methods that do not ask for their own
    record: bool  # outputs of all examples: recorded while training, or by an extra pass without augmentation
    lr_min: float = 1e-5
    momentum: float = 0.9
    nesterov: bool = False
    precision: str = "float32"  # of training passes; or "bfloat16"

    def __post_init__(self) -> None:
        whole(self.epochs, "epochs", 1)
        whole(self.batch_size, "batch_size", 1)
        for name in ("lr", "lr_min", "weight_decay"):
            number(getattr(self, name), name, 0)
        number(self.momentum, "momentum", 0, 1)
        one_of(self.schedule, ("cosine", "onecycle"), "schedule")
        one_of(self.precision, PRECISIONS, "precision")

    def rate(self, epoch: float) -> float:
        """Learning rate at a point of the training, in epochs."""
        if self.schedule == "cosine":
            return (
                self.lr_min
                + (self.lr - self.lr_min) * (1 + math.cos(math.pi * int(epoch) / self.epochs)) / 2
            )
        done, peak = epoch / self.epochs, 0.25
        return self.lr_min + (self.lr - self.lr_min) * min(done / peak, (1 - done) / (1 - peak))


SCHEMES = {
    "paper": Scheme(300, 128, 0.01, 1e-3, "cosine", ("weak", "weak"), record=False),
    "fast": Scheme(20, 128, 0.05, 1e-3, "onecycle", ("weak",), record=True, nesterov=True),
}


def make_scheme(scheme: str | Scheme, **changes: Any) -> Scheme:
    """A scheme by name, with some of its values changed."""
    plan = scheme if isinstance(scheme, Scheme) else SCHEMES[one_of(scheme, SCHEMES, "scheme")]
    for name in changes:
        one_of(name, [field.name for field in dataclasses.fields(Scheme)], "setting of a scheme")
    return dataclasses.replace(plan, **changes)


@dataclass
class Fitted:
    """What a training leaves: the predictor, the method with its state, and one row of metrics per epoch."""

    predictor: Predictor
    method: Method
    history: list[dict[str, Any]]

    @property
    def model(self) -> nn.Module:
        return self.predictor.model

    @property
    def selection(self) -> Selection | None:
        """The method's last division of the training examples, as NumPy masks; None if it makes none."""
        found = self.method.selection
        return None if found is None else Selection(*(mask.cpu().numpy() for mask in found))


class Step(nn.Module):
    """Model and method as one module, so that optimizer and checkpoint see the state of both."""

    def __init__(self, model: nn.Module, method: Method) -> None:
        super().__init__()
        self.model, self.method = model, method

    def forward(self, batch: Batch) -> Tensor:
        return self.method.loss(self.model, batch)


def fit(
    model: nn.Module,
    X: Any,
    candidates: Any,
    method: Method | str,
    *,
    scheme: str | Scheme = "fast",
    seed: int = 0,
    device: str = "auto",
    test: tuple[Any, Any] | None = None,
    truth: Truth | None = None,
    run: Run | None = None,
    label: str = "",
    progress: bool | None = None,
    **changes: Any,
) -> Fitted:
    """Train `model` on `X` and its candidate sets by `method`.

    X: array of uint8 images (n, h, w[, c]) or of features (n, d), or `Views`. candidates: `CandidateSets`, or anything
    that makes one. method: a `Method`, or the name of one with its default settings. `changes` override values of the
    scheme, such as `epochs`. `test` (inputs, class indices) and `truth` only fill the metrics. With a `run` of
    `store.writing` each epoch leaves a checkpoint, and an interrupted training goes on bit for bit (on a CPU).
    """
    plan, sets, method = make_scheme(scheme, **changes), as_sets(candidates), as_method(method)
    views = X if isinstance(X, Views) else make_views(X, device=find_device(device))
    if device != "auto" and views.data.device != find_device(device):
        raise InputError(
            f"the views are on {views.data.device}, not on device={device!r}: make them there."
        )
    trainer = Trainer(model, views, sets, method, plan, whole(seed, "seed"), test, truth, run)
    try:
        start = trainer.resume()
        shown = progress if distributed.rank() == 0 else False
        with bar(plan.epochs, label or type(method).__name__, done=start, shown=shown) as advance:
            for epoch in range(start, plan.epochs):
                row = trainer.epoch(epoch)
                advance("  ".join(f"{k} {row[k]:.3g}" for k in ("loss", "accuracy") if k in row))
    except KeyboardInterrupt:
        raise Interrupted(trainer.farewell()) from None
    finally:
        trainer.close()
    check_outputs(model, views, plan)
    moments = (moment.cpu().numpy() for moment in (views.mean, views.std))
    return Fitted(
        Predictor(model.eval(), sets.classes, views.shape, *moments), method, trainer.history
    )


class Trainer:
    """One training: data on the device, model, method, optimizer; all randomness of an epoch is (seed, epoch)'s."""

    def __init__(
        self,
        model: nn.Module,
        views: Views,
        sets: CandidateSets,
        method: Method,
        scheme: Scheme,
        seed: int = 0,
        test: tuple[Any, Any] | None = None,
        truth: Truth | None = None,
        run: Run | None = None,
    ) -> None:
        self.views, self.scheme, self.seed, self.run, self.method = views, scheme, seed, run, method
        self.device = views.data.device
        check_lengths(len(views), sets, truth)
        dense = torch.as_tensor(sets.dense(), device=self.device)
        self.test = (
            None if test is None else (views.like(test[0]), check_labels(*test, sets.n_classes))
        )
        self.kinds = None if truth is None else truth.kinds
        self.model = channels_last(model.to(self.device), views.shape)
        if (prepare := getattr(model, "prepare", None)) is not None:
            prepare(views(torch.arange(0, len(views), max(1, len(views) // PREPARED)), "plain"))
        check_width(model, views, sets.n_classes)
        self.rng = torch.Generator()
        self.history: list[dict[str, Any]] = []
        self.meter = FlopMeter()
        self.recorded: Tensor | None = None
        self.lowered = self.lower()
        try:
            self.set_up(dense)
        except (
            BaseException
        ):  # such as data that the method refuses: the caller's model keeps no hooks
            self.restore()
            raise
        self.recorder = Recorder(model) if scheme.record else None

    def lower(self) -> Bfloat16Passes | None:
        """Before the method is set up, which may copy the model."""
        if self.scheme.precision == "float32":
            return None
        require_bfloat16(self.device)
        return Bfloat16Passes(self.model)

    def set_up(self, candidates: Tensor) -> None:
        """Method, candidates, and an optimizer of model and method."""
        self.method.epochs = self.scheme.epochs
        with seeded(self.seed, 0, self.rng):
            self.method.setup(self.model, candidates, self.rng)
        self.method.to(self.device)
        kept = self.method.candidates
        self.candidates = Bits(candidates) if kept is None else kept  # once is enough
        self.step = Step(self.model, self.method)
        distributed.share_state(self.step)
        plan, parameters = self.scheme, [p for p in self.step.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(
            parameters,
            plan.lr,
            plan.momentum,
            weight_decay=plan.weight_decay,
            nesterov=plan.nesterov,
        )

    def epoch(self, epoch: int) -> dict[str, Any]:
        """Train one epoch; returns and stores its row of metrics."""
        began = time.perf_counter()
        with seeded(self.seed, epoch + 1, self.rng):
            self.method.epoch_start(epoch, self.predict_all)
            row: dict[str, Any] = {
                "epoch": epoch + 1,
                "lr": self.scheme.rate(epoch),
                "loss": self.train(epoch),
            }
        row |= self.method.report()
        if self.kinds is not None and self.method.selection is not None:
            row |= metrics.selection_quality(self.method.selection, self.method.scores, self.kinds)
        if self.test is not None:
            row["accuracy"] = metrics.accuracy(
                predict(self.model, self.test[0], shared=True), self.test[1]
            )
        row["flops"] = self.meter.total * distributed.world()
        row["seconds"] = time.perf_counter() - began
        self.history.append(row)
        self.checkpoint()
        return row

    def train(self, epoch: int) -> float:
        """One pass over the training examples; returns the mean loss."""
        self.step.train()
        total = torch.zeros((), device=self.device)
        order = torch.randperm(len(self.views), generator=self.rng)
        mine = torch.zeros(len(order), dtype=torch.bool, device=self.device)
        if self.recorded is not None:
            self.recorded.zero_()  # each process fills in its own rows
        phase = "warm-up" if self.method.warming else "training"  # they may cost different amounts
        for batch, size, done in self.batches(order):
            for group in self.optimizer.param_groups:
                group["lr"] = self.scheme.rate(epoch + done)
            mine[batch.index] = True
            with self.meter.counting(phase, len(batch.index)):
                total += self.update(batch, size)
            if self.recorder is not None and (outputs := self.recorder.take()) is not None:
                self.record(batch.index, outputs)
        return self.end_of_pass(total, mine, epoch)

    def record(self, index: Tensor, outputs: Tensor) -> None:
        if self.recorded is None:
            shape = self.candidates.shape
            self.recorded = torch.zeros(shape, dtype=state_dtype(shape), device=self.device)
        self.recorded[index] = outputs.to(self.recorded.dtype)

    def update(self, batch: Batch, size: int) -> Tensor:
        """One step on this process's part of a global batch of `size`; returns the sum of its losses."""
        losses = self.step(batch).sum()
        self.optimizer.zero_grad()
        (losses / size).backward()
        distributed.sum_gradients(self.step)
        self.optimizer.step()
        return losses.detach()

    def batches(self, order: Tensor) -> Iterator[tuple[Batch, int, float]]:
        """(this process's part of a global batch, the size of that, the share of the pass done before), one by one."""
        planned = batches(order, self.scheme.batch_size)
        together = max(1, TOGETHER // (self.scheme.batch_size * math.prod(self.views.shape)))
        while some := list(itertools.islice(planned, together)):
            for (index, done), views in zip(
                some, self.make_views([index for index, _ in some]), strict=True
            ):
                yield self.batch(index, views), len(index), done

    def make_views(self, indices: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
        """The views of this process's parts of some global batches, made together: small ones are mostly overhead."""
        rows = torch.arange(sum(map(len, indices))).split([len(index) for index in indices])
        parts = [part[distributed.local_part(len(part))] for part in rows]
        mine = slice(None) if distributed.world() == 1 else torch.cat(parts)
        kinds = self.method.views or self.scheme.views
        views = [self.views(torch.cat(indices), kind, self.rng, mine) for kind in kinds]
        return zip(*(view.split([len(part) for part in parts]) for view in views), strict=True)

    def batch(self, index: Tensor, views: tuple[Tensor, ...]) -> Batch:
        """The part of a global batch that belongs to this process."""
        part = distributed.local_part(len(index))
        rows = index[part].to(self.device)

        def uniform(width: int) -> Tensor:
            return torch.rand((len(index), width), generator=self.rng)[part].to(self.device)

        return Batch(rows, views, self.candidates[rows], uniform)

    def end_of_pass(self, total: Tensor, mine: Tensor, epoch: int) -> float:
        if distributed.world() > 1:
            dist.all_reduce(total)
            if self.recorded is not None:
                dist.all_reduce(self.recorded)
        distributed.bring_together(self.method.row_states(), mine)
        distributed.average_buffers(self.model)
        loss = float(total) / len(self.views)
        if not math.isfinite(loss):
            raise TrainingError(f"the loss of epoch {epoch + 1} is {loss}: {advice(self.scheme)}")
        return loss

    def predict_all(self) -> Tensor:
        """Logits of all training examples: as recorded in the last pass, or by a pass without augmentation.

        What is recorded is written over in the next pass: a method copies what it wants to keep.
        """
        if self.recorded is not None:
            return self.recorded
        with self.meter.counting("inference", len(self.views) // distributed.world()):
            outputs = predict(
                self.model, self.views, shared=True, dtype=state_dtype(self.candidates.shape)
            )
        if not outputs.isfinite().all():
            raise TrainingError(f"the model's outputs are no longer numbers: {advice(self.scheme)}")
        return outputs

    def checkpoint(self) -> None:
        if self.run is None:
            return
        self.run.add_metrics(self.history[-1])
        state = {f"step.{k}": v for k, v in self.step.state_dict().items()}
        for parameter, values in self.optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{parameter}.{k}": v for k, v in values.items() if v is not None}
        if self.recorded is not None:
            state["recorded"] = self.recorded
        meter = {"total": self.meter.total, "each": self.meter.each}
        self.run.save_checkpoint(state, epochs=self.history[-1]["epoch"], flops=meter)

    def resume(self) -> int:
        """Take up a checkpoint, if there is one; returns the number of finished epochs."""
        if self.run is None:
            return 0
        self.run.claim(**self.facts())
        found = self.run.load_checkpoint()
        if found is None:
            return 0
        state, notes = found
        self.step.load_state_dict({k[5:]: v for k, v in state.items() if k.startswith("step.")})
        self.load_optimizer({k[10:]: v for k, v in state.items() if k.startswith("optimizer.")})
        self.recorded = state["recorded"].to(self.device) if "recorded" in state else None
        self.history = self.run.keep_metrics(notes["epochs"])
        self.meter.total, self.meter.each = notes["flops"]["total"], notes["flops"]["each"]
        return notes["epochs"]

    def facts(self) -> dict[str, Any]:
        """What decides the result of this training."""
        arrays = (self.views.data, self.candidates.packed, self.views.mean, self.views.std)
        hashes = {
            "data": fingerprint(*(array.cpu().numpy() for array in arrays)),
            "start": fingerprint(
                *(value.cpu().numpy() for value in self.step.state_dict().values())
            ),
        }
        method = {"method": type(self.method).__name__, "settings": self.method.settings}
        return {"scheme": dataclasses.asdict(self.scheme), "seed": self.seed, **hashes, **method}

    def load_optimizer(self, tensors: dict[str, Tensor]) -> None:
        whole = self.optimizer.state_dict()
        for name, tensor in tensors.items():
            number, key = name.split(".", 1)
            whole["state"].setdefault(int(number), {})[key] = tensor
        self.optimizer.load_state_dict(whole)

    def close(self) -> None:
        if self.recorder is not None:
            self.recorder.handle.remove()
        self.restore()

    def restore(self) -> None:
        """The model's passes in full precision again."""
        if self.lowered is not None:
            self.lowered.close()

    def farewell(self) -> str:
        stopped = f"stopped in epoch {len(self.history) + 1} of {self.scheme.epochs}"
        if self.run is None:
            return f"{stopped}; nothing was saved, because no run folder was given."
        if not self.history:
            return f"{stopped}; no epoch of this training is finished yet. Repeat the same command to go on."
        kept = f"{len(self.history)} finished epochs are kept in {self.run.folder}"
        return f"{stopped}; {kept}. Repeat the same command to go on."


class Recorder:
    """Keeps the logits of the first forward pass of each step."""

    def __init__(self, model: nn.Module) -> None:
        self.first: Tensor | None = None
        self.handle = model.register_forward_hook(self.keep)

    def keep(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if module.training and self.first is None:
            self.first = output.detach()

    def take(self) -> Tensor | None:
        first, self.first = self.first, None
        return first


def batches(order: Tensor, batch_size: int) -> Iterator[tuple[Tensor, float]]:
    """(rows, share of the pass done before them); a last batch of under an eighth of the size joins the one before."""
    n = len(order)
    starts = list(range(0, n, batch_size))
    if len(starts) > 1 and n - starts[-1] < max(2, batch_size // 8):
        starts.pop()
    for start, stop in zip(starts, [*starts[1:], n], strict=True):
        yield order[start:stop], start / n


@contextmanager
def seeded(seed: int, stream: int, rng: torch.Generator) -> Iterator[None]:
    """All randomness inside the block, torch's own included, depends on (seed, stream) alone."""
    value = int(np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0]) >> 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(value)
        rng.manual_seed(value)
        yield


def find_device(name: str) -> torch.device:
    """A device by name; "auto" takes a GPU if there is one, under `torchrun` the one of this process."""
    if name == "auto":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(
            f"device {name!r} cannot be used here: {reason} Try 'auto' or 'cpu'."
        ) from error


def as_sets(candidates: Any) -> CandidateSets:
    return candidates if isinstance(candidates, CandidateSets) else CandidateSets(candidates)


def as_method(method: Method | str) -> Method:
    from candidly.methods.settings import make_method

    if isinstance(method, str):
        return make_method(method)
    if not isinstance(method, Method):
        raise InputError(
            f"method={method!r}: expected a Method, such as METHODS['cc'](), or the name of one."
        )
    return method


def check_lengths(n: int, sets: CandidateSets, truth: Truth | None) -> None:
    if n != len(sets):
        raise InputError(f"X has {n} rows, but there are {len(sets)} candidate sets.")
    if truth is not None and len(truth.kinds) != n:
        raise InputError(
            f"X has {n} rows, but truth has {len(truth.kinds)}: is it that of these candidate sets?"
        )


def check_labels(X: Any, y: Any, n_classes: int) -> np.ndarray:
    """Test labels as class indices."""
    labels = np.asarray(y)
    if labels.shape != (len(X),) or labels.dtype.kind not in "iu":
        raise InputError(
            f"test labels are {labels.dtype} of shape {labels.shape}: expected {len(X)} class indices; "
            "CandidateSets.index_of turns labels into indices."
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < n_classes:
        raise InputError(
            f"test labels reach from {labels.min()} to {labels.max()}: expected 0..{n_classes - 1}."
        )
    return labels


def check_outputs(model: nn.Module, views: Views, scheme: Scheme) -> None:
    """Refuse a model whose last steps diverged while the mean loss of the epoch was finite."""
    some = torch.arange(0, len(views), max(1, len(views) // CHECKED))
    model.eval()
    with torch.no_grad():
        row = first_undefined(model(views(some, "plain")))
    if row is not None:
        raise TrainingError(f"the outputs of the trained model are not finite: {advice(scheme)}")


def advice(scheme: Scheme) -> str:
    extremes = "look for extreme values in the inputs and the settings"
    return f"training diverged. Try an lr below {scheme.lr:g}, or {extremes}."


def check_width(model: nn.Module, views: Views, n_classes: int) -> None:
    """Does the model give one logit per class?"""
    was_training = model.training
    with torch.no_grad():
        shape = tuple(model.eval()(views(torch.arange(min(2, len(views))), "plain")).shape)
    model.train(was_training)
    if shape[1:] != (n_classes,):
        raise InputError(
            f"the model turns {min(2, len(views))} inputs into {shape}: expected {n_classes} logits each."
        )
