"""The documentation is true: its Python runs, its links lead somewhere, its commands exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
RUNNABLE = [
    ROOT / "README.md",
    ROOT / "docs" / "training.md",
    ROOT / "docs" / "audit.md",
    ROOT / "docs" / "estimator.md",
    ROOT / "docs" / "files.md",
]


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda p: p.name)
def test_python_examples_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, page.name, "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\((?!http)([^)#]+)", prose):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_scripts_and_make_targets_exist(page):
    text = page.read_text()
    for script in re.findall(r"benchmarks/\w+\.py", text):
        assert (ROOT / script).exists(), script
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets


@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("speed.md", "all.py --show --out results"),
        ("speed.md", "curve.py --show results/curve.jsonl"),
        ("audit.md", "human.py --show results/human.jsonl"),
        ("candid.md", "human_train.py --show results/human_train.jsonl"),
        ("results.md", "leads.py features --table earlier --results results/features.jsonl"),
        ("results.md", "leads.py mini --table earlier --results results/mini.jsonl"),
    ],
)
def test_tables_of_benchmarks_are_those_that_were_measured(page, command):
    script, *options = command.split()
    text = (ROOT / "docs" / page).read_text()
    program = [sys.executable, str(ROOT / "benchmarks" / script), *options]
    shown = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert f"benchmarks/{command}" in text
    for table in shown.strip().split("\n\n"):
        assert table in text


def test_tables_in_the_documentation_are_those_of_the_results():
    """Every `candidly bench show ... --results` in a page, run again, gives the table above it."""
    shown = 0
    for page in PAGES:
        text = page.read_text()
        for command in re.findall(r"^candidly (bench show .*--results .*)$", text, flags=re.M):
            done = subprocess.run(
                [sys.executable, "-m", "candidly", *shlex.split(command)],
                capture_output=True, text=True, cwd=ROOT, check=True,
            )  # fmt: skip
            assert done.stdout.strip() in text, f"{page.name}: {command}"
            shown += 1
    assert shown
