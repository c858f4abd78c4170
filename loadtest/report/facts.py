"""What a result file says about its own making."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from penstock.process.machine import describe_machine

ROOT = Path(__file__).resolve().parents[2]


def run_facts(program: str, arguments: list[str], started: datetime.datetime) -> dict[str, Any]:
    """schema, command, times, commit, machine. Call it when the measurement has ended."""
    return {
        "schema": 1,
        "command": " ".join([f"python {program}", *map(_named, arguments)]),
        "started": started.isoformat(timespec="seconds"),
        "ended": now().isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": describe_machine(),
    }


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def without_folders(argument: str) -> str:
    """Returns the argument without the folders of one machine."""
    peers = Path(os.environ.get("PEERS_DIR", "~/.cache/penstock-peers")).expanduser()
    places = {str(peers): "$PEERS_DIR", str(ROOT): ".", str(Path.home()): "~"}
    for place, name in places.items():
        # Not of a neighbour, whose name begins alike.
        argument = re.sub(rf"{re.escape(place)}(?![\w-]|\.\w)", name, argument)
    return argument


def _named(argument: str) -> str:
    """An argument of a command: a file that lies elsewhere by its name alone."""
    known = without_folders(argument)
    return Path(known).name if known.startswith("/") else known


def machine_line(facts: dict[str, Any]) -> str:
    """`command` on date, processor, cores, memory, Python."""
    machine = facts["machine"]
    return (
        f"`{facts['command']}` on {facts['started'][:10]}, {machine['cpu']}, "
        f"{machine['cores']:g} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"Python {machine['python']}"
    )


def commit() -> str:
    """The commit of the working tree, as git describes it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
