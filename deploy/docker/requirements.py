"""Prints what an image installs: Penstock's own dependencies and those of the extras named.

python requirements.py gateway otel

The images install these before the source is copied, so that a change of the source leaves that
layer as it is.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Reads pyproject.toml of the working folder. Raises KeyError for an extra that isn't there."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = list(project["dependencies"])
    for name in sys.argv[1:]:
        wanted += extras[name]
    sys.stdout.write("\n".join(wanted) + "\n")


if __name__ == "__main__":
    main()
