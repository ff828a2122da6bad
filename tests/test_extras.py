"""The base install: no torch, safetensors, matplotlib, pooch, Pillow or onnxruntime."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from candidly.errors import (
    EXTRA_OF,
    CandidlyError,
    MissingExtraError,
    naming_extras,
    require_modules,
)

ROOT = Path(__file__).parent.parent
BLOCKED = ("torch", "safetensors", "matplotlib", "pooch", "PIL", "onnx", "onnxruntime", "numba")
# Python imports a module of this name when it starts: here it hides the optional packages.
SITECUSTOMIZE = f"""
from importlib import metadata
from importlib.machinery import PathFinder

BLOCKED = {BLOCKED}
find_spec, distribution = PathFinder.find_spec, metadata.distribution

def without_blocked(name, path=None, target=None):
    return None if name.partition(".")[0] in BLOCKED else find_spec(name, path, target)

def installed(name):
    if name in BLOCKED:
        raise metadata.PackageNotFoundError(name)
    return distribution(name)

PathFinder.find_spec = staticmethod(without_blocked)
metadata.distribution = installed
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Environment of a Python that finds none of the optional packages."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def python(base, *arguments, cwd=None, code=0):
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=base, check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def candidly(base, *arguments, **options):
    return python(base, "-m", "candidly", *arguments, **options)


def table(folder, n=400):
    """A file, every fifth row of it wrong, and probabilities of a model that is mostly right."""
    y = np.arange(n) % 4
    wrong = np.arange(n) % 5 == 0
    given = np.where(wrong, (y + 1) % 4, y)
    rows = [f"{i},{'abcd'[given[i]]},{y[i]}" for i in range(n)]
    (folder / "a.csv").write_text("\n".join(["id,candidates,x", *rows]) + "\n")
    logits = 6 * np.eye(4)[y] + np.random.default_rng(0).normal(size=(n, 4))
    np.save(folder / "p.npy", np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))
    return np.where(wrong, "closed", "normal")


def test_the_optional_packages_are_hidden(base):
    code = (
        "import importlib.util as u; "
        f"print([name for name in {BLOCKED} if u.find_spec(name) is not None])"
    )
    assert python(base, "-c", code).stdout == "[]\n"


def test_the_base_serves_inspect_audit_report_and_export(base, tmp_path):
    verdicts = table(tmp_path)
    facts = json.loads(candidly(base, "inspect", "a.csv", "--json", cwd=tmp_path).stdout)
    assert facts["rows"] == 400
    done = candidly(base, "audit", "a.csv", "--probs", "p.npy", "--out", "run", cwd=tmp_path)
    assert "truth outside the candidates" in done.stdout
    audit = pd.read_csv(tmp_path / "run" / "audit.csv")
    assert (audit["verdict"] == verdicts).mean() > 0.95
    assert audit["suggested_label"][0] == "a"
    note = json.loads((tmp_path / "run" / "run.json").read_text())
    assert note["versions"]["torch"] == "not installed"
    page = (tmp_path / "run" / "report.html").read_text()
    assert "torch not installed" in page
    (tmp_path / "run" / "report.html").unlink()
    assert candidly(base, "report", "run", cwd=tmp_path).stdout == "run/report.html\n"
    assert (tmp_path / "run" / "report.html").read_text() == page
    candidly(base, "export", "run", "--out", "b.csv", cwd=tmp_path)
    assert pd.read_csv(tmp_path / "b.csv")["candidates"][0] == "a|b"


def test_the_base_audits_in_python(base, tmp_path):
    verdicts = table(tmp_path)
    code = (
        "import candidly, numpy as np, pandas as pd\n"
        "given = [[label] for label in pd.read_csv('a.csv')['candidates']]\n"
        "print(','.join(candidly.audit(given, np.load('p.npy'))['verdict']))"
    )
    found = python(base, "-c", code, cwd=tmp_path).stdout.strip().split(",")
    assert (np.array(found) == verdicts).mean() > 0.95


def test_images_are_audited_without_previews(base, tmp_path):
    for name in "ab":
        Image.new("L", (4, 4), ord(name)).save(tmp_path / f"{name}.png")
    (tmp_path / "a.csv").write_text("image,candidates\n" + "a.png,cat\nb.png,cat\nb.png,dog\n" * 5)
    np.save(tmp_path / "p.npy", [[0.9, 0.1], [0.1, 0.9], [0.1, 0.9]] * 5)
    candidly(base, "inspect", "a.csv", cwd=tmp_path)
    done = candidly(base, "audit", "a.csv", "--probs", "p.npy", "--out", "run", cwd=tmp_path)
    assert "pip install 'candidly[image]'" in done.stdout
    findings = json.loads((tmp_path / "run" / "findings.json").read_text())
    suspects = findings["suspects"]
    assert [entry["preview"] for entry in suspects] == [{}] * len(suspects) != []
    assert "without their images" in (tmp_path / "run" / "report.html").read_text()
    options = ("--probs", "p.npy", "--no-rows", "--out", "private")
    assert "Pillow" not in candidly(base, "audit", "a.csv", *options, cwd=tmp_path).stdout


TRAIN = "pip install 'candidly[train]'"
BENCH = "pip install 'candidly[bench]'"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit", "a.csv", "--out", "new"], ["candidly fit", "torch", TRAIN]),
        (["predict", "run", "a.csv", "--out", "p.csv"], ["candidly predict", "torch", TRAIN]),
        (["demo"], ["candidly demo", "torch", BENCH]),
        (["methods"], ["candidly methods", "torch", TRAIN]),
        (["bench", "run", "table1", "--scale", "digits"], ["candidly bench", "torch", TRAIN]),
        (["bench", "show", "table1", "--scale", "digits"], ["torch", TRAIN]),
        (["bench", "figure", "losses"], ["candidly bench figure", "torch", BENCH]),
        (["data", "fetch", "fashion-mnist", "--data-dir", "."], [BENCH]),
    ],
)
def test_a_missing_extra_is_named_with_its_command(base, tmp_path, arguments, words):
    table(tmp_path)
    done = candidly(base, *arguments, cwd=tmp_path, code=2)
    (line,) = done.stderr.splitlines()
    assert line.startswith("candidly: ")
    assert all(word in line for word in words), line
    assert done.stdout == ""
    assert {"a.csv", "p.npy"} >= {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["fit", "PartialLabelClassifier"])
def test_a_missing_extra_is_named_in_python(base, name):
    code = (
        "import candidly\n"
        f"try: candidly.{name}\n"
        "except ImportError as error: print(type(error).__name__, error.module, error)"
    )
    assert python(base, "-c", code).stdout == (
        f"MissingExtraError torch candidly.{name} needs torch, which is not installed: {TRAIN}.\n"
    )


def test_only_optional_modules_are_explained():
    message = "drawing needs matplotlib"
    with pytest.raises(MissingExtraError, match=message) as caught, naming_extras("drawing"):
        raise ModuleNotFoundError("No module", name="matplotlib.figure")
    assert isinstance(caught.value, CandidlyError)
    assert (caught.value.module, caught.value.extra) == ("matplotlib", "bench")
    with pytest.raises(ModuleNotFoundError, match="nonsense"), naming_extras("drawing"):
        import nonsense  # noqa: F401
    require_modules("this test", "torch", "matplotlib")


def test_every_extra_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    packages = {"PIL": "pillow"}
    for module, extra in EXTRA_OF.items():
        package = packages.get(module, module.replace("_", "-"))
        assert any(each.startswith(f"{package}>=") for each in extras[extra]), module
        assert not any(each.startswith(package) for each in project["dependencies"]), module


@pytest.mark.slow
def test_the_base_installs_and_audits_without_torch(tmp_path):
    """In an empty environment, as on a new machine."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (tmp_path / "pip.log").open("w") as log:
        install = [venv / "bin" / "pip", "install", "-c", ROOT / "constraints.txt", ROOT]
        subprocess.run(install, stdout=log, stderr=log, env=outside, check=True)
    listed = subprocess.check_output([venv / "bin" / "pip", "list"], text=True, env=outside)
    names = {line.split()[0].lower() for line in listed.splitlines()[2:]}
    assert "candidly" in names
    assert names.isdisjoint({"torch", "safetensors", "matplotlib", "pooch", "pillow"})
    verdicts = table(tmp_path)
    command = [venv / "bin" / "candidly", "audit", "a.csv", "--probs", "p.npy", "--out", "run"]
    subprocess.run(command, cwd=tmp_path, env=outside, check=True, stdout=subprocess.DEVNULL)
    audit = pd.read_csv(tmp_path / "run" / "audit.csv")
    assert (audit["verdict"] == verdicts).mean() > 0.95
    refused = subprocess.run(
        [venv / "bin" / "candidly", "fit", "a.csv", "--out", "model"],
        cwd=tmp_path, env=outside, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (refused.returncode, TRAIN in refused.stderr) == (2, True)
