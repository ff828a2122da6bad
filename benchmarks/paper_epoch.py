"""Time an epoch of the paper's own scheme: ResNet-18, two weak views, batches of 128.

    python benchmarks/paper_epoch.py --data-dir FOLDER

FOLDER holds `cifar-10-batches-bin` and `svhn/train_32x32.mat`. 2,000 known images of CIFAR-10 and
800 open ones of SVHN are drawn. It is a main epoch: a pass over all examples, the selection, then
training on all three groups.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from candidly.bench.problems import Source, make_problem
from candidly.bench.scales import CIFAR_MEAN, CIFAR_STD
from candidly.bench.sources.images import cifar10, svhn
from candidly.methods.settings import make_method
from candidly.tensors.nets import build_net
from candidly.tensors.views import make_views
from candidly.training.trainer import fit


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--known", type=int, default=2_000)
    options = parser.parse_args()
    folder = options.data_dir
    X, y = cifar10(folder / "cifar-10-batches-bin", "train")
    X_test, y_test = cifar10(folder / "cifar-10-batches-bin", "test")
    pool, _ = svhn(folder / "svhn" / "train_32x32.mat")
    chosen = np.random.default_rng(0).choice(len(X), options.known, replace=False)
    classes = tuple(map(str, range(10)))
    source = Source(X[chosen], y[chosen], pool, X_test[:500], y_test[:500], classes)
    problem = make_problem(source, q=0.1, tau1=0.2, tau2=0.4, seed=0)
    method = make_method("ooc", None, {"rates": problem.rates, "warmup": 0})
    views = make_views(problem.X, mean=CIFAR_MEAN, std=CIFAR_STD)
    model = build_net("resnet18", (3, 32, 32), 10)
    fitted = fit(
        model, views, problem.candidates, method, scheme="paper", epochs=1, truth=problem.truth
    )
    (row,) = fitted.history
    each = 1000 * row["seconds"] / len(problem.X)
    took = f"{row['seconds']:.1f} s for {len(problem.X)} images, {each:.1f} ms per image"
    print(f"{took}; loss {row['loss']:.3f}")


if __name__ == "__main__":
    main()
