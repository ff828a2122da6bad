"""RUN folders: complete or absent."""

import json
import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from candidly.cli.app import app
from candidly.errors import InputError, RunBusyError, TrainingError
from candidly.sets import CandidateSets
from candidly.storage import atomic, provenance
from candidly.storage.atomic import write_atomically
from candidly.storage.integrity import write_sums
from candidly.storage.store import (
    CHECKPOINT,
    LOCK,
    REPLACED,
    RUN_FORMAT,
    fingerprint,
    is_locked,
    load_tensors,
    read_arrays,
    read_metrics,
    save_tensors,
    verify,
    versions,
    writing,
)
from candidly.tensors.nets import build_net
from candidly.training.estimator import PartialLabelClassifier
from candidly.training.predictor import Predictor


def test_a_finished_run_has_everything(tmp_path):
    net = {"name": "mlp", "shape": [4], "n_classes": 3}
    moments = (np.array([1.0, 0, 0, 5]), np.array([2.0, 1, 1, 1]))
    predictor = Predictor(
        build_net("mlp", (4,), 3, seed=5), np.array(["a", "b", "c"]), (4,), *moments
    )
    with writing(tmp_path / "run", {"q": 0.1, "seed": 5}) as run:
        assert not (tmp_path / "run").exists()
        run.add_metrics({"epoch": 1, "loss": 0.5})
        run.save_arrays(open=np.array([True, False]))
        run.save_model(predictor, net)
        run.save_checkpoint({"x": torch.ones(1)}, epochs=1)
    files = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    names = (
        "SHA256SUMS",
        "arrays.npz",
        "metrics.jsonl",
        "model/model.json",
        "model/model.safetensors",
        "run.json",
    )
    assert files == [f"run/{name}" for name in names]  # no checkpoint, no temporary file
    note = json.loads((tmp_path / "run" / "run.json").read_text())
    assert note["config"] == {"q": 0.1, "seed": 5}
    assert {"candidly", "torch", "numpy", "python", "revision"} <= set(note["versions"])
    assert note["finished"] >= note["started"]
    assert read_metrics(tmp_path / "run") == [{"epoch": 1, "loss": 0.5}]
    np.testing.assert_array_equal(read_arrays(tmp_path / "run")["open"], [True, False])
    X = np.random.default_rng(0).normal(size=(6, 4))
    loaded = Predictor.load(tmp_path / "run")
    predictor.save(tmp_path / "some" / "where", net)
    np.testing.assert_array_equal(
        Predictor.load(str(tmp_path / "some" / "where")).logits(X), loaded.logits(X)
    )
    np.testing.assert_array_equal(loaded.logits(X), predictor.logits(X))
    np.testing.assert_array_equal(loaded.predict(X), predictor.predict(X))
    by_hand = predictor.model(torch.as_tensor((X - moments[0]) / moments[1], dtype=torch.float32))
    np.testing.assert_allclose(loaded.logits(X), by_hand.detach(), rtol=1e-5)
    np.testing.assert_allclose(loaded.predict_proba(X), by_hand.softmax(-1).detach(), rtol=1e-5)
    with pytest.raises(InputError, match=r"shape \(3,\); the model was trained on \(4,\)"):
        loaded.predict(X[:, :3])


def test_a_failed_run_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError, match="broken"), writing(tmp_path / "run", {}) as run:
        run.add_metrics({"epoch": 1})
        raise RuntimeError("broken")
    assert list(tmp_path.iterdir()) == []


def interrupted(path, config):
    with pytest.raises(KeyboardInterrupt), writing(path, config) as run:
        run.add_metrics({"epoch": 1})
        run.save_checkpoint({"x": torch.arange(3)}, epochs=1)
        run.add_metrics({"epoch": 2})
        raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_from_its_checkpoint(tmp_path):
    interrupted(tmp_path / "run", {"q": 0.1})
    with writing(tmp_path / "run", {"q": 0.1}) as run:
        tensors, notes = run.load_checkpoint()
        assert tensors["x"].tolist() == [0, 1, 2]
        assert notes == {"epochs": 1}
        assert run.keep_metrics(1) == [{"epoch": 1}]
        run.add_metrics({"epoch": 2})
    assert [row["epoch"] for row in read_metrics(tmp_path / "run")] == [1, 2]


def test_other_settings_do_not_take_up_an_interrupted_run(tmp_path):
    interrupted(tmp_path / "run", {"q": 0.1, "seed": 1})
    with (
        pytest.raises(InputError, match=r"q: 0.1 there, 0.3 now"),
        writing(tmp_path / "run", {"q": 0.3, "seed": 1}),
    ):
        pass
    assert (tmp_path / "run.partial" / CHECKPOINT).exists()


def test_a_finished_run_is_not_overwritten_unless_asked(tmp_path):
    with writing(tmp_path / "run", {}) as run:
        (run.folder / "old").write_text("")
    with pytest.raises(InputError, match="exists already"), writing(tmp_path / "run", {}):
        pass
    with writing(tmp_path / "run", {}, replace=True) as run:
        assert (tmp_path / "run" / "old").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert not (tmp_path / "run" / "old").exists()


def test_a_failed_replacement_keeps_the_old_run(tmp_path):
    with writing(tmp_path / "run", {}) as run:
        (run.folder / "old").write_text("kept")
    with pytest.raises(RuntimeError), writing(tmp_path / "run", {}, replace=True):
        raise RuntimeError
    assert (tmp_path / "run" / "old").read_text() == "kept"


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def half(temporary):
        temporary.write_text("ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, half)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_metrics_cut_short_by_a_crash_are_read_up_to_there(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n{"epo')
    assert read_metrics(tmp_path) == [{"epoch": 1}, {"epoch": 2}]


def test_a_damaged_tensor_file_is_named(tmp_path):
    save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(100)})
    whole = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "x.safetensors").write_bytes(whole[:-10])
    with pytest.raises(InputError, match=r"x.safetensors is not a complete safetensors file"):
        load_tensors(tmp_path / "x.safetensors")


def test_tensors_survive_exactly_whatever_their_layout(tmp_path):
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    save_tensors(
        tmp_path / "x",
        {"image": image, "flags": torch.tensor([True]), "view": image[:, 0]},
        {"n": 1},
    )
    tensors, notes = load_tensors(tmp_path / "x")
    assert torch.equal(tensors["image"], image)
    assert torch.equal(tensors["view"], image[:, 0])
    assert notes == {"n": 1}


def test_what_is_not_a_run_is_never_touched(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("1")
    (tmp_path / "new.partial").mkdir()
    (tmp_path / "new.partial" / "mine").write_text("2")
    (tmp_path / "file").write_text("3")
    (tmp_path / "link").symlink_to(tmp_path / "thesis")
    for name in ("thesis", "new", "file", "link"):
        with (
            pytest.raises(InputError, match="choose another name"),
            writing(tmp_path / name, {}, replace=True),
        ):
            pass
    kept = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*"))
    assert kept == ["file", "link", "new.partial", "new.partial/mine", "thesis", "thesis/chapter"]


@pytest.mark.parametrize("path", [".", "..", ""])
def test_a_run_needs_a_name(path):
    with pytest.raises(InputError, match="name a new folder"), writing(path, {}):
        pass


def test_an_empty_folder_becomes_a_run(tmp_path):
    (tmp_path / "run").mkdir()
    with writing(tmp_path / "run", {}, replace=True):
        pass
    assert (tmp_path / "run" / "run.json").exists()


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    message = r"file/run\.partial cannot be written: (Not a directory|File exists)"
    with pytest.raises(InputError, match=message), writing(tmp_path / "file" / "run", {}):
        pass


def test_finished_runs_inside_survive_an_interruption(tmp_path):
    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "outer", {}) as outer:
        with writing(outer.folder / "first", {}):
            pass
        raise KeyboardInterrupt
    with writing(tmp_path / "outer", {}) as outer:
        assert (outer.folder / "first" / "run.json").exists()
    assert (tmp_path / "outer" / "first" / "run.json").exists()


def test_a_diverged_run_leaves_nothing(tmp_path):
    with pytest.raises(TrainingError), writing(tmp_path / "run", {}) as run:
        run.save_checkpoint({"x": torch.ones(1)}, epochs=1)
        raise TrainingError("nan")
    assert list(tmp_path.iterdir()) == []


def test_replacing_forgets_an_unfinished_run_with_other_settings(tmp_path):
    interrupted(tmp_path / "run", {"q": 0.1})
    with writing(tmp_path / "run", {"q": 0.3}, replace=True) as run:
        assert run.load_checkpoint() is None


def test_a_training_is_not_taken_up_with_other_facts(tmp_path):
    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "run", {}) as run:
        run.claim(seed=1, lr=0.1)
        run.save_checkpoint({"x": torch.ones(1)}, epochs=1)
        raise KeyboardInterrupt
    with writing(tmp_path / "run", {}) as run:
        with pytest.raises(InputError, match=r"lr: 0.1 there, 0.2 now"):
            run.claim(seed=1, lr=0.2)
        run.claim(seed=1, lr=0.1)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["training"] == {
        "seed": 1,
        "lr": 0.1,
    }


def test_fingerprints_tell_arrays_apart():
    a = np.arange(6)
    prints = {fingerprint(x) for x in (a, a.reshape(2, 3), a.astype(np.int32), a + 1)}
    assert len(prints) == 4
    assert fingerprint(a) == fingerprint(np.arange(6))


def test_a_folder_with_a_run_json_of_its_own_is_not_a_run(tmp_path):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "run.json").write_text('{"lab": 1}')
    (tmp_path / "new.partial").mkdir()
    (tmp_path / "new.partial" / "run.json").write_text("[]")
    for name in ("lab", "new"):
        with (
            pytest.raises(InputError, match="is not a run of candidly"),
            writing(tmp_path / name, {}, replace=True),
        ):
            pass
    assert (tmp_path / "lab" / "run.json").read_text() == '{"lab": 1}'


def test_two_writers_do_not_meet(tmp_path):
    with writing(tmp_path / "run", {}) as run:
        with (
            pytest.raises(RunBusyError, match="is being written by another process"),
            writing(tmp_path / "run", {}),
        ):
            pass
        run.add_metrics({"epoch": 1})
    assert [p.name for p in tmp_path.iterdir()] == ["run"]  # the lock is gone
    assert read_metrics(tmp_path / "run") == [{"epoch": 1}]


def test_a_diverged_run_inside_does_not_cost_its_finished_siblings(tmp_path):
    with pytest.raises(TrainingError), writing(tmp_path / "outer", {}) as outer:
        with writing(outer.folder / "first", {}):
            pass
        with writing(outer.folder / "second", {}) as second:
            second.save_checkpoint({"x": torch.ones(1)}, epochs=1)
            raise TrainingError("nan")
    kept = tmp_path / "outer.partial"
    assert sorted(p.name for p in kept.iterdir()) == ["first", "run.json"]


def test_objects_are_not_stored(tmp_path):
    with pytest.raises(InputError, match="hold objects"), writing(tmp_path / "run", {}) as run:
        run.save_arrays(names=np.array([{}, []], dtype=object))


def test_mixed_labels_survive(tmp_path):
    net = {"name": "linear", "shape": [2], "n_classes": 2}
    labels = CandidateSets([[1], ["a"]]).classes
    Predictor(build_net(**net), labels, (2,), np.zeros(2), np.ones(2)).save(tmp_path, net)
    assert Predictor.load(tmp_path).classes.tolist() == labels.tolist()


def test_grey_images_come_with_or_without_their_channel():
    predictor = Predictor(
        build_net("linear", (1, 4, 4), 2), np.arange(2), (1, 4, 4), np.zeros(1), np.ones(1)
    )
    X = np.random.default_rng(0).integers(0, 256, (3, 4, 4), dtype=np.uint8)
    np.testing.assert_array_equal(predictor.logits(X), predictor.logits(X[..., None]))
    with pytest.raises(
        InputError, match=r"shape \(4, 4, 3\); the model was trained on \(4, 4, 1\)"
    ):
        predictor.logits(np.zeros((3, 4, 4, 3), dtype=np.uint8))


# ---- hostile folders, kills


def tree(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_files_beside_a_run_are_never_touched(tmp_path):
    """The names that locks and temporary files once had are the user's."""
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / ".run.lock").symlink_to(tmp_path / "thesis")
    (tmp_path / ".run2.lock").write_text("mine")
    for name in ("run", "run2"):
        with writing(tmp_path / name, {}) as run:
            assert is_locked(tmp_path / name)
            run.add_metrics({"epoch": 1})
    assert (tmp_path / "thesis").read_text() == "years of work"
    assert (tmp_path / ".run.lock").is_symlink()
    assert (tmp_path / ".run2.lock").read_text() == "mine"


def test_a_planted_lock_is_refused_and_its_target_kept(tmp_path):
    (tmp_path / "thesis").write_text("years of work")
    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "run", {}) as run:
        run.save_checkpoint({"x": torch.ones(1)}, epochs=1)
        raise KeyboardInterrupt
    (tmp_path / "run.partial" / LOCK).symlink_to(tmp_path / "thesis")
    with pytest.raises(InputError, match="is not a lock file"), writing(tmp_path / "run", {}):
        pass
    assert (tmp_path / "thesis").read_text() == "years of work"
    assert (tmp_path / "run.partial" / CHECKPOINT).exists()


KILLED = """
import os, signal, sys
from pathlib import Path
import candidly.storage.atomic, candidly.storage.store as store
from candidly.storage.store import writing
how, path = sys.argv[1:]
die = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
def after(function, count):
    left = [count]
    def wrapped(*args, **kwargs):
        result = function(*args, **kwargs)
        left[0] -= 1
        if not left[0]:
            die()
        return result
    return wrapped
if how == "before the first run.json is renamed":
    Path.replace = die
if how == "after the lock":
    store._prepare = die
if how == "after finished":
    store.write_sums = die
if how == "after the sums":
    store.write_sums = after(store.write_sums, 1)
if how == "after the old run is moved":
    Path.rename = after(Path.rename, 1)
if how == "after the rename":
    store._remove_leftovers = die
with writing(path, {"seed": 1}, replace="old" in how) as run:
    run.add_metrics({"epoch": 1})
    run.save_arrays(a=__import__("numpy").arange(3))
"""
KILLS = [
    "before the first run.json is renamed",
    "after the lock",
    "after finished",
    "after the sums",
    "after the rename",
]


def kill(how, path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, how, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def write_once(path, **options):
    with writing(path, {"seed": 1}, **options) as run:
        run.keep_metrics(0)
        run.add_metrics({"epoch": 1})
        run.save_arrays(a=np.arange(3))


@pytest.mark.parametrize("how", KILLS)
def test_the_same_command_goes_on_after_a_kill(tmp_path, how):
    kill(how, tmp_path / "run")
    if how == "after the rename":
        with pytest.raises(InputError, match="exists already"):
            write_once(tmp_path / "run")
    else:
        write_once(tmp_path / "run")
    assert tree(tmp_path) == [
        "run",
        "run/SHA256SUMS",
        "run/arrays.npz",
        "run/metrics.jsonl",
        "run/run.json",
    ]
    assert read_metrics(tmp_path / "run") == [{"epoch": 1}]
    verify(tmp_path / "run", "run.json", "arrays.npz", "metrics.jsonl")


def test_an_old_run_that_was_moved_away_comes_back(tmp_path):
    write_once(tmp_path / "run")
    (tmp_path / "run" / "old").write_text("kept")
    kill("after the old run is moved", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "run.partial" / REPLACED / "old").read_text() == "kept"
    with pytest.raises(InputError, match="exists already"):
        write_once(tmp_path / "run")
    assert (tmp_path / "run" / "old").read_text() == "kept"
    write_once(tmp_path / "run", replace=True)
    assert tree(tmp_path) == [
        "run",
        "run/SHA256SUMS",
        "run/arrays.npz",
        "run/metrics.jsonl",
        "run/run.json",
    ]


def test_changed_and_missing_files_are_named(tmp_path):
    write_once(tmp_path / "run")
    sums = (tmp_path / "run" / "SHA256SUMS").read_text()
    assert [line.split("  ")[1] for line in sums.splitlines()] == [
        "arrays.npz",
        "metrics.jsonl",
        "run.json",
    ]
    verify(tmp_path / "run", "metrics.jsonl")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write("{}")
    with pytest.raises(InputError, match=r"metrics.jsonl was changed or damaged"):
        verify(tmp_path / "run", "metrics.jsonl")
    verify(tmp_path / "run", "arrays.npz")
    (tmp_path / "run" / "arrays.npz").unlink()
    with pytest.raises(InputError, match=r"arrays.npz is missing"):
        verify(tmp_path / "run", "arrays.npz")
    with pytest.raises(InputError, match=r"model.json is missing"):
        verify(tmp_path / "run", "model/model.json")
    (tmp_path / "run" / "SHA256SUMS").unlink()
    with pytest.raises(InputError, match="SHA256SUMS cannot be read"):
        verify(tmp_path / "run", "run.json")


def edit_note(run, **changes):
    """Write `run.json` as another version of candidly might have, with hashes that match."""
    note = json.loads((run / "run.json").read_text()) | changes
    kept = {name: value for name, value in note.items() if value is not None}
    (run / "run.json").write_text(json.dumps(kept))
    write_sums(run)


def test_a_run_says_which_format_it_has(tmp_path):
    write_once(tmp_path / "run")
    assert RUN_FORMAT == 1
    assert json.loads((tmp_path / "run" / "run.json").read_text())["format"] == 1
    edit_note(tmp_path / "run", format=None)
    assert "format" not in json.loads((tmp_path / "run" / "run.json").read_text())
    verify(tmp_path / "run", "run.json")


@pytest.mark.parametrize("newer", [2, "2b"])
def test_a_run_of_a_newer_format_is_refused(tmp_path, newer):
    net = {"name": "linear", "shape": [2], "n_classes": 2}
    predictor = Predictor(build_net(**net), np.arange(2), (2,), np.zeros(2), np.ones(2))
    with writing(tmp_path / "run", {}) as run:
        run.save_model(predictor, net)
    assert Predictor.load(tmp_path / "run").classes.tolist() == [0, 1]
    edit_note(tmp_path / "run", format=newer)
    message = (
        rf"run was written by a newer version of candidly \(format {newer}; this one reads 1\): "
        "upgrade candidly"
    )
    for read in (
        lambda: verify(tmp_path / "run", "run.json"),
        lambda: Predictor.load(tmp_path / "run"),
        lambda: PartialLabelClassifier.load(tmp_path / "run"),
    ):
        with pytest.raises(InputError, match=message):
            read()


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "runs/run"],
        ["export", "runs/run", "--out", "x.csv"],
        ["predict", "runs/run", "a.csv", "--out", "x.csv"],
        ["bench", "show", "table1", "--scale", "digits", "--out", "runs"],
        ["bench", "export", "x.jsonl", "--out", "runs"],
    ],
)
def test_commands_refuse_a_newer_format(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    with writing("runs/run", {"job": "fit"}) as run:
        (run.folder / "result.json").write_text("{}")
    edit_note(tmp_path / "runs" / "run", format=2)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "(format 2; this one reads 1): upgrade candidly." in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_an_unfinished_run_of_a_newer_format_is_not_resumed(tmp_path):
    interrupted(tmp_path / "run", {"q": 0.1})
    edit_note(tmp_path / "run.partial", format=2)
    with (
        pytest.raises(InputError, match=r"format 2; this one reads 1"),
        writing(tmp_path / "run", {"q": 0.1}),
    ):
        pass
    assert (tmp_path / "run.partial" / CHECKPOINT).exists()


def test_versions_without_torch(monkeypatch):
    def version(name):
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    assert versions()["torch"] == torch.__version__
    monkeypatch.setattr(provenance.metadata, "version", version)
    found = versions()
    assert (found["torch"], found["numpy"]) == ("not installed", "1.0")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs a list of open files")
def test_without_locks_no_file_of_a_run_is_open_when_it_is_renamed(tmp_path, monkeypatch):
    """Windows renames neither an open file nor a folder that holds one."""
    monkeypatch.setattr(atomic, "fcntl", None)
    renamed = []

    def closed(rename):
        def checked(path, target):
            open_files = [
                os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
            ]
            assert not [name for name in open_files if name.startswith(str(tmp_path.resolve()))]
            renamed.append(path)
            return rename(path, target)

        return checked

    for name in ("rename", "replace"):
        monkeypatch.setattr(Path, name, closed(getattr(Path, name)))
    write_once(tmp_path / "run")
    write_once(tmp_path / "run", replace=True)
    assert tmp_path / "run.partial" in renamed
    assert not is_locked(tmp_path / "run")
    assert tree(tmp_path) == [
        "run",
        "run/SHA256SUMS",
        "run/arrays.npz",
        "run/metrics.jsonl",
        "run/run.json",
    ]


def test_a_run_has_no_hashes_of_the_runs_inside(tmp_path):
    with writing(tmp_path / "outer", {}) as outer:
        (outer.folder / "report.html").write_text("")
        with writing(outer.folder / "inner", {}):
            pass
    assert (tmp_path / "outer" / "SHA256SUMS").read_text().split()[1:] == ["run.json"]
    assert (tmp_path / "outer" / "inner" / "SHA256SUMS").read_text().split()[1:] == ["run.json"]
