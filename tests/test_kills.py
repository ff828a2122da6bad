"""Campaign: commands killed at random moments.

The same command then finishes, with the same files and no leftovers.
"""

import json
import random
import shutil
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.slow
# Of each command.
KILLS = 25
RNG = random.Random(0)


def table(path, n=60):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=n)
    X = 3 * np.eye(3)[y] + rng.normal(size=(n, 3))
    lines = [f"{i},{'abc'[y[i]]},{','.join(f'{x:.3f}' for x in X[i])}" for i in range(n)]
    path.write_text("\n".join(["id,candidates,u,v,w", *lines]) + "\n")
    np.save(path.with_name("p.npy"), np.eye(3)[y] * 0.7 + 0.1)


def start(folder, *arguments):
    command = [sys.executable, "-m", "candidly", *arguments]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def finish(folder, *arguments):
    child = start(folder, *arguments)
    said = child.communicate()[1]
    return child.returncode, said


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def comparable(path):
    """What two runs of the same command have in common: all but the seconds that they took."""
    if path.suffix != ".jsonl":
        return path.read_bytes()
    return [{**json.loads(line), "seconds": None} for line in path.read_text().splitlines()]


def campaign(folder, make, *arguments):
    """Kill the command until it has finished KILLS times; check the folder each time."""
    make(folder)
    untouched = names(folder)
    began = time.monotonic()
    assert finish(folder, *arguments)[0] == 0
    took = time.monotonic() - began
    whole = names(folder)
    added = [name for name in whole if name not in untouched]
    contents = {
        name: comparable(folder / name)
        for name in added
        if name.endswith((".csv", ".jsonl", ".npz"))
    }
    for _ in range(KILLS):
        for name in sorted(added, reverse=True):
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        child = start(folder, *arguments)
        time.sleep(RNG.uniform(0.3, 1.02) * took)
        child.kill()
        child.communicate()
        code, said = finish(folder, *arguments)
        assert code == 0 or (code == 2 and "exists already" in said), said
        assert names(folder) == whole
        for name, content in contents.items():
            assert comparable(folder / name) == content, name


def test_audit(tmp_path):
    options = ("--probs", "p.npy", "--out", "run")
    campaign(tmp_path, lambda folder: table(folder / "a.csv"), "audit", "a.csv", *options)


def test_fit(tmp_path):
    options = ("--epochs", "2", "--folds", "2", "--out", "run")
    campaign(tmp_path, lambda folder: table(folder / "a.csv"), "fit", "a.csv", *options)


def test_export(tmp_path):
    def make(folder):
        table(folder / "a.csv")
        assert finish(folder, "audit", "a.csv", "--probs", "p.npy", "--out", "run")[0] == 0

    campaign(tmp_path, make, "export", "run", "--out", "o.csv")


def test_report(tmp_path):
    def make(folder):
        table(folder / "a.csv")
        assert finish(folder, "audit", "a.csv", "--probs", "p.npy", "--out", "run")[0] == 0

    make(tmp_path)
    whole = names(tmp_path)
    for _ in range(KILLS):
        child = start(tmp_path, "report", "run")
        time.sleep(RNG.uniform(0.2, 2))
        child.kill()
        child.communicate()
        assert (tmp_path / "run" / "report.html").read_text().rstrip().endswith("</html>")
    assert finish(tmp_path, "report", "run")[0] == 0
    assert names(tmp_path) == whole
    assert len(pd.read_csv(tmp_path / "run" / "audit.csv")) == 60
