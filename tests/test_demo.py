"""The demo prints what the README shows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
ACCURACY_TOLERANCE = 2.0  # points: processors round differently
PRECISION_TOLERANCE = 0.05
SHARE_TOLERANCE = 5.0  # points, of the audit


def shown_output():
    (block,) = re.findall(r"```\n(Handwritten digits.*?)\n```", README.read_text(), flags=re.S)
    return block.splitlines()


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    command = [sys.executable, "-m", "candidly", "demo"]
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True)
    return done.stdout.splitlines()


def split_row(line):
    """(name, accuracy, precisions) of a method's line; None for any other line."""
    found = re.fullmatch(r"(\S.*?)\s+([\d.]+)%\s+([-\d.]+)\s+([-\d.]+)\s+([-\d.]+)", line)
    return None if found is None else (found[1], float(found[2]), found.groups()[2:])


def split_audit(line):
    """(kind, true share, estimate) of a line of the audit; None for any other line."""
    found = re.match(r"(closed|open) +([\d.]+)% +([\d.]+)% ", line)
    return None if found is None else (found[1], float(found[2]), float(found[3]))


def test_the_readme_shows_the_lines_that_the_demo_prints(printed):
    shown = shown_output()
    assert len(shown) <= len(printed)
    for ours, theirs in zip(shown, printed, strict=False):
        names = [row and row[0] for row in map(split_row, (ours, theirs))]
        assert names[0] == names[1]
        audits = [split_audit(line) for line in (ours, theirs)]
        if audits[0] and audits[1]:
            assert audits[0][:2] == audits[1][:2]
            assert audits[0][2] == pytest.approx(audits[1][2], abs=SHARE_TOLERANCE)
        else:
            assert names[0] or ours == theirs


def test_the_numbers_of_the_readme_are_those_of_the_demo(printed):
    rows = {row[0]: row for row in map(split_row, printed) if row}
    shown = [row for row in map(split_row, shown_output()) if row]
    assert [row[0] for row in shown] == list(rows)
    for name, accuracy, precisions in shown:
        assert accuracy == pytest.approx(rows[name][1], abs=ACCURACY_TOLERANCE)
        for ours, theirs in zip(precisions, rows[name][2], strict=True):
            assert (ours == "-") == (theirs == "-")
            if ours != "-":
                assert float(ours) == pytest.approx(float(theirs), abs=PRECISION_TOLERANCE)
