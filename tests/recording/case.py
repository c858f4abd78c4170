"""One request of a recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GENERATE = "generate"
"""The server with the default model."""
POOL = "pool"
"""The server with the packaged embedding model."""


@dataclass(frozen=True, slots=True)
class Case:
    """One request. Its name is unique."""

    name: str
    server: str  # GENERATE or POOL
    path: str
    body: Any  # sent as JSON; bytes are sent as they are; None: a GET
    computed: bool = True  # whether numbers of the model are in the answer
