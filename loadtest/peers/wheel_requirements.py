"""The requirements of a wheel, extras aside, but for those named: one a line, for pip."""

from __future__ import annotations

import argparse
import email
import re
import zipfile
from pathlib import Path


def requirements(wheel: Path, without: set[str]) -> list[str]:
    """Raises LookupError where the file has no metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        if not names:
            raise LookupError(f"{wheel} is no wheel: it holds no METADATA")
        metadata = email.message_from_bytes(archive.read(names[0]))
    needed = []
    for line in metadata.get_all("Requires-Dist", []):
        name = re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0]
        if "extra ==" not in line and name.lower() not in without:
            needed.append(line)
    return needed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--without", nargs="*", default=[])
    flags = parser.parse_args()
    print("\n".join(requirements(flags.wheel, {name.lower() for name in flags.without})))
