"""The prepared folders that are on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import msgspec

from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.model.config import PreparedModel
from penstock.prepare.folder import TEMPORARY, default_cache_dir, load_manifest, locked


class PreparedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """changed: seconds since 1970.  copied: the model's weights, where they were copied into the
    cache; None where they lie elsewhere."""

    folder: Path
    model: PreparedModel
    changed: float
    copied: Path | None


def cache_root(cache_dir: str | os.PathLike[str] | None) -> Path:
    """The folder of a --cache-dir, or the default."""
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
