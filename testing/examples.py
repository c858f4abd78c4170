"""Installs the documentation's examples of plug-ins, as far as importlib.metadata can tell."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples"


def install(name: str, site: Path) -> Path:
    """Copies an example's modules to `site`, with what an installer writes beside them of its
    pyproject.toml. Returns `site`, which has to be on the module path."""
    project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())
    for module in project["tool"]["setuptools"]["py-modules"]:
        shutil.copy(EXAMPLES / name / f"{module}.py", site)
    about = project["project"]
    write_package(site, about["name"], about["version"], about["entry-points"])
    return site


def write_package(site: Path, name: str, version: str, points: dict[str, dict[str, str]]) -> None:
    """What says that a package is installed. points: by group, name and object."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, brought in points.items():
        lines += [f"[{group}]", *(f"{point} = {value}" for point, value in brought.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
