"""What `penstock doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """ok: nothing to fix.  text: what was found, or what is missing and how to get it.
    level: note where it could be better, and a system runs all the same."""

    name: str
    ok: bool
    text: str
    level: Literal["ok", "note", "missing"] = "ok"
