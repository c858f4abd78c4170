"""Adapters as workers find them: copies whose contents never change.

What a user names may be changed at any time, and a request goes on with the adapter that it began
with, also when a worker has to load it again.  So a copy's folder is named by the digest of what is
in it: CACHE/adapters/DIGEST.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import msgspec

from penstock.adapters import UnfitAdapter, read_adapter
from penstock.errors import InvalidRequest, StartupError, UnsupportedModel
from penstock.formats.small_file import open_regular
from penstock.prepare.folder import TEMPORARY, default_cache_dir, locked, remove_stale
from penstock.protocol.common import AdapterFile

FOLDER = "adapters"
FILES = ("adapter_config.json", "adapter_model.safetensors")
"""Of a folder in PEFT's format, those that say what the adapter is."""

MAX_ADAPTER_BYTES = 8 << 30
"""Of each file."""

MOST_COPIES = 1024
"""Copies that are kept; the ones that were used least recently go."""


class PreparedAdapter(msgspec.Struct, frozen=True):
    """An adapter that has been read and found sound, and its copy."""

    file: AdapterFile
    rank: int
    """The highest of its factors'."""
    parent: str
    """The model that its files say it was made for; empty if they don't."""


def prepare_adapter(
    source: str | os.PathLike[str],
    *,
    max_rank: int,
    cache_dir: str | os.PathLike[str] | None = None,
    within: Path | None = None,
    shown: str | None = None,
) -> PreparedAdapter:
    """Copies an adapter, and reads the copy.

    source: a folder in PEFT's format, or a .gguf file.  max_rank: the highest that is served.
    within: the folder, without links in its path, below which all of its files must lie.
    shown: what messages call it; default: as `source`.

    Raises InvalidRequest for an adapter that can't be served, and StartupError where the copy can't
    be written. Messages name no other path.
    """
    given, path = shown or str(source), Path(source).expanduser()
    parent = (default_cache_dir() if cache_dir is None else Path(cache_dir)).absolute() / FOLDER
    try:
        files = _files(path, within)
    except (OSError, ValueError):
        raise InvalidRequest(
            f"no adapter is at {given[:200]}: a folder with {' and '.join(FILES)}, or a .gguf file,"
            " is needed",
            param="lora_path",
        ) from None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        remove_stale(parent)
        making = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=parent))
    except OSError as error:
        raise StartupError(f"the adapter can't be copied: {error.strerror}") from None
    try:
        return _copied(given, files, making, parent, max_rank)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _files(path: Path, within: Path | None) -> list[Path]:
    """Those that are copied. Raises OSError where there are none, or not where they may be."""
    files = [path / name for name in FILES] if path.is_dir() else [path]
    found = [file.resolve(strict=True) for file in files]
    if within is not None and not all(file.is_relative_to(within) for file in found):
        raise PermissionError("the adapter lies elsewhere")
    # The names that they are called by: those of a hub's cache are links to files named by digest.
    if any(file.stat().st_size > MAX_ADAPTER_BYTES for file in found):
        raise InvalidRequest(
            f"the adapter is larger than {MAX_ADAPTER_BYTES} bytes", param="lora_path"
        )
    if not path.is_dir() and path.suffix != ".gguf":
        raise FileNotFoundError("neither a folder nor a .gguf file")
    return files


def _copied(
    given: str, files: list[Path], making: Path, parent: Path, max_rank: int
) -> PreparedAdapter:
    single = "" if len(files) > 1 else "adapter.gguf"
    try:
        for file in files:
            target = making / (single or file.name)
            with open_regular(file.resolve()) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
    except UnsupportedModel:
        raise InvalidRequest(
            f"{given[:200]}: {file.name} is no regular file", param="lora_path"
        ) from None
    except OSError as error:
        raise StartupError(f"the adapter can't be copied: {error.strerror}") from None
    try:
        digest, adapter = read_adapter(making / single if single else making)
    except UnfitAdapter as error:
        raise InvalidRequest(
            f"{given[:200]}: {error}", param="lora_path", code="invalid_adapter"
        ) from None
    if adapter.rank > max_rank:
        raise InvalidRequest(
            f"the adapter has rank {adapter.rank}; at most {max_rank} is served (--max-lora-rank)",
            param="lora_path",
            code="invalid_adapter",
        )
    folder = parent / digest
    with locked(parent):
        if folder.is_dir():
            os.utime(folder)
        else:
            making.chmod(0o755)
            making.rename(folder)
            _drop_oldest(parent)
    path = folder / single if single else folder
    return PreparedAdapter(AdapterFile(digest, str(path)), adapter.rank, adapter.base)


def _drop_oldest(parent: Path) -> None:
    copies = [each for each in parent.iterdir() if not each.name.startswith(".")]
    if len(copies) <= MOST_COPIES:
        return
    copies.sort(key=lambda each: each.stat().st_mtime)
    for each in copies[: len(copies) - MOST_COPIES]:
        shutil.rmtree(each, ignore_errors=True)
