"""A model brought into the hub's cache: what is missing of it, after its room on the disk was
checked, with a bar that shows how far it is."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import ModelNotFound, StartupError, UnsupportedModel
from penstock.hub.cache import MAIN, Cached, cached_at, repository_folder
from penstock.hub.connection import Hub, hub_errors
from penstock.hub.name import HubName
from penstock.hub.repository import RemoteFile, Repository, look, with_metadata
from penstock.hub.selection import Selection, select
from penstock.hub.transfer import PARTIAL, Cancelled, Transfer, mismatch

PARALLEL = 4
"""Files downloaded at once."""
SPARE_BYTES = 64 << 20
"""Left free on the disk."""

Report = Callable[[str], None]


def pull(hub: Hub, name: HubName, report: Report, *, verify: bool = False) -> Cached:
    """Downloads what isn't in the cache.

    verify: read the files that are there already, and fetch anew what has the wrong hash.  What
    comes is always checked.
    Raises ModelNotFound (no such repository, revision, file; no access; no network),
    UnsupportedModel, or StartupError (no room, can't be written, wrong hash).
    """
    repository = look(hub, name)
    selection = select(name, [file.path for file in repository.files])
    _refuse_incomplete(name, selection)
    if selection.gguf is not None and selection.default:
        report(f"{name} names no file: taking {selection.gguf.label or selection.gguf.files[0]}")
    found = cached_at(bring(hub, repository, selection.files, report, verify=verify), selection)
    if found is None:
        raise ModelNotFound(
            f"{name} lacks files of a model in the hub's format: tokenizer.json or what it can be "
            "made from, or weights that its index names"
        )
    return found


def bring(
    hub: Hub,
    repository: Repository,
    paths: Sequence[str],
    report: Report,
    *,
    verify: bool = False,
    most: int | None = None,
) -> Path:
    """Downloads those of a repository's files that aren't in the cache, and returns the snapshot
    that they are in.

    verify: as `pull` has it.  most: bytes that a file may have; None: any number.
    Raises what `pull` raises for files that can't be had, and UnsupportedModel for a larger one.
    """
    name, folder = repository.name, repository_folder(hub, repository.name.repository)
    by_path = {file.path: file for file in repository.files}
    files = with_metadata(hub, repository, [by_path[path] for path in paths])
    _refuse_larger(name, files, most)
    with hub_errors(hub, name):
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        if verify:
            _drop_wrong(folder / "blobs", files, report)
    missing = _missing(folder / "blobs", files)
    if missing:
        size = check_room(hub, folder / "blobs", missing)
        report(f"downloading {name} from {hub.endpoint}: {len(missing)} files, {gigabytes(size)}")
        _download(hub, repository, folder / "blobs", missing)
    with hub_errors(hub, name):
        return _link(folder, repository, files)


def _refuse_larger(name: HubName, files: Sequence[RemoteFile], most: int | None) -> None:
    for file in files:
        if most is not None and (file.size or 0) > most:
            raise UnsupportedModel(
                f"{file.path} of {name} has {gigabytes(file.size or 0)}; at most "
                f"{gigabytes(most)} are downloaded"
            )


def _refuse_incomplete(name: HubName, selection: Selection) -> None:
    if selection.gguf is not None and not selection.gguf.complete:
        raise ModelNotFound(
            f"{name} is a split file of which {name.repository} lacks parts; it has "
            f"{', '.join(selection.gguf.files[:8])}"
        )


def check_room(hub: Hub, blobs: Path, files: Sequence[RemoteFile]) -> int:
    """Bytes that are still to come. Raises StartupError if the disk has no room for them."""
    there = sum(_size(blobs / f"{file.etag}{PARTIAL}") for file in files)
    needed = max(0, sum(file.size or 0 for file in files) - there)
    free = shutil.disk_usage(blobs).free
    if needed + SPARE_BYTES > free:
        raise StartupError(
            f"{gigabytes(needed)} are to be downloaded, and {hub.cache} has {gigabytes(free)} "
            "free; make room (`penstock list`, `penstock rm`), or set HF_HOME to a folder elsewhere"
        )
    return needed


def gigabytes(size: float) -> str:
    """`4.92 GB`, `12.3 MB`, `4.1 kB`: decimal, as the hub shows sizes."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size / 1e3:.3g} kB"


def _missing(blobs: Path, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """One for each hash that isn't there: two paths may have the same contents."""
    by_etag = {str(file.etag): file for file in files}
    return [file for etag, file in by_etag.items() if not (blobs / etag).exists()]


def _drop_wrong(blobs: Path, files: Sequence[RemoteFile], report: Report) -> None:
    for file in files:
        blob = blobs / str(file.etag)
        if blob.exists() and (wrong := mismatch(blob, file)):
            report(f"{file.path} in the cache is damaged ({wrong}): downloading it again")
            blob.unlink()


def _download(hub: Hub, repository: Repository, blobs: Path, files: list[RemoteFile]) -> None:
    cancel = threading.Event()
    total = sum(file.size or 0 for file in files)
    with _bar(str(repository.name), total) as progress, ThreadPoolExecutor(PARALLEL) as pool:
        transfer = Transfer(hub, repository, blobs, progress, cancel)
        # The largest first: the small ones fill the time at the end.
        largest_first = sorted(files, key=lambda file: -(file.size or 0))
        running = [pool.submit(transfer.fetch, file) for file in largest_first]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            if any(one.done() and one.exception() for one in running) or not all(
                one.done() for one in running
            ):
                cancel.set()
                for one in running:
                    one.cancel()
        errors = [one.exception() for one in running if one.done() and not one.cancelled()]
    for error in errors:
        if error is not None and not isinstance(error, Cancelled):
            raise error


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Nothing but on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from tqdm import tqdm

    with tqdm(
        total=total, unit="B", unit_scale=True, desc=title, file=sys.stderr, miniters=1
    ) as bar:
        yield bar.update


def _link(folder: Path, repository: Repository, files: Sequence[RemoteFile]) -> Path:
    """The snapshot, whose paths lead to the blobs, and the branch's commit."""
    snapshot = folder / "snapshots" / repository.commit
    for file in files:
        pointer, blob = snapshot / file.path, folder / "blobs" / str(file.etag)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        if pointer.exists() and pointer.samefile(blob):
            continue
        making = pointer.with_name(f".{pointer.name}.{os.getpid()}")
        try:
            making.symlink_to(os.path.relpath(blob, pointer.parent))
        except OSError:  # a file system without links
            shutil.copyfile(blob, making)
        making.replace(pointer)
    revision = repository.name.revision or MAIN
    if revision != repository.commit:
        ref = folder / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        making = ref.with_name(f".{ref.name}.{os.getpid()}")
        making.write_text(repository.commit)
        making.replace(ref)
    return snapshot


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
