"""The picture of imports between folders: what it is drawn from."""

import pytest
from scripts import load_script

graph = load_script("tools/import_graph.py")


@pytest.fixture
def tree(tmp_path):
    files = {
        "__init__.py": "from pack.high.user import use\n",
        "base.py": "",
        "high/__init__.py": "",
        "high/user.py": "import pack.low.tool\nfrom . import other\nfrom ..base import x\n",
        "high/other.py": "def f():\n    from pack.low import tool\n",
        "low/__init__.py": "",
        "low/tool.py": (
            "from typing import TYPE_CHECKING\nimport numpy\n"
            "if TYPE_CHECKING:\n    from pack.high.user import User\n"
            "from pack.base import x\n"
        ),
    }
    for name, text in files.items():
        path = tmp_path / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return graph.read_tree(tmp_path / "pack")


def test_imports_are_found_wherever_they_are(tree):
    assert tree.imports == {
        ("pack", "pack.high.user"): False,
        ("pack.high.user", "pack.low.tool"): False,
        ("pack.high.user", "pack.high.other"): False,
        ("pack.high.user", "pack.base"): False,
        ("pack.high.other", "pack.low.tool"): False,
        ("pack.low.tool", "pack.high.user"): True,
        ("pack.low.tool", "pack.base"): False,
    }


def test_boxes_follow_the_layers_and_arrows_count_pairs_of_modules(tree):
    levels = graph.make_boxes(tree, [["pack.high"], ["pack.low"], ["pack.base"]])
    assert [[box.title for box in level] for level in levels] == [["high"], ["low"], ["base"]]
    edges = graph.box_edges([box for level in levels for box in level], tree)
    assert edges == {(0, 1): (2, False), (0, 2): (1, False), (1, 0): (1, True), (1, 2): (1, False)}


def test_without_layers_a_cycle_shares_a_level_above_what_it_imports(tree):
    levels = graph.make_boxes(tree, None)
    assert [[box.title for box in level] for level in levels] == [["high", "low"], ["base"]]


def test_the_table_counts_modules_and_lines(tree):
    assert graph.size_table(tree).splitlines()[2:] == [
        "| (top level) | 2 | 1 |",
        "| `high/` | 3 | 5 |",
        "| `low/` | 2 | 5 |",
        "| all | 7 | 11 |",
    ]


def test_a_picture_is_drawn(tree):
    levels = graph.make_boxes(tree, None)
    edges = graph.box_edges([box for level in levels for box in level], tree)
    graph.place(levels, edges)
    assert len(graph.draw(levels, edges).axes[0].patches) == 3 + len(edges)
