"""`.env` beside the compose file: what every later `docker compose up` finds again.

Without it a later `up` that isn't told the model serves the default one, and one that isn't told
the overrides starts gateways that ask for no keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from deploy.compose.docker import ROOT

FILE = ROOT / ".env"
_USED = re.compile(r"\$\{(\w+)")
_LINE = re.compile(r"^\s*(?:export\s+)?(\w+)=(.*?)\s*$")
_PLAIN = re.compile(r"[\w@%+=:,./~-]*")


def read(file: Path | None = None) -> dict[str, str]:
    """The variables of .env or another such file; none where there is no file."""
    found = {}
    for line in _lines(file or FILE):
        match = _LINE.match(line)
        if match is not None:
            value = match[2]
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            found[match[1]] = value[1:-1] if quoted else value
    return found


def said() -> dict[str, str]:
    """The variables of the compose files that this process was given, but for credentials, which
    belong to nobody's file."""
    files = [ROOT / "docker-compose.yml", *sorted(ROOT.glob("deploy/compose.*.yml"))]
    found = [name for file in files for name in _USED.findall(file.read_text(encoding="utf-8"))]
    names = [name for name in dict.fromkeys(found) if not name.startswith("AWS_")]
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def remember(values: Mapping[str, str], file: Path | None = None) -> list[str]:
    """Writes what the file doesn't say yet, in place of what it said; all other lines stay. Returns
    the new lines."""
    file = file or FILE
    known = read(file)
    new = {name: value for name, value in values.items() if known.get(name) != value}
    if not new:
        return []
    kept = [line for line in _lines(file) if (m := _LINE.match(line)) is None or m[1] not in new]
    added = [f"{name}={_written(value)}" for name, value in new.items()]
    beside = file.with_name(f"{file.name}.new")
    beside.write_text("\n".join([*kept, *added]) + "\n", encoding="utf-8")
    beside.replace(file)
    return added


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def _written(value: str) -> str:
    """In quotes where compose would else read something in it. Raises ValueError for a line's end
    or a quote, which no variable here has."""
    if _PLAIN.fullmatch(value):
        return value
    if "'" in value or "\n" in value:
        raise ValueError(f"{value!r} can't be written into .env")
    return f"'{value}'"
