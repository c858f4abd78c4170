"""`.env` beside the compose file: what every later `docker compose up` finds again.

Without it a later `up` that isn't told the model serves the default one, and one that isn't told
the overrides starts gateways that ask for no keys.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from deploy.compose.docker import ROOT

FILE = ROOT / ".env"
_USED = re.compile(r"\$\{(\w+)")
_LINE = re.compile(r"^\s*(?:export\s+)?(\w+)\s*=\s*(.*?)\s*$")
_QUOTED = re.compile(r"(['\"])(.*?)\1(?:\s+#.*)?")
_COMMENT = re.compile(r"\s#.*")
_PLAIN = re.compile(r"[\w@%+=:,./~-]*")
_CREDENTIAL = re.compile(r"AWS_\w+|\w+_TOKEN")
_USER = re.compile(r"://[^/\s]*@")
"""In an address: a user, a password or a token."""


def read(file: Path | None = None) -> dict[str, str]:
    """The variables of .env or another such file; none where there is no file."""
    found = {}
    for line in _lines(file or FILE):
        match = _LINE.match(line)
        if match is not None:
            quoted = _QUOTED.fullmatch(match[2])
            found[match[1]] = quoted[2] if quoted else _COMMENT.sub("", match[2]).rstrip()
    return found


def given_variables() -> tuple[dict[str, str], list[str]]:
    """The variables of the compose files that this process was given; and the names of those that
    hold a credential, which belongs in nobody's file."""
    given: dict[str, str] = {}
    secret = []
    for name in dict.fromkeys(_names()):
        value = os.environ.get(name)
        if value and (_CREDENTIAL.fullmatch(name) or _USER.search(value)):
            secret.append(name)
        elif value:
            given[name] = value
    return given, secret


def _names() -> Iterator[str]:
    for file in (ROOT / "docker-compose.yml", *sorted(ROOT.glob("deploy/compose.*.yml"))):
        text = file.read_text(encoding="utf-8")
        yield from _USED.findall(text)
        yield from _handed_on(yaml.safe_load(text))


def _handed_on(tree: Any) -> Iterator[str]:
    """The variables without a value, which compose takes from its own environment."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if key in ("environment", "args") and isinstance(value, dict):
            yield from (name for name, each in value.items() if each is None)
        else:
            yield from _handed_on(value)


def remember(values: Mapping[str, str], file: Path | None = None) -> list[str]:
    """Writes what the file doesn't say yet, in place of what it said; all other lines stay, and so
    do owner and mode. A new file is for its owner alone. Returns the new lines."""
    file = file or FILE
    known = read(file)
    new = {name: value for name, value in values.items() if known.get(name) != value}
    if not new:
        return []
    kept = [line for line in _lines(file) if (m := _LINE.match(line)) is None or m[1] not in new]
    added = [f"{name}={_written(value)}" for name, value in new.items()]
    _replace(file.resolve(), "\n".join([*kept, *added]) + "\n")
    return added


def _replace(file: Path, text: str) -> None:
    """At once: whoever reads the file finds the old text or the new one."""
    descriptor, beside = tempfile.mkstemp(dir=file.parent, prefix=f"{file.name}.")  # Mode 0600.
    try:
        with open(descriptor, "w", encoding="utf-8") as new:
            if file.exists():
                old = file.stat()
                with contextlib.suppress(PermissionError):
                    os.chown(beside, old.st_uid, old.st_gid)
                os.chmod(beside, old.st_mode & 0o777)
            new.write(text)
        os.replace(beside, file)
    except BaseException:
        Path(beside).unlink()
        raise


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
