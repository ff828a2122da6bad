"""The report: what it contains, and what a browser makes of it.

The browser draws and sorts it, and runs nothing that labels or ids contain.
"""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from candidly import Audit, CandidateSets
from candidly.answers import Answers
from candidly.auditing.findings import POINTS, collect_findings
from candidly.data import read_file
from candidly.report.build import DEFAULTS, describe_alpha, render_page, without_rows
from candidly.report.charts import (
    CHARTS,
    NONE,
    _cells,
    _counts,
    finish_chart,
    make_charts,
    new_chart,
)
from candidly.report.previews import previews

CHROMIUM = Path("/usr/bin/chromium")
EVIL = "<script>window.pwned=1</script>"
IMAGE = '"><img src=x onerror="window.pwned=2">'
CLASSES = [
    EVIL,
    IMAGE,
    "</script><script>window.pwned=3</script>",
    "{{ 7 * 7 }}",
    "javascript:alert(1)",
    "ünï",
]


def find(n=400, classes=CLASSES):
    """Findings of a made-up audit with names that would like to be more than names."""
    rng = np.random.default_rng(0)
    c = len(classes)
    y = rng.integers(c, size=n)
    given = np.where(rng.random(n) < 0.2, (y + rng.integers(1, c, size=n)) % c, y)
    mask = np.eye(c, dtype=bool)[given] | (rng.random((n, c)) < 0.2)
    logits = 3 * np.eye(c)[y] + rng.normal(size=(n, c))
    sets = CandidateSets(mask, classes)
    people = [EVIL, "mail@example.org"]
    answers = Answers.from_long(
        np.arange(n), [people[i % 2] for i in range(n)], list(sets), classes=classes, names=people
    )
    ids = [f"{IMAGE}{i}" for i in range(n)]
    facts = collect_findings(Audit(sets, logits=logits, answers=answers, ids=ids), truth=y)
    return finished(facts)


def find_answered(n=400, model=3.0):
    """Findings of three annotators who answered all rows, and of a model."""
    rng = np.random.default_rng(1)
    c = len(CLASSES)
    y = rng.integers(c, size=n)
    people = [EVIL, "mail@example.org", IMAGE]
    wrong = rng.random((n, 3)) < [0.05, 0.15, 0.3]
    cells = np.where(wrong, (y[:, None] + rng.integers(1, c, size=(n, 3))) % c, y[:, None])
    answers = Answers.from_long(
        np.repeat(np.arange(n), 3),
        people * n,
        [CLASSES[j] for j in cells.ravel()],
        classes=CLASSES,
        names=people,
        sep=None,
    )
    logits = model * np.eye(c)[y] + rng.normal(size=(n, c))
    return finished(collect_findings(Audit(answers=answers, logits=logits), truth=y))


def finished(facts):
    """Add what the jobs know of the file and the training."""
    for entry in [*facts["suspects"], *facts["open_suspects"]]:
        entry["preview"] = {"text": f"a secret of {entry['row']} {EVIL}"}
    facts |= {
        "file": f"{EVIL}.csv",
        "inputs": "text",
        "remarks": [EVIL],
        "made": {"Command": IMAGE},
    }
    epochs = [
        {"epoch": e, "loss": 1 / e, "rate_closed": 0.1, "rate_open": 0.01 * e} for e in range(1, 6)
    ]
    return json.loads(json.dumps(facts | {"history": epochs}, allow_nan=False))


@pytest.fixture(scope="module")
def findings():
    return find()


@pytest.fixture(scope="module")
def page(findings):
    return render_page(findings)


@pytest.fixture(scope="module")
def answered():
    return find_answered()


class Outline(HTMLParser):
    """Tags, heading levels, and attributes that matter to those who do not see."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.levels = []
        self.attributes = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))
        if re.fullmatch("h[1-6]", tag):
            self.levels.append(int(tag[1]))


def test_one_file_that_asks_for_nothing_else(page):
    assert len(page.encode()) < 5e6
    own = page.replace(page[page.index("<script>") : page.index("</script>")], "")
    assert re.findall(r"(?:src|href)=\"(?!data:|#)([^\"]*)", own) == []
    assert "default-src 'none'" in own
    assert "@import" not in own


def test_headings_are_in_order_and_everything_has_a_name(page):
    outline = Outline(page)
    assert outline.levels[0] == 1
    assert outline.levels.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(outline.levels, outline.levels[1:], strict=False))
    charts = [a for tag, a in outline.attributes if "chart" in a.get("class", "").split()]
    assert len(charts) == 9, "two annotators have a confusion matrix each"
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in charts)
    assert outline.tags.count("table") == outline.tags.count("caption")
    assert ("html", {"lang": "en"}) in outline.attributes


def test_the_numbers_are_on_the_page(findings, page):
    share = findings["shares"]["outside"]
    assert f"{100 * share['share']:.1f} %" in page
    assert f"outside: {100 * share['low']:.1f} % to {100 * share['high']:.1f} %" in page
    assert f"{findings['evaluation']['ap_naive']:.3f}" in page
    half = findings["review_at"][0]
    assert f"Review the top {half['rows']:,} rows: expect {half['expected']:,.0f} error" in page
    more = findings["more"]
    assert f"And {more['rows']:,} more: {more['likely']:,} of them have P(outside)" in page
    assert f"How sets arise: {findings['process']['words']}." in page
    assert f"{findings['confused'][0]['rows']:.1f}</td>" in page


def test_consensus_and_agreement_are_on_the_page(answered):
    page = " ".join(render_page(answered).split())
    alpha = answered["agreement"]["alpha"]
    assert f"Krippendorff's alpha is {alpha:.2f}: {describe_alpha(alpha)}." in page
    lowest = answered["agreement"]["lowest"]
    assert f"({lowest['kappa']:.2f}), highest for" in page
    differ = answered["consensus"]["differ"]
    assert f"differs from the majority vote in {differ} of 400 rows." in page
    assert page.count('data-label="Majority"') == page.count('data-label="Consensus"') >= 30
    assert page.count('id="chart-confusion-') == 3
    assert 'id="consensus-table"' not in page


@pytest.mark.parametrize(
    ("alpha", "words"), [(0.8, "well"), (0.7, "tentative"), (0.3, "little"), (0.0, "by chance")]
)
def test_alpha_in_words(alpha, words):
    assert words in describe_alpha(alpha)


def test_a_model_at_chance_gets_an_explanation_only():
    facts = find_answered(model=0.0)
    assert not facts["reliable"]
    facts["history"] = []
    page = render_page(facts)
    assert page.count('<div class="chart"') == 0
    text = " ".join(page[page.index("<main>") : page.index("</main>")].split())
    assert "any class would be in" in text
    assert "Krippendorff's alpha is" in text
    assert 'id="consensus-table"' in text
    assert re.findall('id="([a-z-]+)"', text) == ["shares", "annotators", "consensus-table", "made"]
    assert "tile" not in text
    assert "P(closed)" not in text
    hidden = render_page(facts, rows=False)
    assert "mail@example.org" not in hidden
    assert "annotator 1" in hidden


def test_names_are_text(page):
    own = page[: page.index("<script>")] + page[page.index("</script>") :]
    assert "<script>window.pwned" not in own
    assert "<img src=x" not in own
    assert "&lt;script&gt;window.pwned=1&lt;/script&gt;" in own
    assert "{{ 7 * 7 }}" in own
    assert "49" not in re.findall(r'<th scope="row">(.*?)</th>', own)


def test_no_rows_leaves_private_data_out(findings):
    bare = without_rows(findings)
    page = render_page(findings, rows=False)
    assert "a secret of" not in page
    assert "mail@example.org" not in page
    assert "annotator 1" in page
    assert "Rows to look at" not in page
    assert not re.search(r"onerror=\\?\W*window.pwned=2\W*\d", page), "no id"
    assert len(bare["points"]) == len(findings["points"])
    assert bare["points"][0].keys() >= {"inside", "outside", "verdict"}
    assert bare["suspects"] == bare["open_suspects"] == []
    assert findings["suspects"], "the findings themselves are not changed"


def test_no_rows_numbers_annotators_the_same_everywhere(answered):
    bare = without_rows(answered)
    names = [entry["name"] for entry in answered["annotators"]]
    numbers = [entry["name"] for entry in bare["annotators"]]
    assert numbers == ["annotator 1", "annotator 2", "annotator 3"]
    for end in ("lowest", "highest"):
        for key in ("first", "second"):
            given = answered["agreement"][end][key]
            assert bare["agreement"][end][key] == numbers[names.index(given)]
    assert "mail@example.org" not in json.dumps(bare)
    assert "mail@example.org" not in render_page(answered, rows=False)


def test_what_is_not_known_is_not_drawn(findings):
    people = [
        {name: value for name, value in entry.items() if name != "true_outside"}
        for entry in findings["annotators"]
    ]
    assert "By the truth column" in render_page(findings)
    assert "By the truth column" not in render_page(findings | {"annotators": people})
    page = render_page(findings | {"open_suspects": []})
    assert "No row has P(open) above 5.0 %." in page


def test_few_errors_are_counted_in_whole_numbers(findings):
    axes = make_charts(findings)["review"]["encoding"]
    assert axes["x"]["axis"] == axes["y"]["axis"] == {"format": ",d"}
    few = [{"rows": n, "expected": 0.3 * n, "blind": 0.1 * n} for n in range(1, 6)]
    axes = make_charts(findings | {"review": few})["review"]["encoding"]
    assert axes["x"]["axis"] == {"format": ",d", "values": [0, 1, 2, 3, 4, 5]}
    assert axes["y"]["axis"] == {"format": ",d", "values": [0, 1, 2]}


def test_a_sample_is_said_to_be_one():
    facts = find(POINTS + 500, ["a", "b", "c"])
    for name in DEFAULTS:
        facts.pop(name, None)
    assert facts["points_of"] > POINTS
    full = POINTS + 500 - facts["points_of"]
    page = render_page(facts)
    assert f"A random sample of {POINTS:,} of {facts['points_of']:,} rows." in page
    assert (f"Rows whose set holds all classes ({full:,}) have no outside" in page) == (full > 0)


def test_previews(tmp_path):
    pixels = np.zeros((200, 300), dtype=np.uint8)
    pixels[:, 150:] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"broken")
    (tmp_path / "a.csv").write_text("candidates,image\ncat,a.png\ndog,b.png\n")
    seen = previews(read_file(tmp_path / "a.csv"), [0, 1])
    assert seen[0]["image"].startswith("data:image/jpeg;base64,")
    assert len(seen[0]["image"]) < 4000
    assert seen[1] == {}
    (tmp_path / "b.csv").write_text(
        f"candidates,text\ncat,{'word ' * 200}\ndog,two\n  words\n".replace("two\n", "two")
    )
    seen = previews(read_file(tmp_path / "b.csv"), [0, 1])
    assert len(seen[0]["text"]) == 400
    assert seen[1]["text"] == "two words"
    rows = "".join(f"cat,{i % 3},red,{i % 2}\n" for i in range(99)) + "dog,50,blue,\n"
    (tmp_path / "c.csv").write_text(f"candidates,x,colour,y\n{rows}")
    first = previews(read_file(tmp_path / "c.csv"), [99])[99]["values"]
    assert (first[0]["name"], first[0]["value"], first[0]["z"]) == ("x", "50", 9.8)
    assert first[1:] == [{"name": "colour", "value": "blue", "z": None}], "y is missing there"
    np.savez(tmp_path / "d.npz", X=np.zeros((2, 8, 8), dtype=np.uint8), S=np.eye(2))
    assert previews(read_file(tmp_path / "d.npz"), [1])[1]["image"].startswith(
        "data:image/png;base64,"
    )
    frame = pd.DataFrame({"embedding": [[0.0, 1.0], [0.0, 3.0]], "candidates": [["a"], ["b"]]})
    frame.to_parquet(tmp_path / "e.parquet")
    values = previews(read_file(tmp_path / "e.parquet"), [1])[1]["values"]
    assert values[0] == {"name": "1", "value": "3", "z": 1.0}


@pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no chromium")
@pytest.mark.parametrize("people", [False, True])
def test_in_a_browser(findings, answered, tmp_path, people):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    (tmp_path / "report.html").write_text(render_page(answered if people else findings))
    messages = []
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        tab = browser.new_page(viewport={"width": 390, "height": 800})
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        tab.goto((tmp_path / "report.html").as_uri())
        drawn = (
            "[...document.querySelectorAll('.chart')]"
            ".every(c => c.querySelector('svg path, svg line'))"
        )
        tab.wait_for_function(drawn, timeout=30_000)
        points = tab.evaluate(
            "document.querySelectorAll('#chart-losses svg .mark-symbol path').length"
        )
        assert points >= 400
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390, (
            "a phone need not scroll sideways"
        )
        cell = (
            "[...document.querySelectorAll('#class-table tbody tr')]"
            ".map(r => Number(r.cells[1].dataset.value))"
        )
        tab.click("#class-table thead th:nth-child(2) button")
        falling = tab.evaluate(cell)
        tab.click("#class-table thead th:nth-child(2) button")
        rising = tab.evaluate(cell)
        assert falling == sorted(falling, reverse=True)
        assert rising == sorted(falling)
        assert len({*falling}) > 1
        assert tab.get_attribute("#class-table thead th:nth-child(2)", "aria-sort") == "ascending"
        tab.hover("#chart-losses svg .mark-symbol path >> nth=0", force=True)
        assert tab.evaluate("window.pwned") is None
        assert tab.title() == f"Audit of {EVIL}.csv"
        browser.close()
    assert messages == []


def test_a_confusion_matrix_is_drawn_by_shares():
    cells = _cells([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]], ["a", "b"])
    assert [(cell["truth"], cell["given"], cell["share"], cell["kind"]) for cell in cells] == [
        ("a", "a", 0.75, "right"),
        ("a", "b", 0.25, "wrong"),
        ("b", "a", 0.0, "wrong"),
        ("b", "b", 0.0, "right"),
    ]
    assert _cells([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]], ["a", "b"])[2]["given"] == NONE


def test_an_axis_of_many_counts_names_none_of_them():
    assert _counts(3).to_dict() == {"format": ",d", "values": [0, 1, 2, 3]}
    assert _counts(10_000_000).to_dict() == {"format": ",d"}


def test_a_registered_chart_appears_on_the_page(findings, monkeypatch):
    def verdicts(found):
        values = [{"kind": kind, "rows": n} for kind, n in found["verdicts"].items()]
        chart, data = new_chart("verdicts", values, 120)
        return finish_chart(chart.mark_bar().encode(x="rows:Q", y="kind:N"), data, "All verdicts.")

    assert "More charts" not in render_page(findings)
    monkeypatch.setitem(CHARTS, "verdicts", verdicts)
    monkeypatch.setitem(CHARTS, "nothing", lambda found: None)
    absent = {"nothing", *(f"confusion-{k}" for k in range(2, 12))}
    assert make_charts(findings).keys() == CHARTS.keys() - absent
    page = render_page(findings)
    assert page.count('<div class="chart"') == 10
    assert 'id="chart-verdicts" role="img" aria-label="All verdicts."' in page
    assert page.index("More charts") < page.index('id="chart-verdicts"')
    assert "chart-nothing" not in page
