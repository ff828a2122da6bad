"""The Python examples of CONTRIBUTING.md, by the heading of their recipe."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
RECIPES = dict(re.findall(r"^## (Add an? [^\n,]+).*?```python\n(.*?)```", PAGE, flags=re.M | re.S))


def run_recipe(name):
    """Run the example of a recipe; returns what it defines."""
    found = {"__name__": "recipe"}
    exec(compile(RECIPES[name], name, "exec"), found)
    return found
