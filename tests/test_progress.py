"""Progress of long jobs: a bar on a terminal, a line now and then in a pipe."""

import io
import threading

import pytest

from candidly.console import progress
from candidly.console.progress import bar, duration


@pytest.fixture
def clock(monkeypatch):
    """A clock that only moves when a test says so."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    return found


def steps(clock, count, seconds, **options):
    with bar(count, "training", **options) as advance:
        for step in range(1, count + 1):
            clock.now += seconds
            advance(f"epoch {step}")


def test_a_pipe_gets_a_line_per_interval(clock, capsys):
    assert progress.LOG_INTERVAL == 30
    steps(clock, 10, 10.0)
    assert capsys.readouterr().err.splitlines() == [
        "candidly: training: 3 of 10, epoch 3, about 70 s left",
        "candidly: training: 6 of 10, epoch 6, about 40 s left",
        "candidly: training: 9 of 10, epoch 9, about 10 s left",
    ]


def test_the_interval_is_a_setting(clock, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LOG_INTERVAL", 15.0)
    steps(clock, 4, 10.0)
    assert capsys.readouterr().err.splitlines() == [
        "candidly: training: 2 of 4, epoch 2, about 20 s left",
        "candidly: training: 4 of 4, epoch 4",
    ]


def test_short_jobs_are_quiet_however_many_there_are(clock, capsys):
    for _ in range(10):
        steps(clock, 29, 1.0)
    assert capsys.readouterr().err == ""


def test_steps_done_before_do_not_count_for_the_time_left(clock, capsys):
    with bar(1000, "runs", done=900) as advance:
        clock.now += 100
        advance("a\x1b[31m", 50)
    assert capsys.readouterr().err == (
        "candidly: runs: 950 of 1,000, a\\x1b[31m, about 100 s left\n"
    )


def test_a_step_of_nothing_knows_no_time_left(clock, capsys):
    with bar(5, "runs", done=2) as advance:
        clock.now += 40
        advance("", 0)
    assert capsys.readouterr().err == "candidly: runs: 2 of 5\n"


def test_bars_within_a_bar_share_the_interval(clock, capsys):
    with bar(3, "runs") as advance:
        for _ in range(3):
            steps(clock, 2, 10.0)
            advance("")
    assert capsys.readouterr().err.splitlines() == [
        "candidly: runs: 1 of 3, about 60 s left; training: 1 of 2, epoch 1, about 10 s left",
        "candidly: runs: 2 of 3, about 30 s left; training: 2 of 2, epoch 2",
    ]
    steps(clock, 2, 14.0)
    assert capsys.readouterr().err == "", "the next job has an interval of its own"


def test_threads_log_apart(monkeypatch, capsys):
    """A bar that another thread began and ended first disturbs nobody."""
    monkeypatch.setattr(progress, "LOG_INTERVAL", 0.0)
    began, ended = threading.Event(), threading.Event()

    def second():
        began.wait()
        with bar(1, "second") as advance:
            ended.wait()
            advance("")

    thread = threading.Thread(target=second)
    thread.start()
    with bar(1, "first") as advance:
        began.set()
        advance("")
    ended.set()
    thread.join()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["candidly: first: 1 of 1", "candidly: second: 1 of 1"]


def test_an_error_ends_the_interval_too(clock, capsys):
    with pytest.raises(ZeroDivisionError), bar(2, "training"):
        clock.now += 100
        raise ZeroDivisionError
    steps(clock, 2, 14.0)
    assert capsys.readouterr().err == ""


def test_nothing_is_shown_if_not_wanted(clock, capsys):
    steps(clock, 10, 100.0, shown=False)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(clock, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with bar(2, "training") as advance:
        advance("first")
        with bar(1, "inner") as inner:
            inner("within")
        advance("second")
    text = terminal.getvalue()
    assert "training" in text
    assert "2/2" in text
    assert "candidly: " not in text
    assert progress._displays == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2.0 h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
