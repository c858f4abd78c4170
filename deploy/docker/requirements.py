"""Prints what an image installs, from lock.txt: Penstock's own dependencies, those of the extras
named, and what these need, each with the hashes of its files.

python requirements.py gateway otel
python requirements.py =torch           only a package, and what it needs

The images install these before the source is copied, so that a change of the source leaves that
layer as it is. torch has been installed by then, in a build that brings CUDA's libraries or none.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

_BEGIN = re.compile(r"([A-Za-z0-9._-]+)==")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_VIA = re.compile(r"    # via (.*)")
WITH_TORCH = re.compile(r"torch|nvidia-.*|cuda-.*|triton")
"""What torch itself brings, where it is wanted."""


@dataclass
class Locked:
    """lines: of the file.  via: names of what needs it."""

    lines: list[str]
    via: set[str]


def read(text: str) -> dict[str, Locked]:
    """The packages of a lock file, by name."""
    found: dict[str, Locked] = {}
    current: Locked | None = None
    for line in text.splitlines():
        begun = _BEGIN.match(line)
        if begun is not None:
            current = found[normal(begun[1])] = Locked([line], set())
        elif current is not None and (via := _VIA.match(line)) is not None:
            current.via = {normal(_NAME.findall(each)[0]) for each in via[1].split(", ")}
        elif current is not None and line.strip():
            current.lines.append(line)
    return found


def normal(name: str) -> str:
    """A package's name as indexes have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def checked(locked: dict[str, Locked], name: str, why: str) -> str:
    """Returns the name.  why: for the error. Raises LookupError if it isn't locked."""
    if name not in locked:
        raise LookupError(f"lock.txt has no {name} ({why}): its head says how it is made anew")
    return name


def closure(locked: dict[str, Locked], roots: set[str]) -> set[str]:
    """Returns the packages and all that they need. Raises LookupError for one that isn't locked."""
    found = {checked(locked, name, "it was named") for name in roots}
    while True:
        more = {name for name, each in locked.items() if each.via & found} - found
        if not more:
            return found
        found |= more


def wanted(locked: dict[str, Locked], project: dict[str, object], names: list[str]) -> set[str]:
    """names: extras, or packages behind a `=`. What isn't for every machine is among them: its line
    has the marker by which pip skips it. Raises LookupError for what isn't there."""
    packages = {normal(name[1:]) for name in names if name.startswith("=")}
    if packages:
        return closure(locked, packages)
    extras: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment]
    own: list[str] = project["dependencies"]  # type: ignore[assignment]
    roots = _roots(locked, own, "one of the project's own dependencies")
    for name in names:
        if name not in extras:
            raise LookupError(f"there is no extra {name}: {', '.join(sorted(extras))}")
        roots |= _roots(locked, extras[name], f"the extra {name} needs it")
    found = closure(locked, roots)
    return {name for name in found if not WITH_TORCH.fullmatch(name) or name in roots - {"torch"}}


def _roots(locked: dict[str, Locked], requirements: list[str], why: str) -> set[str]:
    return {checked(locked, normal(_NAME.findall(each)[0]), why) for each in requirements}


def main() -> None:
    """Reads lock.txt of the working folder, and for extras pyproject.toml."""
    locked, names = read(Path("lock.txt").read_text(encoding="utf-8")), sys.argv[1:]
    project: dict[str, object] = {}
    if not all(name.startswith("=") for name in names):
        project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    try:
        found = sorted(wanted(locked, project, names))
    except LookupError as error:
        sys.exit(f"requirements.py: {error}")
    for name in found:
        sys.stdout.write("\n".join(locked[name].lines) + "\n")


if __name__ == "__main__":
    main()
