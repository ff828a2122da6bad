"""Start-up of the command line, beside an interpreter that does nothing.

python benchmarks/startup.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from pairs import paired_ratio

COMMANDS = {
    "candidly --help": ["-m", "candidly", "--help"],
    "candidly methods": ["-m", "candidly", "methods"],
    "import candidly": ["-c", "import candidly"],
}


def runner(arguments: list[str]) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def measure(pairs: int = 9) -> dict[str, dict[str, float]]:
    return {
        name: paired_ratio(runner(command), runner(["-c", ""]), pairs)
        for name, command in COMMANDS.items()
    }


if __name__ == "__main__":
    for name, found in measure().items():
        print(f"{name:20} {found['seconds']:.3f} s, {json.dumps(found)}")
