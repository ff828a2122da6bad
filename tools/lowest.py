"""Print constraints that pin each dependency of pyproject.toml to its lowest declared version.

All extras but `rivals` are included; what constraints.txt already pins, such as torch, is not.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def lowest(requirements: list[str], pinned: set[str]) -> list[str]:
    """`name==floor` for each `name>=floor` that is not pinned; others have no floor."""
    floors = [requirement.split(">=") for requirement in requirements if ">=" in requirement]
    return [f"{name}=={floor}" for name, floor in floors if name not in pinned]


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tried = [requirements for name, requirements in extras.items() if name != "rivals"]
    requirements = sum(tried, project["dependencies"])
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    print("\n".join(lowest(requirements, pinned)))


if __name__ == "__main__":
    main()
