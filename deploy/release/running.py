"""Commands that a release runs, and the error that ends one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Refused(Exception):
    """Why there is no release, in words for whoever makes it."""


def run(
    command: Sequence[str | Path],
    *,
    folder: Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Returns what it said. Raises Refused with its last lines if it fails or isn't there."""
    words = [str(each) for each in command]
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise Refused(f"there is no {words[0]} on this machine") from None
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-20:])
        raise Refused(f"{' '.join(words)} ended with {done.returncode}\n{last}")
    return done.stdout
