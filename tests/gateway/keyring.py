"""API keys for tests: a file of them, and the headers that bring one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

ALICE, BOB, OTHER = "sk-alice", "sk-bob", "sk-other"
ADMIN, UNKNOWN = "sk-admin", "sk-unknown"


def key(secret: str, **fields: Any) -> dict[str, Any]:
    """An entry of the file."""
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return {"name": secret.removeprefix("sk-"), "sha256": digest, **fields}


def write(file: Path, *entries: dict[str, Any]) -> str:
    """The file, made anew so that whoever watches it sees another one."""
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(entries))
    new.chmod(0o600)
    new.replace(file)
    return str(file)


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}
