"""A model's files brought into the cache folder, so that the folder is whole by itself.

Containers and other machines see the cache folder, mounted at one path, and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.errors import ModelNotFound, StartupError
from penstock.prepare.folder import (
    TEMPORARY,
    locked,
    readable_name,
    remove_stale,
    sample_digest,
)
from penstock.prepare.resolve import Report, ResolvedModel


def carried(
    found: ResolvedModel, inputs: Sequence[Path], root: Path, report: Report
) -> ResolvedModel:
    """The model with its files below `root`: as it is if they are, else copied to `root`/weights.

    inputs: every file that the model is read from.  A copy is named by what the files hold, so the
    same model isn't copied twice.  Raises ModelNotFound if a file can't be read, StartupError if
    the copy can't be written.
    """
    if found.path.resolve().is_relative_to(root.resolve()):
        return found
    base = found.path.parent if found.kind == "gguf" else found.path
    if found.mmproj is not None and found.mmproj.parent != base:
        raise StartupError(f"{found.mmproj} can be copied only if it lies beside {found.path}")
    try:
        name = f"{readable_name(found.name)}-{_digest(base, inputs)}"
    except OSError as error:
        raise ModelNotFound(f"{found.path} can't be read: {error}") from None
    copy = root / "weights" / name
    if not _is_whole(copy, base, inputs):
        report(f"copying {found.name} to {copy}")
        try:
            _copy(copy, base, inputs)
        except OSError as error:
            raise StartupError(f"the model can't be copied to {copy}: {error}") from error
    path = copy / found.path.name if found.kind == "gguf" else copy
    mmproj = None if found.mmproj is None else copy / found.mmproj.name
    return msgspec.structs.replace(found, path=path, mmproj=mmproj)


def link_to(link: Path, folder: Path) -> None:
    """Makes `link` a symbolic link to `folder`, in one step: who opens it meanwhile gets the old
    one or the new one.  The link is relative, so both may be mounted elsewhere together.

    Raises StartupError if there is something else in the place of the link, or it can't be made.
    """
    if link.exists() and not link.is_symlink():
        raise StartupError(f"--link {link}: that exists, and is no symbolic link")
    target = os.path.relpath(folder.resolve(), link.parent.resolve())
    making = link.with_name(f".{link.name}.{os.getpid()}")
    try:
        making.unlink(missing_ok=True)
        making.symlink_to(target)
        making.replace(link)
    except OSError as error:
        raise StartupError(f"--link {link} can't be made: {error}") from error


def _digest(base: Path, inputs: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in inputs:
        digest.update(str(path.relative_to(base)).encode("utf-8", "surrogateescape") + b"\0")
        digest.update(sample_digest(path))
    return digest.hexdigest()[:20]


def _is_whole(copy: Path, base: Path, inputs: Sequence[Path]) -> bool:
    try:
        return all(
            (copy / path.relative_to(base)).stat().st_size == path.stat().st_size for path in inputs
        )
    except OSError:
        return False


def _copy(copy: Path, base: Path, inputs: Sequence[Path]) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    with locked(copy.parent):
        if _is_whole(copy, base, inputs):
            return
        remove_stale(copy.parent)
        making = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=copy.parent))
        try:
            for path in inputs:
                target = making / path.relative_to(base)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, target)
            making.chmod(0o755)
            shutil.rmtree(copy, ignore_errors=True)  # a part of it, if anything
            making.rename(copy)
        finally:
            shutil.rmtree(making, ignore_errors=True)
