"""Adapters as workers find them: copies whose contents never change.

What a user names may be changed at any time, and a request goes on with the adapter that it began
with, also when a worker has to load it again.  So a copy's folder is named by the digest of what is
in it: CACHE/adapters/DIGEST.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import msgspec

from penstock.adapters import UnfitAdapter, read_adapter
from penstock.adapters.peft import CONFIG, MAX_CONFIG_BYTES, WEIGHTS
from penstock.errors import InvalidRequest, ModelNotFound, StartupError, UnsupportedModel
from penstock.formats.small_file import named_path, open_regular
from penstock.hub.name import parse
from penstock.prepare.folder import TEMPORARY, default_cache_dir, locked, remove_stale
from penstock.process import logs
from penstock.protocol.common import AdapterFile

log = logs.get(__name__)

FOLDER = "adapters"
FILES = (CONFIG, WEIGHTS)
"""Files that say what the adapter is, in a folder in PEFT's format."""

SINGLE = "adapter.gguf"
"""What a copy of a single file is called."""

MAX_ADAPTER_BYTES = 8 << 30
"""Most bytes of each file but adapter_config.json."""

MOST_COPIES = 1024
"""Copies that are kept, besides those that somebody asks to keep; the ones that were named least
recently go."""

MOST_COPIED_BYTES = 64 << 30
"""Bytes of all copies together that are kept; others go as beyond MOST_COPIES."""


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
    keep: Collection[str] = (),
) -> PreparedAdapter:
    """Copies an adapter, and reads the copy.

    source: a folder in PEFT's format, or a .gguf file; or, without `within`, the name of one on
    the hub (owner/name, owner/name:FILE, owner/name:FOLDER, owner/name@REVISION), which is
    downloaded if it isn't in the hub's cache.  max_rank: the highest that is served.
    within: the folder, without links in its path, below which all of its files must lie.
    shown: what messages call it; default: as `source`.  keep: digests of other adapters whose
    copies stay.

    Raises InvalidRequest for an adapter that can't be served, and StartupError where the copy can't
    be written. Messages name no other path.
    """
    given = str(source) if shown is None else shown
    if within is None:
        path = find_adapter(source)
    else:
        path = named_path(os.fspath(source)) or Path(source)
    parent = (default_cache_dir() if cache_dir is None else Path(cache_dir)).absolute() / FOLDER
    with ExitStack() as opened:
        try:
            files = _opened(path, within, opened)
        except UnsupportedModel:
            raise InvalidRequest(
                f"{given[:200]}: it has a file that is not a regular file", param="lora_path"
            ) from None
        except (OSError, ValueError, RuntimeError):  # The last: links that lead to themselves.
            raise InvalidRequest(
                f"no adapter is at {given[:200]}: a folder with {' and '.join(FILES)}, or a .gguf"
                " file, is needed",
                param="lora_path",
            ) from None
        try:
            parent.mkdir(parents=True, exist_ok=True)
            remove_stale(parent)
            making = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=parent))
        except OSError as error:
            raise _uncopied(parent, error) from None
        try:
            for name, file in files.items():
                _copy(file, making / name)
            return _placed(given, making, parent, max_rank, keep)
        except OSError as error:
            raise _uncopied(parent, error) from None
        finally:
            shutil.rmtree(making, ignore_errors=True)


def _uncopied(parent: Path, error: OSError) -> StartupError:
    """The folder is the operator's affair: a client doesn't learn of it."""
    log.error("an adapter can't be copied", folder=str(parent), reason=error.strerror)
    return StartupError(f"the adapter can't be copied: {error.strerror}")


def find_adapter(source: str | os.PathLike[str]) -> Path:
    """Returns the path of an adapter that is named by its path, or by its name on the hub: where
    no such file is, it is one. Raises InvalidRequest if the hub's can't be had."""
    path = named_path(os.fspath(source))
    name = parse(os.fspath(source)) if path is None else None
    if name is None:
        return path or Path(source)
    from penstock.hub.fetch import fetch_adapter  # Here: it needs an HTTP client.

    try:
        return fetch_adapter(name, _report, most=MAX_ADAPTER_BYTES)
    except (ModelNotFound, UnsupportedModel) as error:
        raise InvalidRequest(str(error), param="lora_path", code="invalid_adapter") from None


def _report(words: str) -> None:
    log.info("adapter", said=words)


def _opened(path: Path, within: Path | None, opened: ExitStack) -> dict[str, BinaryIO]:
    """The files that are copied, by the names of their copies. Raises OSError where there are none,
    or not where they may be, and UnsupportedModel for what is not a regular file."""
    files = {name: path / name for name in FILES} if path.is_dir() else {SINGLE: path}
    # By the name, since those of a hub's cache are links to files without endings.
    if SINGLE in files and path.suffix != ".gguf":
        raise FileNotFoundError("neither a folder nor a .gguf file")
    found = {name: file.resolve(strict=True) for name, file in files.items()}
    if within is not None and not all(file.is_relative_to(within) for file in found.values()):
        raise PermissionError("the adapter lies elsewhere")
    handles: dict[str, BinaryIO] = {}
    for name, file in found.items():
        handle = handles[name] = opened.enter_context(open_regular(file))
        # What was opened, and not what the name may lead to by now.
        real = Path(os.readlink(f"/proc/self/fd/{handle.fileno()}"))
        if within is not None and not real.is_relative_to(within):
            raise PermissionError("the adapter lies elsewhere")
    return handles


def _copy(source: BinaryIO, target: Path) -> None:
    """No more than may be, however long the file grows meanwhile. Raises InvalidRequest."""
    most = MAX_CONFIG_BYTES if target.name == CONFIG else MAX_ADAPTER_BYTES
    size = os.fstat(source.fileno()).st_size
    with target.open("wb") as copy:
        while size <= most and (piece := source.read(1 << 20)):
            copy.write(piece)
            size = max(size, copy.tell())
    if size > most:
        raise InvalidRequest(
            f"the adapter's {target.name} is larger than {most} bytes",
            param="lora_path",
            code="invalid_adapter",
        )


def _placed(
    given: str, making: Path, parent: Path, max_rank: int, keep: Collection[str]
) -> PreparedAdapter:
    single = SINGLE if (making / SINGLE).exists() else ""
    try:
        digest, adapter = read_adapter(making / single)
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
            # Of equal contents if it is whole; a damaged one is repaired.
            for file in sorted(making.iterdir()):
                file.replace(folder / file.name)
            os.utime(folder)
        else:
            making.chmod(0o755)
            making.rename(folder)
            _drop_oldest(parent, {digest, *keep})
    return PreparedAdapter(AdapterFile(digest, str(folder / single)), adapter.rank, adapter.base)


def _drop_oldest(parent: Path, keep: Collection[str]) -> None:
    sizes = {each: _bytes_of(each) for each in parent.iterdir() if not each.name.startswith(".")}
    others = sorted((c for c in sizes if c.name not in keep), key=lambda c: c.stat().st_mtime)
    count, size, leaving = len(sizes), sum(sizes.values()), []
    for each in others:
        if count <= MOST_COPIES and size <= MOST_COPIED_BYTES:
            break
        leaving.append(each)
        count, size = count - 1, size - sizes[each]
    if leaving:
        _remove(parent, leaving)


def _bytes_of(copy: Path) -> int:
    return sum(file.stat().st_size for file in copy.iterdir())


def _remove(parent: Path, copies: Sequence[Path]) -> None:
    """Takes them away whole before their files go: half a copy would be taken for one."""
    leaving = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=parent))
    for each in copies:
        each.rename(leaving / each.name)
    shutil.rmtree(leaving, ignore_errors=True)
