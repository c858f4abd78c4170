"""What comes home from a visit, and what the next one carries: one archive of results and logs, and
one of the kernels that Triton has compiled.

Standard library only, as start.py.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

RESULTS, CACHE, TEXT = "results.tar.gz", "triton-cache.tar.gz", "results.md"
"""All that a call leaves."""
MOST_BYTES = 15 << 20
"""Most bytes of an archive; a file of 16 MiB may come back from a lent machine."""
LOG_BYTES = 1 << 20
"""Bytes kept of each log: its beginning and its end."""
UNREAD = {".source", ".ttir", ".ttgir", ".llir", ".ptx"}
"""Stages of a compiled kernel that nobody reads again: Triton takes what is there of an entry, and
launches its machine code."""
GROUP = "__grp__"
"""Prefix of the file of an entry that lists the others, by their whole paths."""


def pack_results(results: Path, home: Path) -> None:
    """`results` as home/RESULTS, and its report beside it.  Whole or not at all."""
    home.mkdir(parents=True, exist_ok=True)
    making = home / f".{RESULTS}"
    with tarfile.open(making, "w:gz") as archive:
        for path in sorted(each for each in results.rglob("*") if each.is_file()):
            if path.suffix == ".log":
                cut(path)
            archive.add(path, path.relative_to(results))
    os.replace(making, home / RESULTS)
    if (results / TEXT).is_file():
        written = home / f".{TEXT}"
        written.write_bytes((results / TEXT).read_bytes())
        os.replace(written, home / TEXT)


def cut(log: Path) -> None:
    """Keeps the beginning and the end of a log that is too large."""
    if log.stat().st_size <= LOG_BYTES:
        return
    with log.open("rb") as file:
        first = file.read(LOG_BYTES // 2)
        file.seek(-LOG_BYTES // 2, os.SEEK_END)
        last = file.read()
    log.write_bytes(first + b"\n[... what stood between is left out ...]\n" + last)


def entries(cache: Path) -> list[Path]:
    """Folders of Triton's cache: a compiled kernel or a compiled launcher each."""
    if not cache.is_dir():
        return []
    return sorted(each for each in cache.iterdir() if each.is_dir())


def pack_cache(cache: Path, home: Path, most: int = MOST_BYTES) -> int:
    """`cache` as home/CACHE, the small entries first while `most` bytes suffice. Returns how many
    entries had no room."""
    waiting = sorted((sum(size for _, size in files), files) for files in map(kept, entries(cache)))
    home.mkdir(parents=True, exist_ok=True)
    making, left_out = home / f".{CACHE}", 0
    with making.open("wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for size, files in waiting:
            # What is still in the compressor's hands is less than 1 MiB.
            if file.tell() + size + (64 << 10) > most:
                left_out += 1
                continue
            for path, _ in files:
                with suppress(FileNotFoundError):  # A compiler that still runs moves its files.
                    archive.add(path, path.relative_to(cache))
    os.replace(making, home / CACHE)
    return left_out


def kept(entry: Path) -> list[tuple[Path, int]]:
    """An entry's files that a later process reads, and their sizes."""
    files = (each for each in sorted(entry.iterdir()) if each.suffix not in UNREAD)
    return [(each, each.stat().st_size) for each in files if each.is_file() and each.name != "lock"]


def unpack_cache(archive: Path, cache: Path) -> int:
    """Returns the number of entries that are there then."""
    cache.mkdir(parents=True, exist_ok=True)
    unpack(archive, cache)
    moved(entries(cache))
    return len(entries(cache))


def moved(folders: Iterable[Path]) -> None:
    """Says in each entry where its files lie now: Triton looks for them by their whole paths."""
    for folder in folders:
        for group in folder.glob(f"{GROUP}*"):
            listed = json.loads(group.read_text())
            paths = {name: str(folder / name) for name in listed["child_paths"]}
            group.write_text(json.dumps({**listed, "child_paths": paths}))


def unpack(archive: Path, folder: Path) -> None:
    """Regular files below `folder` only. Raises tarfile.TarError for anything else."""
    with tarfile.open(archive, "r:gz") as file:
        file.extractall(folder, filter="data")


if __name__ == "__main__":
    # CACHE FOLDER: a cache that was filled without a GPU, for a first call to carry.
    sys.exit(pack_cache(Path(sys.argv[1]), Path(sys.argv[2])))
