"""What the library is built of, so that one can tell whether it was. setup.py runs this file by
itself: standard library only."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest(folder: Path) -> str:
    """Digest of the names and contents of the C++ files there, hexadecimal."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".h", ".cpp"):
            total.update(f"{path.name} {path.stat().st_size}\n".encode())
            total.update(path.read_bytes())
    return total.hexdigest()[:16]
