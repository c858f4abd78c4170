"""A plug-in that keeps KV blocks as slowly as it is told to, so that a test can come in between."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from penstock_worker.stores.interface import StoredLayout
from testing.examples import write_package


class SlowStore:
    """`--kv-store slow --kv-store-address SECONDS:FOLDER`. A file for each block, and a line in
    FOLDER/reads for each one that is about to be read, which takes so many seconds."""

    num_damaged = 0

    def __init__(self, layout: StoredLayout, address: str) -> None:
        seconds, folder = address.split(":", 1)
        self.payload_bytes = layout.payload_bytes
        self._seconds, self._root = float(seconds), Path(folder)
        self._folder = self._root / layout.name
        self._folder.mkdir(parents=True, exist_ok=True)

    def has(self, key: bytes) -> bool:
        return self._path(key).exists()

    def leading(self, keys: Sequence[bytes]) -> int:
        return next((at for at, key in enumerate(keys) if not self.has(key)), len(keys))

    def read(self, key: bytes) -> bytes | None:
        with (self._root / "reads").open("a") as file:
            file.write(f"{key.hex()}\n")
        time.sleep(self._seconds)
        return self._path(key).read_bytes() if self.has(key) else None

    def write(self, key: bytes, payload: bytes) -> bool:
        unfinished = self._path(key).with_suffix(".new")
        unfinished.write_bytes(payload)
        unfinished.rename(self._path(key))
        return True

    def close(self) -> None:
        """Nothing is open."""

    def _path(self, key: bytes) -> Path:
        return self._folder / key.hex()


def install_slow_store(site: Path) -> None:
    """Installs the store as a package at `site`, which has to be on the module path."""
    points = {"penstock.kv_stores": {"slow": "testing.slow_store:SlowStore"}}
    write_package(site, "slow-store", "1.0", points)


def reads(folder: Path) -> int:
    """How many blocks have been read, or are being."""
    path = folder / "reads"
    return len(path.read_text().splitlines()) if path.exists() else 0
