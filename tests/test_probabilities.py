"""What counts as probabilities, for files of outputs and for audits alike."""

import numpy as np
import pytest

from candidly import audit
from candidly.data import read_file
from candidly.data.outputs import read_outputs_file
from candidly.errors import InputError
from candidly.probabilities import TOLERANCE, are_probabilities, describe_row, sums_to_one


def test_sums_may_miss_one_by_the_tolerance():
    totals = np.array([1, 1 + 0.9 * TOLERANCE, 1 - 0.9 * TOLERANCE, 1.02, 0.98, np.nan, np.inf])
    assert sums_to_one(totals).tolist() == [True, True, True, False, False, False, False]


def test_rows_of_probabilities():
    rows = np.array([[0.5, 0.5], [1.5, -0.5], [50, 50], [0.2, 0.2], [1, 0]])
    assert are_probabilities(rows).tolist() == [True, False, False, False, True]


def test_long_rows_are_cut_short():
    assert describe_row(np.full(8, 0.25)) == (
        "[0.25, 0.25, 0.25, 0.25, 0.25, 0.25, ...] sums to 2 with a least value of 0.25"
    )


@pytest.mark.parametrize("missed", [0.9 * TOLERANCE, 1.1 * TOLERANCE])
def test_files_and_arrays_follow_one_rule(tmp_path, missed):
    (tmp_path / "a.csv").write_text("candidates,x\ncat,1\ndog,2\ncat|dog,3\n")
    data = read_file(tmp_path / "a.csv")
    P = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5 + missed]])
    np.savez(tmp_path / "p.npz", probs=P)
    if missed < TOLERANCE:
        assert read_outputs_file(tmp_path / "p.npz", data)[0].tolist() == P.tolist()
        assert len(audit(data.sets, probs=P)) == 3
        return
    described = r"\[0.5, 0.511\] sums to 1.011 with a least value of 0.5"
    with pytest.raises(InputError, match=rf"p\.npz, row 3 .*{described}"):
        read_outputs_file(tmp_path / "p.npz", data)
    with pytest.raises(InputError, match=rf"probs, row 2: {described}"):
        audit(data.sets, probs=P)
