"""Processes that tests start."""

import subprocess


def ended(child: subprocess.Popen, seconds: float = 60) -> tuple[str, str]:
    """What it has said, when it ends; a process that does not end in time is not left behind."""
    try:
        return child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise
