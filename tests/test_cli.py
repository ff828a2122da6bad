"""The command line, as a user runs it: a process of its own."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from candidly.methods import METHODS
from candidly.store import load_model, read_arrays, read_metrics


def run(*arguments, cwd=None, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "candidly", *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )
    assert done.returncode == code, done.stderr
    return done


def test_help_answers_at_once():
    times = []
    for _ in range(3):
        began = time.perf_counter()
        text = run("--help").stdout
        times.append(time.perf_counter() - began)
    assert "demo" in text
    assert min(times) < 0.5


def test_importing_candidly_does_not_import_torch():
    code = "import sys, candidly; candidly.CandidateSets([[1]]); candidly.Rates(0, 0); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_public_names_exist():
    import candidly

    assert all(getattr(candidly, name) is not None for name in candidly.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = candidly.nonsense


def test_version():
    assert run("--version").stdout == "candidly 0.1.0\n"


def test_every_command_has_examples_in_its_help():
    for command in ("demo", "methods"):
        assert f"candidly {command}" in run(command, "--help").stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    done = run("demo", "--seed", "1", "--out", "out", cwd=folder)
    return folder / "out", done


def test_the_demo_tells_what_it_found(demo):
    out, done = demo
    results = json.loads((out / "results.json").read_text())
    proden, ooc, robust = results["methods"]
    assert proden["accuracy"] + 0.03 < min(ooc["accuracy"], robust["accuracy"])
    assert robust["precision_open"] > 0.7
    for row in results["methods"]:
        assert f"{100 * row['accuracy']:.1f}%" in done.stdout
    assert done.stderr == ""  # quiet when piped
    assert results["seconds"] < 60


def test_the_demo_leaves_complete_runs(demo):
    out, _ = demo
    for name in ("proden", "ooc", "ooc-robust"):
        history = read_metrics(out / name)
        assert [row["epoch"] for row in history] == list(range(1, 61))
        assert load_model(out / name)(torch.zeros(1, 64)).shape == (1, 6)
    arrays = read_arrays(out / "ooc-robust")
    masks = np.stack([arrays[k] for k in ("normal", "closed", "open")])
    assert (masks.sum(0) == 1).all()  # a partition
    assert masks.sum(1).tolist() == [607, 151, 303]
    assert sorted(p.suffix for p in out.iterdir() if p.is_file()) == [".json", ".json", ".png", ".png"]
    for picture in out.glob("*.png"):
        assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_demo_as_json(tmp_path):
    results = json.loads(run("demo", "--epochs", "3", "--json", cwd=tmp_path).stdout)
    assert [row["name"] for row in results["methods"]] == ["PRODEN", "ooc", "ooc, robust"]
    assert (tmp_path / "candidly-demo" / "results.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--q", "1.5"], "q=1.5: expected a number from 0 to 1."),
        (["demo", "--set", "alhpa=2"], "no setting of ooc is called 'alhpa'. Did you mean 'alpha'?"),
        (["demo", "--set", "alpha=two"], "--set alpha=two: expected a value of type float, such as 1."),
        (["demo", "--set", "overlap=maybe"], "expected true or false"),
        (["demo", "--set", "rates=0.9,0.9"], "at most 1 together"),
        (["demo", "--set", "openness=entropy"], "expected one of 'surprise', 'confidence', 'energy'"),
        (["demo", "--set", "alpha"], "expected name=value"),
        (["methods", "podren"], "no method is called 'podren'. Did you mean 'proden'?"),
    ],
)
def test_wrong_input_is_told_in_a_sentence(arguments, message, tmp_path):
    done = run(*arguments, cwd=tmp_path, code=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_methods_lists_names_settings_and_defaults():
    text = run("methods").stdout
    for name in METHODS:
        assert f"\n{name}  " in "\n" + text
    assert "temperature=0.07" in text
    assert "preset robust:  overlap=False  openness=confidence" in text
    assert max(map(len, text.splitlines())) <= 120
    found = {entry["name"]: entry for entry in json.loads(run("methods", "--json").stdout)}
    assert found["lws"]["settings"] == {"leverage": "1"}
    assert found["ooc"]["settings"]["alpha"] == "1"
