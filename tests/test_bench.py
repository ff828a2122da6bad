"""The grid: its jobs and their names, jobs that fail or are stopped, and the tables."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from scripts import load_script

from candidly.bench import commands, grid, runner, scales, tables
from candidly.bench.grid import Cell, Job, Row, table_jobs
from candidly.bench.problems import digits, make_problem
from candidly.bench.results import export, folder_results, load_results
from candidly.bench.runner import run_jobs
from candidly.bench.scales import SCALES
from candidly.errors import InputError, TrainingError
from candidly.kinds import Selection
from candidly.methods import METHODS
from candidly.methods.cc import CC
from candidly.methods.ooc import OOC
from candidly.storage.store import LOCK, partial_folder, verify, writing

TINY = dataclasses.replace(SCALES["digits"], name="tiny", changes={"epochs": 3}, seeds=1)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(scales.SCALES, "tiny", TINY)


def states(jobs, out):
    return [runner.state(job, out) for job in jobs]


def jobs(**options):
    return table_jobs("table1", TINY, cells=["*q=0.1 tau=0.2*"], **options)


def test_the_papers_grid_is_complete():
    found = table_jobs("table1", SCALES["paper"])
    assert len(found) == 3 * 6 * 14 * 5
    # Supervised rows are the same in all cells.
    assert len({job.key for job in found}) == 3 * 6 * 13 * 5 + 5
    ablations = table_jobs("table2", SCALES["paper"])
    assert len(ablations) == 2 * 7 * 5
    # "full" is "ooc".
    assert len({job.key for job in ablations} & {job.key for job in found}) == 2 * 5
    config = found[0].config
    assert config["net"] == "resnet18"
    assert config["scheme"]["epochs"] == 300
    assert config["settings"] == {}
    assert SCALES["paper"].ooc_settings(0.3) == {"warmup": 30, "window": 5}
    assert SCALES["paper"].ooc_settings(0.5) == {"warmup": 50, "window": 20}


@pytest.mark.parametrize("scale", ["paper", "features", "mini"])
def test_the_authors_program_has_its_own_window_and_alpha_at_the_highest_q(scale):
    rows = {row.name: row for row in grid.ROWS}
    for open_set, q, window, alpha in (
        ("svhn", 0.3, 5, 1.0),
        ("svhn", 0.5, 20, 0.1),
        ("imagenet32", 0.5, 20, 0.1),
        ("cifar100", 0.5, 20, 1.0),
    ):
        cell = Cell(open_set, q, 0.2, 0.4)
        found = {
            name: Job(SCALES[scale], cell, rows[name], 0).config["settings"]
            for name in ("ooc", "ooc, paper", "ooc, robust", "oracle")
        }
        assert (found["ooc"]["window"], found["ooc"]["alpha"]) == (window, alpha)
        assert (found["ooc, paper"]["window"], found["ooc, paper"]["alpha"]) == (window, 1.0)
        ours = SCALES[scale].window[q >= 0.5]
        for name in ("ooc, robust", "oracle"):
            assert (found[name]["window"], found[name]["alpha"]) == (ours, 1.0)


def test_rows_with_the_defaults_of_before_name_them():
    cell = Cell("svhn", 0.5, 0.2, 0.4)
    for name, views in (("mini", "mild"), ("features", "own")):
        rows = {row.name: row for row in grid.earlier_rows(SCALES[name])}
        assert list(rows)[3:8] == ["PRODEN", "LWS", "CAVL", f"PiCO, {views}", "CRDPLL, ramp 1/3"]
        settings = {
            row.name: Job(SCALES[name], cell, row, 0).config["settings"] for row in rows.values()
        }
        assert settings[f"PiCO, {views}"]["augmentation"] == views
        crdpll = settings["CRDPLL, ramp 1/3"]
        assert (crdpll["augmentation"], crdpll["ramp"]) == ("own", 1 / 3)
        for row in ("ooc, window 5", "ooc, paper, window 5"):
            assert (settings[row]["window"], settings[row]["alpha"]) == (5, 1.0)
        assert settings["ooc, paper, window 5"]["recursive"]
    # Where the old and the new defaults agree, so do the keys.
    narrow = Cell("svhn", 0.1, 0.2, 0.4)
    rows = {row.name: row for row in (*grid.ROWS, *grid.earlier_rows(SCALES["mini"]))}
    for old, new in (("ooc, window 5", "ooc"), ("ooc, paper, window 5", "ooc, paper")):
        keys = [
            [Job(SCALES["mini"], c, rows[r], 0).key for r in (old, new)] for c in (narrow, cell)
        ]
        assert keys[0][0] == keys[0][1]
        assert keys[1][0] != keys[1][1]


def test_rivals_have_settings_by_q_and_say_what_they_are_given():
    given = {row.name: row.given for row in grid.RIVALS}
    true = ["ALIM", "PiCO+", "trimmed PRODEN"]
    assert [name for name, what in given.items() if what == "true shares"] == true
    assert {given[name] for name in given if name not in true} == {"nothing"}
    rows = {row.name: row for row in grid.RIVALS}
    for q, alim, plus in ((0.3, 0.08, (0.10, 0.12)), (0.5, 0.14, (0.16, 0.20))):
        cell = Cell("svhn", q, 0.2, 0.4)
        found = {name: Job(SCALES["mini"], cell, row, 0).settings for name, row in rows.items()}
        assert found["ALIM"] == {"rates": "true", "start": alim, "warmup": 0.5}
        assert found["ALIM, estimated"]["rates"] == "auto"
        assert (found["PiCO+"]["prot_start"], found["PiCO+"]["knn_start"]) == plus
        assert found["PALS"] == found["GCE"] == {}
        assert found["trimmed PRODEN"] == {"rates": "true", "warmup": 0.5}


def test_rivals_run_by_one_command_or_one_by_one(tmp_path):
    chosen = table_jobs("rivals", TINY, cells=["*q=0.5 tau=0.2*"])
    assert [job.row.name for job in chosen] == [row.name for row in grid.RIVALS]
    assert {job.row.name for job in jobs(rows=["alim", "proden", "pals"])} == {
        "ALIM",
        "PRODEN",
        "PALS",
    }
    (job,) = table_jobs("rivals", TINY, cells=["*q=0.1 tau=0.2*"], rows=["gce"])
    assert job.row.name == "GCE"
    assert run_jobs(chosen, tmp_path, None) == {}
    table = commands.show(chosen, "rivals", folder_results(tmp_path), "md", details=False)
    heads = [tuple(line.split(" | ")[:2]) for line in table.splitlines()[2:]]
    assert heads[:2] == [("| ALIM", "true shares"), ("| ALIM, estimated", "nothing")]
    assert len(heads) == len(grid.RIVALS)


def test_own_views_and_earlier_rows_are_compared_with_the_papers_numbers():
    chosen = table_jobs("table1", SCALES["mini"], cells=["svhn q=0.1 tau=0.2*"], rows=["PiCO*"])
    found = {e["row"]: e["paper"] for e in tables.make_table(chosen, {}, "table1")}
    assert found == {"PiCO": 84.15, "PiCO, own": 84.15}
    chosen = table_jobs("earlier", SCALES["mini"], cells=["svhn q=0.1 tau=0.2*"])
    found = {e["row"]: e["paper"] for e in tables.make_table(chosen, {}, "earlier")}
    assert found["PiCO, mild"] == 84.15
    assert found["ooc, window 5"] == found["ooc, robust"] == 91.3
    assert found["supervised"] is None
    assert all(v is None for v in tables.paper_numbers("rivals").values())


def test_a_key_changes_with_whatever_decides_the_result_and_with_nothing_else():
    job = jobs(rows=["ooc"])[0]
    wordier = dataclasses.replace(
        job, scale=dataclasses.replace(TINY, about="other words", name="other", seeds=9)
    )
    spelt_out = dataclasses.replace(
        job, scale=dataclasses.replace(TINY, changes={"epochs": 3, "lr": 0.05})
    )
    assert wordier.key == spelt_out.key == job.key
    longer = dataclasses.replace(job, scale=dataclasses.replace(TINY, changes={"epochs": 4}))
    sharper = dataclasses.replace(
        job, row=dataclasses.replace(job.row, settings={"temperature": 0.25})
    )
    assert len({job.key, longer.key, sharper.key, dataclasses.replace(job, seed=1).key}) == 4


class BareOOC(OOC):
    """`ooc` with one of its settings."""

    def __init__(self, *, warmup=0.2):
        super().__init__(warmup=warmup)


class Alpha(CC):
    """A method whose `alpha` has nothing to do with that of `ooc`."""

    def __init__(self, *, alpha=0.7):
        super().__init__()


def test_settings_of_the_scale_are_for_ooc_and_subclasses_that_accept_them(monkeypatch):
    monkeypatch.setitem(METHODS, "bare", BareOOC)
    monkeypatch.setitem(METHODS, "alpha", Alpha)
    cell = Cell("svhn", 0.5, 0.2, 0.4)
    settings = {
        name: Job(SCALES["paper"], cell, Row(name, name), 0).settings
        for name in ("ooc", "bare", "alpha")
    }
    assert settings["ooc"] == {"rates": "true", "warmup": 50, "window": 20, "alpha": 0.1}
    assert settings["bare"] == {"warmup": 50}
    assert settings["alpha"] == {}


def test_a_subclass_of_ooc_with_few_settings_runs(monkeypatch, tmp_path):
    monkeypatch.setitem(METHODS, "bare", BareOOC)
    assert run_jobs(jobs(rows=["bare"]), tmp_path, None) == {}


class Selecting(CC):
    """A method that is not `ooc`, but selects examples by averaged logits."""

    def setup(self, model, candidates, rng):
        self.register_buffer("uniform", torch.zeros(candidates.shape))
        self.register_buffer("open", torch.arange(len(candidates)) % 2 > 0)

    @property
    def selection(self):
        return Selection(~self.open, torch.zeros_like(self.open), self.open)

    @property
    def ensemble_logits(self):
        return self.uniform


def test_figures_are_for_any_method_with_a_selection_and_an_ensemble(monkeypatch, tmp_path):
    monkeypatch.setitem(METHODS, "selecting", Selecting)
    (job,) = jobs(rows=["selecting"])
    result = runner.run_job(job, tmp_path / "run", None, keep_model=True)
    assert set(result["figures"]) == {"losses", "examples"}
    with np.load(tmp_path / "run" / "arrays.npz") as arrays:
        assert sorted(arrays) == ["closed", "ensemble", "normal", "open"]
        assert not arrays["ensemble"].any()
        assert arrays["open"].sum() == len(arrays["open"]) // 2
    (plain,) = jobs(rows=["cc"])
    assert "figures" not in runner.run_job(plain, tmp_path / "plain", None, keep_model=True)
    assert not (tmp_path / "plain" / "arrays.npz").exists()


def test_patterns_choose_rows_and_cells_and_wrong_ones_are_refused():
    names = {job.row.name for job in table_jobs("table1", TINY, rows=["OOC*", "proden"])}
    assert names == {"ooc", "ooc, paper", "ooc, robust", "ooc, gradual", "PRODEN"}
    assert {job.row.name for job in jobs(rows=["c*"])} == {
        "CC",
        "CAVL",
        "CRDPLL",
        "CRDPLL, own",
    }
    (true_labels,) = jobs(rows=["lws, true labels"])
    assert true_labels.row.reference == "supervised"
    with pytest.raises(
        InputError, match=r"no row matches 'prodne'\. There are: supervised; oracle; CC"
    ):
        jobs(rows=["prodne"])
    with pytest.raises(InputError, match=r"no cell matches 'svhn\*'"):
        table_jobs("table1", TINY, cells=["svhn*"])
    with pytest.raises(InputError, match=r"tau 0\.2 3: expected two numbers from 0 to 1"):
        table_jobs("table1", TINY, tau=(0.2, 3))


def test_parts_share_the_runs_out():
    whole = commands.jobs("table1", "tiny", None, None, None, None)
    parts = [commands.jobs("table1", "tiny", None, None, None, None, f"{k}/3") for k in (1, 2, 3)]
    assert sorted(job.key for part in parts for job in part) == sorted({job.key for job in whole})
    assert [sum(job.row.name == "PiCO" for job in part) for part in parts] == [2, 2, 2]
    for wrong in ("0/3", "4/3", "x", "1"):
        with pytest.raises(InputError, match="expected K/N"):
            commands.jobs("table1", "tiny", None, None, None, None, wrong)


def test_every_row_of_both_tables_runs_once(tmp_path):
    chosen = [*jobs(), *table_jobs("table2", TINY, cells=["*tau=0.2*"])]
    assert run_jobs(chosen, tmp_path, None) == {}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert run_jobs(chosen, tmp_path, None) == {}
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert after == before
    found = folder_results(tmp_path)
    assert len(found) == len({job.key for job in chosen})
    robust = next(r for r in found.values() if r["row"] == "ooc, robust")
    assert len(robust["curves"]["precision_open"]) == 3
    assert {"recall_open", "auroc_open", "auroc_closed"} <= set(robust["curves"])
    assert len(robust["per_class"]) == 6
    assert robust["flops"] > 0
    oracle = next(r for r in found.values() if r["row"] == "oracle")
    assert oracle["curves"]["precision_closed"] == [1.0, 1.0, 1.0]
    table = commands.show(jobs(), "table1", found, "md", details=True)
    assert f"| ooc, robust | true shares | {robust['score']:.1f}" in table.replace("**", "")


def test_failures_are_kept_reported_and_retried_on_request(tmp_path, monkeypatch):
    chosen = jobs(rows=["cc", "proden"])
    attempts = []

    def broken(job, folder, data_dir, device):
        attempts.append(job.row.name)
        raise RuntimeError("the roof leaks")

    monkeypatch.setattr(runner, "run_job", broken)
    for retry, expected in ((False, 2), (False, 2), (True, 4)):
        with pytest.raises(
            TrainingError,
            match=r"0 of 2 runs are done.*2 failed(.|\n)*RuntimeError: the roof leaks",
        ):
            commands.run(chosen, tmp_path, None, retry)
        assert len(attempts) == expected
    assert states(chosen, tmp_path) == ["failed", "failed"]
    monkeypatch.undo()
    monkeypatch.setitem(scales.SCALES, "tiny", TINY)
    assert commands.run(chosen, tmp_path, None, True).startswith("2 of 2 runs are done")
    assert not list(tmp_path.glob("*.failed.json"))


def test_an_interrupted_run_is_resumed(tmp_path, monkeypatch):
    chosen = jobs(rows=["ooc"])

    def impatient(job, fitted, data):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runner, "summarise", impatient)
        with pytest.raises(KeyboardInterrupt):
            run_jobs(chosen, tmp_path, None)
    assert states(chosen, tmp_path) == ["unfinished"]
    run_jobs(chosen, tmp_path, None)
    (again,) = folder_results(tmp_path).values()
    run_jobs(chosen, tmp_path / "straight", None)
    (straight,) = folder_results(tmp_path / "straight").values()
    assert again["score"] == straight["score"]
    assert again["curves"] == straight["curves"]


def test_the_plan_estimates_from_what_is_done(tmp_path):
    chosen = jobs(rows=["cc"], seeds=2)
    assert "no estimate" in commands.planned(chosen, tmp_path)
    run_jobs(chosen[:1], tmp_path, None)
    text = commands.planned(chosen, tmp_path)
    assert "1 of 2 runs are left: about" in text


def fake(job, score, seconds=3.0):
    return {
        "key": job.key,
        "score": score,
        "seconds": seconds,
        "curves": {"accuracy": [0.1, 0.2, 0.3]},
    }


def table_of(values):
    """Entries of Table 1 from scores by (row, seed), of two seeds in one cell."""
    rows = list(dict.fromkeys(row for row, _ in values))
    scale = dataclasses.replace(SCALES["mini"], seeds=2)
    chosen = table_jobs("table1", scale, cells=["svhn q=0.1 tau=0.2*"], rows=rows)
    found = [
        fake(job, values[(job.row.name, job.seed)])
        for job in chosen
        if (job.row.name, job.seed) in values
    ]
    return tables.make_table(chosen, {result["key"]: result for result in found}, "table1")


def test_tables_by_hand():
    scores = {"supervised": (98.0, 99.0), "PRODEN": (80.0, 82.0), "ooc": (90.0, 91.0)}
    entries = table_of({(row, k): pair[k] for row, pair in scores.items() for k in (0, 1)})
    assert tables.as_markdown(entries).splitlines() == [
        "| | given | svhn q=0.1 tau=0.2,0.4 |",
        "|---|---|---|",
        "| supervised | true labels | 98.5 ± 0.7 |",
        "| PRODEN | nothing | 81.0 ± 1.4 (paper 83.28, -2.3) |",
        "| ooc | true shares | **90.5 ± 0.7** (paper 91.30, -0.8) |",
    ]
    head, _, proden, _ = tables.as_csv(entries).splitlines()
    assert head.startswith("row,given,cell,")
    cell = '"svhn q=0.1 tau=0.2,0.4",svhn,0.1,0.2,0.4'
    assert proden == f"PRODEN,nothing,{cell},81.0,1.4142,2,2,False,83.28,0.14,-2.3,,,,1.0"
    latex = tables.as_latex(entries).splitlines()
    assert latex[1:3] == [
        r"\begin{tabular}{llc} \toprule",
        r" & given & svhn q=0.1 tau=0.2,0.4 \\ \midrule",
    ]
    assert latex[5] == r"ooc & true shares & \textbf{90.5 $\pm$ 0.7} (paper 91.30, -0.8) \\"
    detailed = tables.as_markdown(entries, details=True).splitlines()
    assert detailed[3].endswith("| 1 |")  # three seconds, three epochs


def test_tables_with_missing_runs_count_them_and_compare_equal_numbers_only():
    entries = table_of({("PRODEN", 0): 80.0, ("PRODEN", 1): 82.0, ("ooc", 0): 90.0})
    assert tables.as_markdown(entries).splitlines()[2:] == [
        "| PRODEN | nothing | 81.0 ± 1.4 (2 runs; paper 83.28, -2.3) |",
        "| ooc | true shares | 90.0 (1 run; paper 91.30, -1.3) |",
    ]
    assert "90.0 (1 run; paper 91.30, -1.3)" in tables.as_latex(entries)
    equal = tables.as_markdown(table_of({("PRODEN", 0): 80.0, ("ooc", 0): 90.0}))
    assert "| ooc | true shares | **90.0** (1 run; paper 91.30, -1.3) |" in equal


def test_rows_say_what_they_are_given():
    given = {row.name: row.given for row in (*grid.ROWS, *grid.ON_TRUE_LABELS, *grid.ABLATIONS)}
    assert given.pop("supervised") == given.pop("LWS, true labels") == "true labels"
    assert given.pop("oracle") == "true kinds"
    assert {name for name, what in given.items() if what == "nothing"} == {
        *grid.COMPARED,
        "PiCO, own",
        "CRDPLL, own",
    }
    assert {given[name] for name in ("ooc", "ooc, robust", "full", "discard")} == {"true shares"}
    estimated = Row("ooc, auto", "ooc", settings={"rates": "auto"})
    assert estimated.given == "nothing"
    problem = make_problem(digits(0), q=0.1, tau1=0.2, tau2=0.4, seed=0)
    job = Job(TINY, Cell("digits", 0.1, 0.2, 0.4), estimated, 0)
    assert runner.method_of(job, problem).given == "auto"


def test_results_name_the_machine_and_keys_do_not(tmp_path):
    (job,) = jobs(rows=["cc"])
    run_jobs([job], tmp_path, None)
    (found,) = folder_results(tmp_path).values()
    assert found["machine"] == runner.machine()
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert found["machine"]["processor"]
    assert "machine" not in job.config


def test_the_papers_numbers_appear_beside_comparable_cells_only():
    assert tables.paper_numbers("table1")[("imagenet32", 0.5, 0.3, 0.6, "ooc")] == (64.98, 0.18)
    assert tables.paper_numbers("table2")[("svhn", 0.1, 0.2, 0.4, "w/o RLD")] == (83.46, 0.11)
    assert all(e["paper"] is None for e in tables.make_table(jobs(), {}, "table1"))


def test_export_keeps_what_was_there(tmp_path):
    one, two = jobs(rows=["cc", "proden"])
    run_jobs([one], tmp_path / "a", None)
    run_jobs([two], tmp_path / "b", None)
    export(tmp_path / "all.jsonl", tmp_path / "a")
    assert export(tmp_path / "all.jsonl", tmp_path / "b").startswith("2 results")
    found = load_results(tmp_path / "nowhere", tmp_path / "all.jsonl")
    shown = commands.show([one, two], "table1", found, "md", details=False)
    assert [line.split(" | ")[0] for line in shown.splitlines()[2:]] == ["| CC", "| PRODEN"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"bad\.jsonl is not a file of JSON lines"),
        (b"\xff", r"bad\.jsonl is not a file of JSON lines"),
        (b"[1]", r"bad\.jsonl, line 1 is not a result"),
        (b'{"key": 1}', r"^\S*bad\.jsonl, line 1 is not a result: .* `candidly bench export`\.$"),
        (None, r"bad\.jsonl cannot be read \(Is a directory\): .*`candidly bench export`"),
    ],
)
def test_what_is_no_exported_file_is_refused(tmp_path, content, message):
    path = tmp_path / "bad.jsonl"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_results(tmp_path, path)


def test_the_oracle_knows_the_kinds_and_ooc_does_not():
    cell = Cell("digits", 0.1, 0.2, 0.4)
    problem = make_problem(digits(0), q=0.1, tau1=0.2, tau2=0.4, seed=0)
    row = Row("oracle", "ooc", reference="oracle")
    oracle = runner.method_of(Job(TINY, cell, row, 0), problem)
    alone = runner.method_of(Job(TINY, cell, Row("ooc", "ooc"), 0), problem)
    assert hasattr(oracle, "truth")
    assert not hasattr(alone, "truth")
    assert alone.rates == problem.rates


def test_the_command_line(tmp_path):
    def run(*arguments, code=0):
        command = [sys.executable, "-m", "candidly", "bench", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    cells = ("--cells", "*q=0.1 tau=0.2*")
    chosen = ("table1", "--scale", "digits", *cells, "--methods", "cc", "--seeds", "1")
    assert "to do" in run("run", *chosen, "--dry-run").stdout
    done = run("run", *chosen)
    assert done.stderr == "1 of 1 runs are done, in runs/bench.\n"
    (path,) = (tmp_path / "runs" / "bench").glob("*/result.json")
    score = json.loads(path.read_text())["score"]
    assert f"| CC | nothing | **{score:.1f}** |" in done.stdout
    assert run("show", *chosen).stdout == done.stdout
    assert run("run", *chosen, "--part", "1/1").stdout == done.stdout
    assert run("run", *chosen, "--part", "1/2").stdout == ""
    assert f"{path} cannot be used: File exists" in run("export", f"{path}/x.jsonl", code=2).stderr
    not_a_folder = run("run", *chosen, "--dry-run", "--out", str(path), code=2).stderr
    assert f"{path} is not a folder" in not_a_folder
    assert "Not a directory" in run("run", *chosen, "--out", f"{path}/x", code=2).stderr
    assert "table 'table9' is unknown" in run("run", "table9", "--scale", "digits", code=2).stderr
    assert "scale 'pap' is unknown" in run("show", "table1", "--scale", "pap", code=2).stderr
    missing = run("run", "table1", "--scale", "mini", "--data-dir", "none", code=2).stderr
    assert "candidly data fetch cifar10" in missing
    assert "digits" in run("scales").stdout


def test_a_run_that_another_process_writes_is_left_to_it(tmp_path):
    (job,) = jobs(rows=["cc"])
    with writing(tmp_path / job.key, {}):
        assert states([job], tmp_path) == ["running"]
        assert run_jobs([job], tmp_path, None) == {}
        assert folder_results(tmp_path) == {}


def test_a_lock_that_outlived_its_process_locks_nothing(tmp_path):
    (job,) = jobs(rows=["cc"])
    partial_folder(tmp_path / job.key).mkdir()
    (partial_folder(tmp_path / job.key) / LOCK).touch()
    assert states([job], tmp_path) == ["unfinished"]
    with writing(tmp_path / job.key, {}):
        summary = commands.run([job], tmp_path, None, False)
    assert "0 of 1 runs are done" in summary
    assert "1 is being run by another process" in summary


def test_runs_that_serve_many_cells_count_once(tmp_path):
    chosen = table_jobs("table1", TINY, rows=["supervised", "cc"])
    assert len(chosen) == 12
    assert "7 of 7 runs are left" in commands.planned(chosen, tmp_path)
    assert [job.row.name for job in grid.distinct(chosen)][:2] == ["supervised", "CC"]
    assert commands.run(chosen, tmp_path, None, False).startswith("7 of 7 runs are done")


def test_one_damaged_run_does_not_stop_the_others(tmp_path, monkeypatch):
    first, _ = chosen = jobs(rows=["CC", "PRODEN"])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(runner, "summarise", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run_jobs([first], tmp_path, None)
    (tmp_path / f"{first.key}.partial" / "checkpoint.safetensors").write_bytes(b"")
    with pytest.raises(TrainingError, match=r"1 of 2 runs are done(.|\n)*CC seed 0: InputError"):
        commands.run(chosen, tmp_path, None, False)
    assert states(chosen, tmp_path) == ["failed", "done"]
    assert "1 of them failed, and wait for --retry" in commands.planned(chosen, tmp_path)


def test_missing_sets_are_reported_before_anything_runs(tmp_path):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
        (tmp_path / "cifar-10-batches-bin" / name).write_bytes(bytes(3073))
    chosen = table_jobs("table1", SCALES["mini"], rows=["cc"], seeds=1)
    with pytest.raises(InputError, match=r"svhn \(train\) is missing"):
        run_jobs(chosen, tmp_path / "runs", tmp_path)
    plan = commands.planned(chosen, tmp_path / "runs", tmp_path)
    assert "They cannot be run: svhn (train) is missing" in plan
    with pytest.raises(InputError, match=r"cifar10 has 5 images; this scale needs 3000"):
        scales._some(np.random.default_rng(0), 5, 3000, "cifar10")


def test_the_scale_is_the_one_that_has_results(tmp_path):
    with pytest.raises(InputError, match=rf"which scale\? there are no results in {tmp_path}"):
        commands.scale_of(None, {}, tmp_path)
    (job,) = jobs(rows=["cc"])
    run_jobs([job], tmp_path, None)
    found = folder_results(tmp_path)
    assert commands.scale_of(None, found, tmp_path) == "tiny"
    assert commands.scale_of("mini", found, tmp_path) == "mini"
    other = {**found[job.key], "key": "other", "scale": "mini"}
    (tmp_path / "more.jsonl").write_text(json.dumps(other) + "\n")
    found = load_results(tmp_path, tmp_path / "more.jsonl")
    with pytest.raises(InputError, match="there are results of mini, tiny: name one by --scale"):
        commands.scale_of(None, found, tmp_path)


def test_missing_runs_and_mixed_data_of_a_table_are_reported(tmp_path):
    first, second, third = chosen = jobs(rows=["cc", "lws", "proden"])
    run_jobs([first, second], tmp_path, None)
    found = folder_results(tmp_path)
    assert commands.notes([first, second], "table1", found, tmp_path) == []
    assert commands.notes(chosen, "table1", found, tmp_path) == [
        "2 of 3 runs are there; to train the missing runs: candidly bench run table1 --scale tiny "
        '--cells "digits q=0.1 tau=0.2,0.4" '
        f'--methods "{third.row.name}" --seeds 1 --out {tmp_path}'
    ]
    odd = table_jobs("table1", TINY, cells=["*q=0.1*"], rows=["cc"], tau=(0.0, 0.5))
    assert (
        '--scale tiny --tau 0 0.5 --cells "digits q=0.1 tau=0,0.5"'
        in commands.notes(odd, "table1", found, tmp_path)[0]
    )
    found[first.key] |= {"data": "other", "images": {"svhn": 9, "cifar10": 50_000}}
    assert commands.notes([first, second], "table1", found, tmp_path) == [
        "digits q=0.1 tau=0.2,0.4 seed 0: results come from 2 versions of the data.",
        "svhn: 9 images were read; its official training part has 73,257.",
    ]


def test_other_files_among_the_runs_are_ignored(tmp_path):
    (job,) = jobs(rows=["cc"])
    run_jobs([job], tmp_path, None)
    for name, content in (("a", "{}"), ("b", "[1]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(content)
    assert list(folder_results(tmp_path)) == [job.key]


def test_results_know_their_data(tmp_path):
    first, second = jobs(rows=["CC", "PRODEN"])
    (other,) = table_jobs("table1", TINY, cells=["*q=0.5 tau=0.2*"], rows=["CC"])
    run_jobs([first, second, other], tmp_path, None)
    data = {key: found["data"] for key, found in folder_results(tmp_path).items()}
    assert data[first.key] == data[second.key] != data[other.key]


def test_old_keys_of_results_and_runs_are_migrated_once(tmp_path, capsys):
    migrate = load_script("tools/migrate_keys.py")
    other, job = jobs(rows=["cc", "ooc, robust"])
    run_jobs([job, other], tmp_path / "runs", None)
    exported = tmp_path / "results.jsonl"
    export(exported, tmp_path / "runs")
    new = exported.read_text()

    (old_config,) = migrate.old_configs(job.config)
    assert "open_score" not in old_config["settings"]
    assert old_config["settings"]["openness"] == "confidence"
    old = grid.config_key(old_config)
    exported.write_text(new.replace(job.key, old))
    assert migrate.migrate_file(exported) == {"changed": 1, "unchanged": 1}
    assert exported.read_text() == new
    assert migrate.migrate_file(exported) == {"unchanged": 2}
    exported.write_text(new.replace(job.key, "0" * 16))
    assert migrate.migrate_file(exported) == {"not placed": 1, "unchanged": 1}
    assert f"no job has the key {'0' * 16} (ooc, robust)" in capsys.readouterr().out

    run = tmp_path / "runs" / job.key
    note = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**note, "config": old_config}))
    run.rename(tmp_path / "runs" / old)
    assert migrate.migrate_runs(tmp_path / "runs") == {"changed": 1, "unchanged": 1}
    assert runner.state(job, tmp_path / "runs") == "done"
    assert json.loads((run / "run.json").read_text())["config"] == job.config
    verify(run, "run.json", "result.json")
    assert migrate.migrate_runs(tmp_path / "runs") == {"unchanged": 2}


def test_results_with_the_defaults_of_before_get_the_names_that_say_so(tmp_path):
    migrate = load_script("tools/migrate_keys.py")
    mini = SCALES["mini"]
    cell = Cell("svhn", 0.5, 0.2, 0.4)
    rows = {row.name: row for row in (*grid.ROWS, *grid.earlier_rows(mini))}

    def line(name, stored_as, config=None):
        job = Job(mini, cell, rows[name], 0)
        key = grid.config_key(config) if config else job.key
        keys = {"key": key, "row": stored_as, "scale": "mini", "seed": 0, "score": 1.0}
        return keys | {"cell": dataclasses.asdict(cell), "seconds": 1.0, "curves": {}}

    pico = Job(mini, cell, rows["PiCO, mild"], 0).config
    published = {**pico, "settings": {**pico["settings"], "augmentation": "own"}}
    stored = [
        line("PiCO, mild", "PiCO", published),
        line("CRDPLL, ramp 1/3", "CRDPLL"),
        line("ooc, window 5", "ooc"),
        line("ooc, paper, window 5", "ooc, paper"),
        *(line(name, name) for name in ("PiCO", "PiCO, own", "CRDPLL", "ooc", "PRODEN")),
    ]
    path = tmp_path / "old.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in stored))
    assert migrate.migrate_file(path) == {"changed": 4, "unchanged": 5}
    found = [json.loads(text) for text in path.read_text().splitlines()]
    names = ["PiCO, mild", "CRDPLL, ramp 1/3", "ooc, window 5", "ooc, paper, window 5"]
    assert [entry["row"] for entry in found[:4]] == names
    assert [entry["key"] for entry in found[:4]] == [
        Job(mini, cell, rows[name], 0).key for name in names
    ]
    assert found[4:] == stored[4:]
    assert migrate.migrate_file(path) == {"unchanged": 9}
    assert migrate.new_config(published, "PiCO") == pico
    assert migrate.new_config(published, "PiCO, own") == published


def test_the_overhead_benchmark_runs():
    overhead = load_script("benchmarks/overhead.py")
    measured = overhead.measure("ooc, recorded", n=32, batch_size=16, pairs=3)
    assert measured["low"] <= measured["ratio"] <= measured["high"]


def test_a_run_that_another_process_finishes_meanwhile_stops_nothing(tmp_path, monkeypatch):
    first, second = jobs(rows=["CC", "PRODEN"])
    load = runner.problem_of

    def finished_meanwhile(job, data_dir):
        if job is first:
            with writing(tmp_path / job.key, {}):
                pass
        return load(job, data_dir)

    monkeypatch.setattr(runner, "problem_of", finished_meanwhile)
    assert run_jobs([first, second], tmp_path, None) == {}
    assert (tmp_path / second.key / "result.json").exists()


def test_learning_rates_of_a_scale_go_by_method_and_q():
    scale = dataclasses.replace(TINY, lr={"cc": {0.1: 0.03}})
    cell, wide = Cell("digits", 0.1, 0.2, 0.4), Cell("digits", 0.5, 0.2, 0.4)
    rows = {row.name: row for row in grid.ROWS}
    assert Job(scale, cell, rows["CC"], 0).config["scheme"]["lr"] == 0.03
    assert (
        Job(scale, wide, rows["CC"], 0).config["scheme"]["lr"]
        == Job(TINY, wide, rows["CC"], 0).config["scheme"]["lr"]
    )
    assert Job(scale, cell, rows["PRODEN"], 0).key == Job(TINY, cell, rows["PRODEN"], 0).key
