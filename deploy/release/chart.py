"""The Helm chart as the archive that `helm package` makes, which needs no Helm to be made."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

from deploy.release.running import ROOT

CHART = ROOT / "deploy" / "helm" / "penstock"
LEFT_OUT = (".helmignore",)


def package(version: str, folder: Path, chart: Path = CHART) -> Path:
    """Writes penstock-VERSION.tgz; version as Chart.yaml has it. The same tree gives the same
    bytes."""
    made = folder / f"{chart.name}-{version}.tgz"
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(path for path in chart.rglob("*") if path.is_file())
    with (
        made.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in files:
            if path.name in LEFT_OUT:
                continue
            content = path.read_bytes()
            entry = tarfile.TarInfo(f"{chart.name}/{path.relative_to(chart)}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return made
