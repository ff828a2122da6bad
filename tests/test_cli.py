"""The command line, as a user runs it: a process of its own."""

import ast
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer
from children import ended
from sklearn.datasets import load_digits

import candidly
from candidly.cli.app import app, errors_as_sentences
from candidly.methods import METHODS
from candidly.storage.store import read_arrays, read_metrics
from candidly.training.predictor import Predictor


def run(*arguments, cwd=None, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "candidly", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
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


@pytest.mark.parametrize(
    ("statement", "modules"),
    [
        ("import candidly; candidly.CandidateSets([[1]]); candidly.Rates(0, 0)", ["torch"]),
        ("import candidly.cli.app", ["torch", "pandas", "numpy"]),
    ],
)
def test_imports_are_light(statement, modules):
    code = f"import sys; {statement}; print([name for name in {modules} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_public_names_exist():
    import candidly

    assert all(getattr(candidly, name) is not None for name in candidly.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = candidly.nonsense


def test_version():
    assert run("--version").stdout == "candidly 0.1.0\n"


def commands(group, path="candidly"):
    """(name, command) of all commands, those of groups included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_every_command_has_examples_that_name_its_options():
    found = dict(commands(typer.main.get_command(app)))
    assert {"candidly fit", "candidly demo", "candidly data list", "candidly bench show"} <= {
        *found
    }
    for name, command in found.items():
        heading, *lines = command.epilog.split("\n\n")
        assert heading == "Examples:"
        options = {option for parameter in command.params for option in parameter.opts}
        for line in lines:
            assert f"{name}" in line
            assert set(re.findall(r"--[a-z-]+", line)) <= options, line
        assert command.help, name


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    done = run("demo", "--seed", "1", "--out", "out", cwd=folder)
    return folder / "out", done


def test_the_demo_prints_what_it_found(demo):
    out, done = demo
    results = json.loads((out / "results.json").read_text())
    proden, ooc, candid = results["methods"]
    assert proden["accuracy"] + 0.03 < min(ooc["accuracy"], candid["accuracy"])
    assert candid["precision_open"] > 0.7
    assert (ooc["given"], candid["given"]) == ("true shares", "nothing")
    for kind in ("closed", "open"):
        audit = results["audit"][kind]
        assert audit["interval"][0] < audit["true"] < audit["interval"][1]
        assert audit["precision"] > 0.6
        assert re.search(
            rf"{kind} +{100 * audit['true']:.1f}% +{100 * audit['estimate']:.1f}% ", done.stdout
        )
    for row in results["methods"]:
        assert f"{100 * row['accuracy']:.1f}%" in done.stdout
    # On a slow machine there may be lines of progress, but never a bar.
    assert all(line.startswith("candidly: ") for line in done.stderr.splitlines())
    assert results["seconds"] < 60


def test_the_demo_leaves_complete_runs(demo):
    out, _ = demo
    for name in ("proden", "ooc", "candid"):
        history = read_metrics(out / name)
        assert [row["epoch"] for row in history] == list(range(1, 61))
        X, y = load_digits(return_X_y=True)
        hits = Predictor.load(out / name).predict(X[y < 6]) == y[y < 6]
        # On raw digits, most of them not in the test set.
        assert abs(hits.mean() - history[-1]["accuracy"]) < 0.1
    arrays = read_arrays(out / "candid")
    masks = np.stack([arrays[k] for k in ("normal", "closed", "open")])
    assert (masks.sum(0) == 1).all()  # a partition
    assert arrays["ensemble"].shape == (1061, 6)
    files = {path.name for path in out.iterdir() if path.is_file()}
    assert files == {"SHA256SUMS", "run.json", "results.json", "losses.png", "precision.png"}
    for picture in out.glob("*.png"):
        assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_demo_as_json(tmp_path):
    results = json.loads(run("demo", "--epochs", "3", "--json", cwd=tmp_path).stdout)
    assert [row["name"] for row in results["methods"]] == ["PRODEN", "ooc", "candid"]
    assert (tmp_path / "candidly-demo" / "results.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--q", "1.5"], "q=1.5: expected a number from 0 to 1."),
        (["demo", "--set", "alhpa=2"], "setting of ooc 'alhpa' is unknown. Did you mean 'alpha'?"),
        (
            ["demo", "--set", "alpha=two"],
            "--set alpha=two: expected a value of type float, such as 1.",
        ),
        (["demo", "--set", "overlap=maybe"], "expected true or false"),
        (["demo", "--set", "rates=0.9,0.9"], "at most 1 together"),
        (
            ["demo", "--set", "open_score=nerves"],
            "is unknown. There are: surprise, doubt, energy.",
        ),
        (["demo", "--set", "alpha"], "expected name=value"),
        (["demo", "--set", "alpha=inf"], "alpha=inf: expected a number of at least 0"),
        (["demo", "--set", "crdpll.ramp=0.5"], "method of this demo 'crdpll' is unknown"),
        (["demo", "--also", "crdpll", "--set", "crdpll.rmap=0.5"], "Did you mean 'ramp'?"),
        (["demo", "--epochs", "0"], "greater than or equal to 1"),
        (["demo", "--seed", "-1"], "greater than or equal to 0"),
        (["demo", "--out", "."], "name a new folder"),
        (["methods", "podren"], "method 'podren' is unknown. Did you mean 'proden'?"),
    ],
)
def test_wrong_input_ends_in_a_sentence(arguments, message, tmp_path):
    done = run(*arguments, cwd=tmp_path, code=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_methods_lists_names_settings_and_defaults():
    text = run("methods").stdout
    for name in METHODS:
        assert f"\n{name}  " in "\n" + text
    assert "temperature=0.07" in text
    assert "preset robust:  overlap=False  open_score=doubt" in text
    assert max(map(len, text.splitlines())) <= 120
    found = {entry["name"]: entry for entry in json.loads(run("methods", "--json").stdout)}
    assert found["lws"]["settings"] == {"leverage": "1"}
    assert found["ooc"]["settings"]["alpha"] == "1"


def test_other_methods_join_the_demo_with_their_settings(tmp_path):
    done = run(
        "demo",
        "--epochs",
        "2",
        "--also",
        "lws",
        "--set",
        "lws.leverage=2",
        "--also",
        "ooc",
        cwd=tmp_path,
    )
    note = json.loads((tmp_path / "candidly-demo" / "lws" / "run.json").read_text())
    assert note["training"]["settings"] == {"leverage": 2.0}
    assert [line.split("  ")[0] for line in done.stdout.splitlines()[4:8]] == [
        "PRODEN",
        "ooc",
        "candid",
        "lws",
    ]


def test_settings_without_a_selection_leave_no_picture(tmp_path):
    done = run("demo", "--epochs", "2", "--set", "disambiguation=false", cwd=tmp_path)
    assert "losses.png" not in done.stdout
    assert not (tmp_path / "candidly-demo" / "losses.png").exists()


def test_a_demo_of_one_epoch_has_no_audit(tmp_path):
    results = json.loads(run("demo", "--epochs", "1", "--json", cwd=tmp_path).stdout)
    assert results["audit"] is None


def test_a_folder_of_the_users_is_not_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("1")
    assert "is not a run of candidly" in run("demo", "--out", "thesis", cwd=tmp_path, code=2).stderr
    assert (tmp_path / "thesis" / "chapter").read_text() == "1"


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(tmp_path):
    command = [sys.executable, "-m", "candidly", "demo", "--epochs", "30", "--out", "d"]
    child = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    checkpoint = tmp_path / "d.partial" / "ooc.partial" / "checkpoint.safetensors"
    deadline = time.time() + 60
    while time.time() < deadline and not checkpoint.exists() and child.poll() is None:
        time.sleep(0.005)
    child.send_signal(signal.SIGINT)
    said = ended(child)[1]
    assert child.returncode == 130, said
    assert "Repeat the same command" in said
    assert "Traceback" not in said
    finished = (tmp_path / "d.partial" / "proden" / "run.json").read_text()
    run(*command[3:], cwd=tmp_path)
    assert (tmp_path / "d" / "proden" / "run.json").read_text() == finished  # not trained again
    again = run("demo", "--epochs", "30", "--out", "straight", cwd=tmp_path)
    assert "accuracy" in again.stdout
    straight, resumed = (
        json.loads((tmp_path / name / "results.json").read_text()) for name in ("straight", "d")
    )
    assert straight["methods"] == resumed["methods"]


FULL = (
    "candidly: cannot write: No space left on device. Free some space, then run the same command "
    "again.\n"
)
needs_dev_full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs a device that is always full"
)


@needs_dev_full
@pytest.mark.parametrize(
    "arguments", [["methods"], ["methods", "--json"], ["--help"], ["--version"], ["data", "list"]]
)
def test_a_full_disk_is_reported_in_a_sentence(arguments):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "candidly", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == FULL
    assert done.returncode == 2


def test_a_file_that_cannot_grow_is_reported_in_a_sentence(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    command = [sys.executable, "-B", "-m", "candidly", "demo", "--epochs", "1"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, preexec_fn=limit
    )
    assert done.returncode == 2
    assert re.fullmatch(r"candidly: .*File too large\.\n", done.stderr)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "Error writing bytes to file. Detail: [errno 28] No space"), FULL),
        (
            RuntimeError(
                "Error while serializing: I/O error: No space left on device (os error 28)"
            ),
            FULL,
        ),
        (OSError(5, "Input/output error"), "candidly: cannot read or write: Input/output error.\n"),
        (
            PermissionError(13, "Permission denied", "a\x1b.csv"),
            r"candidly: a\x1b.csv cannot be used: Permission denied.\n",
        ),
    ],
)
def test_errors_of_the_system(error, message, capsys):
    with pytest.raises(typer.Exit) as caught, errors_as_sentences():
        raise error
    assert caught.value.exit_code == 2
    assert capsys.readouterr().err == message.replace(r"\n", "\n")


@pytest.mark.parametrize(
    "error", [BrokenPipeError(32, "Broken pipe"), OSError("of a library"), RuntimeError("a fault")]
)
def test_other_errors_are_left_to_python(error, capsys):
    with pytest.raises(type(error), match=str(error.args[-1])), errors_as_sentences():
        raise error
    assert capsys.readouterr().err == ""


def test_a_closed_pipe_is_quiet():
    command = [sys.executable, "-m", "candidly", "methods"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        child.stdout.close()
        assert child.stderr.read() == ""


def prints(source):
    """Does the code call print, typer.echo or typer.secho? Examples in docstrings do not count."""
    functions = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return any(ast.unparse(f) in ("print", "typer.echo", "typer.secho") for f in functions)


def test_only_one_module_prints():
    assert prints("if 1:\n    print(2)")
    assert not prints("'>>> print(2)'")
    sources = Path(candidly.__file__).parent
    printing = {path.name for path in sources.rglob("*.py") if prints(path.read_text())}
    assert printing == {"terminal.py"}, "print by echo, echo_json or say, which escape names"


MANY = "candidly: a command runs as one process, not as 2 (WORLD_SIZE and RANK are set)"


def test_torchrun_is_refused_before_anything_is_done(tmp_path):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run(
        [*command, "-m", "candidly", "demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
    assert [line for line in done.stderr.splitlines() if line.startswith("candidly:")] == [
        done.stderr.splitlines()[0]
    ]
    assert done.stderr.startswith(MANY)
    assert "another process" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "code", "message"),
    [
        ({"WORLD_SIZE": "2", "RANK": "0"}, 2, MANY),
        ({"WORLD_SIZE": "2", "RANK": "1"}, 0, ""),
        ({"WORLD_SIZE": "1", "RANK": "0"}, 0, None),
        ({"WORLD_SIZE": "2"}, 0, None),
        ({"WORLD_SIZE": "two", "RANK": "0"}, 0, None),
    ],
)
def test_one_of_several_processes_is_refused(variables, code, message):
    command = [sys.executable, "-m", "candidly", "methods"]
    outside = {
        name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK")
    }
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**outside, **variables}
    )
    assert done.returncode == code
    assert bool(done.stdout) == (message is None)
    assert done.stderr.startswith(message or "")
    assert bool(done.stderr) == bool(message)
