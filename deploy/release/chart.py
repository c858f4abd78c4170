"""The Helm chart as the archive that `helm package` makes, which needs no Helm to be made."""

from __future__ import annotations

import gzip
import io
import tarfile
from fnmatch import fnmatchcase
from pathlib import Path

from deploy.release.running import ROOT, Refused, run

CHART = ROOT / "deploy" / "helm" / "penstock"
IGNORE = ".helmignore"


def package(version: str, folder: Path, chart: Path = CHART) -> Path:
    """Writes penstock-VERSION.tgz; version as Chart.yaml has it. The same tree gives the same
    bytes. Left out is what git or .helmignore ignores. Raises Refused for a pattern of .helmignore
    that isn't read here."""
    made = folder / f"{chart.name}-{version}.tgz"
    folder.mkdir(parents=True, exist_ok=True)
    patterns = _patterns(chart / IGNORE)
    with (
        made.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in _files(chart):
            if _ignored(path, patterns):
                continue
            content = (chart / path).read_bytes()
            entry = tarfile.TarInfo(f"{chart.name}/{path}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return made


def _files(chart: Path) -> list[Path]:
    """Relative to the chart, without those that git ignores; all of them where git knows none, as
    in a copy of the tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        known = run(command, folder=chart).split("\0")
    except Refused:
        known = []
    names = {Path(name) for name in known if name}
    names = names or {path.relative_to(chart) for path in chart.rglob("*")}
    return sorted(name for name in names if (chart / name).is_file())


def _patterns(file: Path) -> list[str]:
    if not file.exists():
        return [IGNORE]
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    patterns = [line for line in lines if line and not line.startswith("#")]
    for pattern in patterns:
        if pattern.startswith("!") or "/" in pattern[:-1]:
            raise Refused(f"{file}: {pattern!r}: only patterns of one name are read, as *.orig")
    return [IGNORE, *patterns]


def _ignored(path: Path, patterns: list[str]) -> bool:
    """A pattern is of a file or a folder; with a slash at its end, of a folder."""
    return any(
        fnmatchcase(part, pattern.rstrip("/"))
        for pattern in patterns
        for part in (path.parent.parts if pattern.endswith("/") else path.parts)
    )
