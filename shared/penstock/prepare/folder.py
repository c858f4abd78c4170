"""Prepared folders: where they lie, how one is written at once, and read again.

A folder's name holds a digest of what it was made from (names, times and samples of the input
files), so a changed input leads to another folder, and nothing that is in use is ever changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from penstock.errors import ModelNotFound, StartupError, UnsupportedModel
from penstock.families.finding import family_named, know_family
from penstock.model.config import EncoderConfig, HeadConfig, TransformersConfig
from penstock.model.prepared_model import PreparedModel

FORMAT_VERSION = 23
"""Raise it whenever the same input gives another prepared folder."""
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
MAX_MANIFEST_BYTES = 16 << 20
TEMPORARY = ".making-"
"""What folders are called while they are written."""
_STALE_SECONDS = 3600.0


def default_cache_dir() -> Path:
    """Returns $XDG_CACHE_HOME/penstock, or ~/.cache/penstock (XDG Base Directory Specification).
    Where the home isn't writable, a folder of this user's in the temporary folder. Raises
    StartupError where that isn't either."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "penstock"
    try:
        folder = Path.home() / ".cache" / "penstock"
    except RuntimeError:  # In a container, as a user that it doesn't know.
        temporary = _temporary_cache()
        if temporary is None:
            raise StartupError(
                "prepared models have no place: this user has no home, and none can be had in "
                f"{tempfile.gettempdir()} that others can't write; --cache-dir names another place"
            ) from None
        return temporary
    nearest = folder
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    if nearest == folder or (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        return folder
    return _temporary_cache() or folder


def _temporary_cache() -> Path | None:
    """None where the place is somebody else's, or others may write there."""
    folder = Path(tempfile.gettempdir(), f"penstock-cache-{os.getuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    except OSError:
        return None
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return folder if own and not status.st_mode & 0o022 else None


def folder_name(name: str, source: str, inputs: Sequence[Path]) -> str:
    """The prepared folder's name: readable, and unique to these inputs."""
    digest = hashlib.sha256()
    for text in (str(FORMAT_VERSION), name, source):
        digest.update(text.encode("utf-8", "surrogateescape") + b"\0")
    for path in inputs:
        identity = f"{path}\0{path.stat().st_mtime_ns}\0"
        digest.update(identity.encode("utf-8", "surrogateescape") + sample_digest(path))
    return f"{readable_name(name)}-{digest.hexdigest()[:20]}"


def readable_name(name: str) -> str:
    """The part of a model's name that may stand in a file name; perhaps nothing."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:64]


class _Version(msgspec.Struct):
    """What manifests of all versions have."""

    format_version: int


def load_manifest(folder: str | os.PathLike[str]) -> PreparedModel:
    """Read manifest.json of a prepared folder.

    Raises ModelNotFound if there is none, UnsupportedModel if it is broken or of another
    format version.
    """
    path = Path(folder) / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise UnsupportedModel(f"{path} is larger than {MAX_MANIFEST_BYTES} bytes")
        text = path.read_bytes()
        version = msgspec.json.decode(text, type=_Version).format_version
        if version != FORMAT_VERSION:  # What else it says may have another shape.
            raise UnsupportedModel(
                f"{path} has format version {version}, this build reads {FORMAT_VERSION}; prepare "
                "the model again"
            )
        manifest = msgspec.json.decode(text, type=PreparedModel)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFound(f"{folder} is not a prepared folder: no {MANIFEST}") from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnsupportedModel(f"{path} can't be read: {error}") from None
    if not _is_served(manifest):
        raise UnsupportedModel(f"{path}: the family {manifest.family!r} is not served")
    return manifest


def _is_served(manifest: PreparedModel) -> bool:
    if isinstance(manifest.config, EncoderConfig):
        # Every family is imported here, and only for encoders.
        from penstock.families.served import ENCODERS

        return manifest.family in ENCODERS
    if isinstance(manifest.config, (TransformersConfig, HeadConfig)):
        return True
    know_family(manifest.family, manifest.family_module)
    return family_named(manifest.family) is not None


def is_sound(folder: Path) -> bool:
    """Whether the folder can be used as it is: all files are there, and as they were written."""
    try:
        manifest = load_manifest(folder)
        tokenizer = (folder / TOKENIZER).read_bytes()
        template = (folder / CHAT_TEMPLATE).read_bytes()
    except (ModelNotFound, UnsupportedModel, OSError):
        return False
    if not all(map(os.path.exists, manifest.samples)):
        return False
    if manifest.contents != _contents(tokenizer, template):
        return False
    return bool(tokenizer) and bool(template) == manifest.has_chat_template


def check_contents(manifest: PreparedModel, tokenizer: bytes, template: bytes) -> None:
    """Raises StartupError for a file that is not what was written: cut off, or edited by hand."""
    found = _contents(tokenizer, template)
    for name, digest in manifest.contents.items():
        if found.get(name, digest) != digest:
            raise StartupError(
                f"the prepared folder of {manifest.name} is damaged: {name} is not what was "
                "written; `penstock pull` or `penstock prepare` creates it again"
            )


def check_weights(manifest: PreparedModel) -> None:
    """Raises StartupError for a file of weights that is no longer what was prepared: a process that
    reads it now would go on by other weights with what another one has begun."""
    for file, digest in manifest.samples.items():
        try:
            found = sample_digest(Path(file)).hex()
        except OSError as error:
            raise StartupError(f"{file} can't be read: {error.strerror}") from None
        if found != digest:
            raise StartupError(
                f"{file} isn't what it was when {manifest.name} was prepared: what was begun with "
                "its former weights would go on with others. Start again to serve it as it is now"
            )


SAMPLE_BYTES, SAMPLES = 65_536, 16


def sample_digest(path: Path) -> bytes:
    """sha256 of the file's size and of evenly spread samples. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        for index in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * index // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()


def _contents(tokenizer: bytes, template: bytes) -> dict[str, str]:
    return {
        TOKENIZER: hashlib.sha256(tokenizer).hexdigest(),
        CHAT_TEMPLATE: hashlib.sha256(template).hexdigest(),
    }


def write_folder(
    folder: Path, manifest: PreparedModel, tokenizer_json: bytes, chat_template: str
) -> Path:
    """Write a prepared folder so that readers see it whole or not at all.

    Two processes may do so at once: the first one's stays, the other's is dropped.
    Raises StartupError if the cache folder can't be written.
    """
    template = chat_template.encode()
    manifest = msgspec.structs.replace(manifest, contents=_contents(tokenizer_json, template))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(folder.parent)
        making = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=folder.parent))
        try:
            (making / TOKENIZER).write_bytes(tokenizer_json)
            (making / CHAT_TEMPLATE).write_bytes(template)
            text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
            (making / MANIFEST).write_bytes(text)
            _put_in_place(making, folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    except OSError as error:
        raise StartupError(
            f"the model's prepared folder {folder} can't be written: {error.strerror or error};"
            " --cache-dir names another place"
        ) from error
    return folder


def _put_in_place(making: Path, folder: Path) -> None:
    making.chmod(0o755)
    with locked(folder.parent):
        if is_sound(folder):
            return
        if folder.is_dir():  # broken, and perhaps not empty: a rename wouldn't replace it
            folder.rename(Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=folder.parent)) / "broken")
        making.rename(folder)


@contextlib.contextmanager
def locked(parent: Path) -> Iterator[None]:
    """Holds a lock of the folder, which one process at a time has. It ends with the process that
    holds it."""
    with open(parent / ".lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove_stale(parent: Path) -> None:
    """What a process left that died while it was writing."""
    for left in parent.glob(f"{TEMPORARY}*"):
        try:
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue


# The prepared folders that are on this machine.


class PreparedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """changed: seconds since 1970.  copied: the model's weights, where they were copied into the
    cache; None where they lie elsewhere."""

    folder: Path
    model: PreparedModel
    changed: float
    copied: Path | None


def cache_root(cache_dir: str | os.PathLike[str] | None) -> Path:
    """The folder of a --cache-dir, or the default. Raises StartupError where there is none."""
    return Path(cache_dir).expanduser().absolute() if cache_dir else default_cache_dir()


def prepared_folders(root: Path) -> list[PreparedFolder]:
    """The prepared folders, ordered by name. Those that another version made, or that are damaged,
    are left out."""
    found = []
    models = root / "models"
    for folder in sorted(models.iterdir()) if models.is_dir() else ():
        if folder.name.startswith(".") or not folder.is_dir():
            continue
        try:
            model = load_manifest(folder)
            changed = folder.stat().st_mtime
        except (ModelNotFound, UnsupportedModel, OSError):
            continue
        copied = _copied(root, model)
        found.append(PreparedFolder(folder=folder, model=model, changed=changed, copied=copied))
    return found


def remove_prepared(one: PreparedFolder) -> None:
    """Takes it out of sight in one step, then away. Raises OSError."""
    for folder in (one.folder, one.copied):
        if folder is None or not folder.is_dir():
            continue
        with locked(folder.parent):
            aside = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=folder.parent))
            folder.rename(aside / folder.name)
        shutil.rmtree(aside)


def _copied(root: Path, model: PreparedModel) -> Path | None:
    """The folder right below `root`/weights that all its files are in."""
    weights = root / "weights"
    places = {
        Path(file).relative_to(weights).parts[0]
        for file in model.weights.files
        if Path(file).is_relative_to(weights)
    }
    return weights / places.pop() if len(places) == 1 else None
