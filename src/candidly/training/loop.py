"""The training loop: epochs, batches and checkpoints of one training, for any method."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from candidly import metrics
from candidly.answers import Answers
from candidly.errors import TrainingError
from candidly.kinds import Truth
from candidly.methods.base import Batch, Method, state_dtype, takes_answers
from candidly.sets import CandidateSets
from candidly.storage.store import Run, fingerprint
from candidly.tensors import distributed
from candidly.tensors.bits import Bits
from candidly.tensors.flops import FlopMeter
from candidly.tensors.mapped import MappedRows
from candidly.tensors.nets import channels_last
from candidly.tensors.precision import Bfloat16Passes, require_bfloat16
from candidly.tensors.views import Views
from candidly.training.checkpoints import pack_state, unpack_state
from candidly.training.checks import (
    advice,
    check_first_pass,
    check_gold,
    check_labels,
    check_lengths,
    check_model,
)
from candidly.training.predictor import predict
from candidly.training.schemes import Scheme

# Numbers of a view that are made together, for several batches
TOGETHER = 1 << 21
# Examples at least, if there are as many, that a net may see before the training starts
PREPARED = 2000


class Step(nn.Module):
    """Model and method as one module, so that optimizer and checkpoint see the state of both.

    Parameters
    ----------
    model : nn.Module
    method : Method
    """

    def __init__(self, model: nn.Module, method: Method) -> None:
        super().__init__()
        self.model = model
        self.method = method

    def forward(self, batch: Batch) -> Tensor:
        """Compute the loss of each example of a batch, (b,)."""
        return self.method.loss(self.model, batch)


class Trainer:
    """One training: data, model, method and optimizer on a device.

    The randomness of an epoch depends on (seed, epoch) alone.

    Parameters
    ----------
    model : nn.Module
        Maps a batch of inputs to logits (n, c). It is moved to the device of the views.
    views : Views
        The training inputs.
    sets : CandidateSets
        Their candidates.
    method : Method
    scheme : Scheme
    seed : int, default=0
        Decides all randomness.
    test : (inputs, class indices), optional
        Only for the metrics.
    truth : Truth, optional
        Only for the metrics.
    run : Run, optional
        An open run folder for metrics and checkpoints.
    answers : Answers, optional
        Who answered what, over the classes of `sets`; for methods that use it.
    gold : int array of shape (n,), optional
        What is certain: a class index, -1 for none of the classes, -2 for unknown.

    Attributes
    ----------
    history : list of dict
        One row of metrics per finished epoch.
    device : torch.device
    meter : FlopMeter
        Counts the floating-point operations.
    """

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
        answers: Answers | None = None,
        gold: np.ndarray | None = None,
    ) -> None:
        self.views = views
        self.scheme = scheme
        self.seed = seed
        self.run = run
        self.method = method
        self.device = views.data.device
        check_lengths(len(views), sets, truth)
        self.answers = answers
        method.gold = None if gold is None else check_gold(gold, *sets.shape)
        dense = torch.as_tensor(sets.dense(), device=self.device)
        self.test: tuple[Views, np.ndarray] | None = None
        if test is not None:
            self.test = views.like(test[0]), check_labels(*test, sets.n_classes)
        self.kinds = None if truth is None else truth.kinds
        self.model = channels_last(model.to(self.device), views.shape)
        if (prepare := getattr(model, "prepare", None)) is not None:
            prepare(views(torch.arange(0, len(views), max(1, len(views) // PREPARED)), "plain"))
        check_model(model, views, sets.n_classes)
        self.rng = torch.Generator()
        self.history: list[dict[str, Any]] = []
        self.meter = FlopMeter()
        self.recorded: Tensor | None = None
        self.first_pass: RemovableHandle | None = None
        self.recorder: Recorder | None = None
        self.bfloat16: Bfloat16Passes | None = None
        if scheme.precision == "bfloat16":
            require_bfloat16(self.device)
            self.bfloat16 = Bfloat16Passes(model)  # before `set_up`: a method may copy the model
        try:
            self.set_up(dense)
        except BaseException:  # such as data that the method refuses: leave no hooks in the model
            self.close()
            raise
        self.first_pass = check_first_pass(model)  # after `set_up`: copies have no such hook
        if scheme.record:
            self.recorder = Recorder(model)

    def set_up(self, candidates: Tensor) -> None:
        """Set up the method, and make an optimizer for model and method.

        Parameters
        ----------
        candidates : bool tensor (n, c)
        """
        self.method.epochs = self.scheme.epochs
        with seeded(self.seed, 0, self.rng):
            known = {"answers": self.answers} if takes_answers(self.method) else {}
            self.method.setup(self.model, candidates, self.rng, **known)
        self.method.to(self.device)
        # Those of the method, if it has them: one copy is enough.
        packed = self.method.candidates
        self.candidates = Bits(candidates) if packed is None else packed
        self.step = Step(self.model, self.method)
        distributed.share_state(self.step)
        self.optimizer = torch.optim.SGD(
            [p for p in self.step.parameters() if p.requires_grad],
            self.scheme.lr,
            self.scheme.momentum,
            weight_decay=self.scheme.weight_decay,
            nesterov=self.scheme.nesterov,
        )

    def epoch(self, epoch: int) -> dict[str, Any]:
        """Train one epoch, and store its metrics.

        Parameters
        ----------
        epoch : int
            Number of finished epochs.

        Returns
        -------
        dict
            Its row of metrics.
        """
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
            views, labels = self.test
            row["accuracy"] = metrics.accuracy(predict(self.model, views, shared=True), labels)
        row["flops"] = self.meter.total * distributed.world()
        row["seconds"] = time.perf_counter() - began
        self.history.append(row)
        self.checkpoint()
        return row

    def train(self, epoch: int) -> float:
        """Make one pass over the training examples.

        Parameters
        ----------
        epoch : int
            Number of finished epochs.

        Returns
        -------
        float
            The mean loss.
        """
        self.step.train()
        total = torch.zeros((), device=self.device)
        order = torch.randperm(len(self.views), generator=self.rng)
        mine = torch.zeros(len(order), dtype=torch.bool, device=self.device)
        if self.recorded is not None:
            self.recorded.zero_()  # each process fills in its own rows
        # Steps of a warm-up may cost another amount.
        phase = "warm-up" if self.method.warming else "training"
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
        """Store the outputs of some rows.

        Parameters
        ----------
        index : integer tensor (b,)
        outputs : tensor (b, c)
        """
        if self.recorded is None:
            shape = self.candidates.shape
            self.recorded = torch.zeros(shape, dtype=state_dtype(shape), device=self.device)
        self.recorded[index] = outputs.to(self.recorded.dtype)

    def update(self, batch: Batch, size: int) -> Tensor:
        """Make one step on this process's part of a global batch.

        Parameters
        ----------
        batch : Batch
        size : int
            Size of the global batch.

        Returns
        -------
        tensor ()
            Sum of the losses of this part.
        """
        losses = self.step(batch).sum()
        self.optimizer.zero_grad()
        (losses / size).backward()
        distributed.sum_gradients(self.step)
        self.optimizer.step()
        return losses.detach()

    def batches(self, order: Tensor) -> Iterator[tuple[Batch, int, float]]:
        """Give the batches of a pass, one by one.

        Parameters
        ----------
        order : integer tensor (n,)
            The rows in the order of the pass.

        Yields
        ------
        batch : Batch
            This process's part of a global batch.
        size : int
            Size of the global batch.
        done : float
            Share of the pass before it.
        """
        planned = batches(order, self.scheme.batch_size)
        together = max(1, TOGETHER // (self.scheme.batch_size * math.prod(self.views.shape)))
        while some := list(itertools.islice(planned, together)):
            views_of_each = self.make_views([index for index, _ in some])
            for (index, done), views in zip(some, views_of_each, strict=True):
                yield self.batch(index, views), len(index), done

    def make_views(self, indices: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
        """Make the views of some global batches together: small ones are mostly overhead.

        Parameters
        ----------
        indices : list of integer tensors
            The rows of each global batch.

        Returns
        -------
        iterator of tuples of tensors
            For each batch, the views of this process's part.
        """
        rows = torch.arange(sum(map(len, indices))).split([len(index) for index in indices])
        parts = [part[distributed.local_part(len(part))] for part in rows]
        mine = slice(None) if distributed.world() == 1 else torch.cat(parts)
        kinds = self.method.views or self.scheme.views
        views = [self.views(torch.cat(indices), kind, self.rng, mine) for kind in kinds]
        return zip(*(view.split([len(part) for part in parts]) for view in views), strict=True)

    def batch(self, index: Tensor, views: tuple[Tensor, ...]) -> Batch:
        """Make the part of a global batch that belongs to this process.

        Parameters
        ----------
        index : integer tensor
            The rows of the global batch.
        views : tuple of tensors
            The views of this process's part.

        Returns
        -------
        Batch
        """
        part = distributed.local_part(len(index))
        rows = index[part].to(self.device)

        def uniform(width: int) -> Tensor:
            return torch.rand((len(index), width), generator=self.rng)[part].to(self.device)

        return Batch(rows, views, self.candidates[rows], uniform)

    def end_of_pass(self, total: Tensor, mine: Tensor, epoch: int) -> float:
        """Exchange results between processes.

        Parameters
        ----------
        total : tensor ()
            Sum of the losses that this process computed.
        mine : bool tensor (n,)
            The rows that it saw.
        epoch : int
            Number of finished epochs, for the message.

        Returns
        -------
        float
            The mean loss.

        Raises
        ------
        TrainingError
            If it is not finite.
        """
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
        """Give the logits of all training examples: recorded in the last pass, or by another pass.

        The next pass overwrites what is recorded: a method copies what it needs later.

        Returns
        -------
        tensor (n, c)

        Raises
        ------
        TrainingError
            If outputs of another pass are not finite.
        """
        if self.recorded is not None:
            return self.recorded
        dtype = state_dtype(self.candidates.shape)
        with self.meter.counting("inference", len(self.views) // distributed.world()):
            outputs = predict(self.model, self.views, shared=True, dtype=dtype)
        if not outputs.isfinite().all():
            raise TrainingError(f"the model's outputs are not finite: {advice(self.scheme)}")
        return outputs

    def checkpoint(self) -> None:
        """Write the metrics and the state after an epoch to the run folder, if there is one."""
        if self.run is None:
            return
        self.run.add_metrics(self.history[-1])
        state = pack_state(self.step, self.optimizer, self.recorded)
        meter = {"total": self.meter.total, "each": self.meter.each}
        self.run.save_checkpoint(state, epochs=self.history[-1]["epoch"], flops=meter)

    def resume(self) -> int:
        """Load a checkpoint, if there is one.

        Returns
        -------
        int
            Number of finished epochs.
        """
        if self.run is None:
            return 0
        self.run.claim(**self.facts())
        found = self.run.load_checkpoint()
        if found is None:
            return 0
        state, notes = found
        recorded = unpack_state(state, self.step, self.optimizer)
        self.recorded = None if recorded is None else recorded.to(self.device)
        self.history = self.run.keep_metrics(notes["epochs"])
        self.meter.total = notes["flops"]["total"]
        self.meter.each = notes["flops"]["each"]
        return notes["epochs"]

    def facts(self) -> dict[str, Any]:
        """Collect what decides the result of this training.

        Returns
        -------
        dict
            Scheme, seed, method, settings, and hashes of the data and of the first weights.
        """
        data = self.views.data
        stored = data.sources() if isinstance(data, MappedRows) else (data.cpu().numpy(),)
        moments = (self.views.mean.cpu().numpy(), self.views.std.cpu().numpy())
        if self.answers is not None:
            names = ("row", "annotator", "counts", "indptr", "indices")
            stored = (*stored, *(getattr(self.answers, name) for name in names))
        if self.method.gold is not None:
            stored = (*stored, self.method.gold)
        start = (value.cpu().numpy() for value in self.step.state_dict().values())
        return {
            "scheme": dataclasses.asdict(self.scheme),
            "seed": self.seed,
            "data": fingerprint(*stored, self.candidates.packed.cpu().numpy(), *moments),
            "start": fingerprint(*start),
            "method": type(self.method).__name__,
            "settings": self.method.settings,
        }

    def close(self) -> None:
        """Remove all hooks from the model."""
        if self.first_pass is not None:
            self.first_pass.remove()
        if self.recorder is not None:
            self.recorder.handle.remove()
        if self.bfloat16 is not None:
            self.bfloat16.close()

    def interruption_message(self) -> str:
        """Say where the training stopped, what was saved, and how to resume.

        Returns
        -------
        str
        """
        stopped = f"stopped in epoch {len(self.history) + 1} of {self.scheme.epochs}"
        if self.run is None:
            return f"{stopped}; nothing was saved, because no run folder was given."
        if not self.history:
            return f"{stopped}; no epoch is finished yet. Repeat the same command to start again."
        saved = f"{len(self.history)} finished epochs are in {self.run.folder}"
        return f"{stopped}; {saved}. Repeat the same command to resume."


class Recorder:
    """A hook that stores the logits of the first forward pass of each step.

    Parameters
    ----------
    model : nn.Module
        Only passes in training mode are stored.
    """

    def __init__(self, model: nn.Module) -> None:
        self.first: Tensor | None = None
        self.handle = model.register_forward_hook(self._store)

    def _store(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if module.training and self.first is None:
            self.first = output.detach()

    def take(self) -> Tensor | None:
        """Give the stored logits, once.

        Returns
        -------
        tensor (b, c) or None
            None if nothing was stored since the last call.
        """
        first = self.first
        self.first = None
        return first


def batches(order: Tensor, batch_size: int) -> Iterator[tuple[Tensor, float]]:
    """Divide the rows of a pass into batches.

    Parameters
    ----------
    order : integer tensor (n,)
    batch_size : int

    Yields
    ------
    rows : integer tensor
        A last batch of less than an eighth of the size is joined to the one before.
    done : float
        Share of the pass before them.

    Examples
    --------
    >>> import torch
    >>> [rows.tolist() for rows, _ in batches(torch.arange(5), 2)]
    [[0, 1], [2, 3, 4]]
    """
    n = len(order)
    starts = list(range(0, n, batch_size))
    if len(starts) > 1 and n - starts[-1] < max(2, batch_size // 8):
        starts.pop()
    for start, stop in zip(starts, [*starts[1:], n], strict=True):
        yield order[start:stop], start / n


@contextmanager
def seeded(seed: int, stream: int, rng: torch.Generator) -> Iterator[None]:
    """Make all randomness of a `with` block, torch's included, depend on (seed, stream) alone.

    Parameters
    ----------
    seed, stream : int
    rng : torch.Generator
        Seeded, too.
    """
    value = int(np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0]) >> 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(value)
        rng.manual_seed(value)
        yield
