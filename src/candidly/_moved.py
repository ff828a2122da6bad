"""Old paths of modules that moved into folders; each imports its module when first used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NEW_PATHS = {
    "candidly.annotators": "candidly.auditing.annotators",
    "candidly.encoders": "candidly.data.encoders",
    "candidly.estimator": "candidly.training.estimator",
    "candidly.evidence": "candidly.auditing.evidence",
    "candidly.export": "candidly.data.export",
    "candidly.nets": "candidly.tensors.nets",
    "candidly.predictor": "candidly.training.predictor",
    "candidly.rates": "candidly.auditing.rates",
    "candidly.runs": "candidly.workspace.jobs",
    "candidly.store": "candidly.storage.store",
    "candidly.train": "candidly.training.trainer",
    "candidly.verdicts": "candidly.auditing.verdicts",
    "candidly.views": "candidly.tensors.views",
    "candidly.data.catalogue": "candidly.bench.sources.catalogue",
    "candidly.data.delimited": "candidly.data.formats.delimited",
    "candidly.data.fetch": "candidly.bench.sources.fetch",
    "candidly.data.images": "candidly.bench.sources.images",
    "candidly.data.matlab": "candidly.data.formats.matlab",
}


class OldPaths(MetaPathFinder, Loader):
    """Finds a module under its old path, as a view of the module at its new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in NEW_PATHS else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        def forward(name: str) -> Any:
            return getattr(import_module(NEW_PATHS[module.__name__]), name)

        module.__getattr__ = forward  # type: ignore[method-assign]


def install() -> None:
    """Let `import candidly.export` and the like find the modules where they are now."""
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(OldPaths())
