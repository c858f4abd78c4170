"""The version, which stands in several files, and the entry of CHANGELOG.md that describes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from deploy.release.running import ROOT, Refused

VERSION = r"\d+\.\d+\.\d+(?:rc\d+)?"
CHANGELOG = "CHANGELOG.md"


@dataclass(frozen=True, slots=True)
class Place:
    """A file that has the version, in a line that `before` and `after` frame."""

    path: str
    before: str
    after: str
    semantic: bool = False  # as Helm writes a candidate: 1.2.0-rc.1 for 1.2.0rc1

    def written(self, version: str) -> str:
        return re.sub(r"rc(\d+)$", r"-rc.\1", version) if self.semantic else version

    def pattern(self) -> re.Pattern[str]:
        return re.compile(f"^({re.escape(self.before)})(.*)({re.escape(self.after)})$", re.M)


CHART = Place("deploy/helm/penstock/Chart.yaml", "version: ", "", semantic=True)
PLACES = (
    Place("shared/penstock/version.py", '__version__ = "', '"'),
    Place("pyproject.toml", 'version = "', '"'),
    Place("deploy/docker/Dockerfile", "ARG VERSION=", ""),
    CHART,
    Place("deploy/helm/penstock/Chart.yaml", 'appVersion: "', '"'),
)
"""The first one counts."""


def current(root: Path = ROOT) -> str:
    """The version of the tree."""
    return _read(root, PLACES[0])


def disagreements(root: Path = ROOT) -> list[str]:
    """A sentence for each file that has another version than the first place, or none."""
    version = current(root)
    said = []
    for place in PLACES[1:]:
        found = _read(root, place)
        if found != place.written(version):
            said.append(f"{place.path} has {place.before}{found}{place.after}, not {version}")
    if version not in (entry for entry, _ in entries(root)):
        said.append(f"{CHANGELOG} has no entry for {version}")
    return said


def entries(root: Path = ROOT) -> list[tuple[str, str]]:
    """Versions in CHANGELOG.md, newest first, with dates; `unreleased` where there is none."""
    text = (root / CHANGELOG).read_text(encoding="utf-8")
    return re.findall(rf"^## \[({VERSION})\] - (\d{{4}}-\d\d-\d\d|unreleased)$", text, re.M)


def tag(version: str) -> str:
    """The git tag of a version."""
    return f"v{version}"


def set_version(version: str, root: Path = ROOT) -> None:
    """Writes the version into every place. Raises Refused for what isn't one, and where a place has
    no line for it; nothing is written then."""
    if not re.fullmatch(VERSION, version):
        raise Refused(f"{version!r} is no version: 1.2.3, or 1.2.3rc1 for a candidate")
    for place in PLACES:
        _read(root, place)
    for place in PLACES:
        path = root / place.path
        text = path.read_text(encoding="utf-8")
        changed = place.pattern().sub(rf"\g<1>{place.written(version)}\g<3>", text, count=1)
        path.write_text(changed, encoding="utf-8")


def _read(root: Path, place: Place) -> str:
    found = place.pattern().search((root / place.path).read_text(encoding="utf-8"))
    if found is None:
        raise Refused(f"{place.path} has no line {place.before}…{place.after}")
    return found[2]
