"""From what the user typed to files on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.formats.gguf import MAGIC
from penstock.formats.gguf_split import stem_of
from penstock.formats.weight_files import refuse_pickle
from penstock.model_config import GenerationDefaults
from penstock.prepare.aliases import ALIASES, find_packaged, installed_path
from penstock.prepare.hub import fetch_hub_folder

Report = Callable[[str], None]
"""Told, in a sentence, what takes time."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}")


class ResolvedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Files to prepare.

    name: the name that requests use.  source: a hub id or an absolute path.
    path: a .gguf file, or a folder in the hub's format.
    """

    name: str
    source: str
    kind: Literal["gguf", "folder"]
    path: Path
    advised: GenerationDefaults = GenerationDefaults()
    """Sampling values for what the files don't state."""


def resolve(model: str, report: Report) -> ResolvedModel:
    """Find a model by alias, path or hub id, in this order.

    Raises ModelNotFound, or UnsupportedModel for a file of a kind that isn't served.
    """
    if not model.strip():
        raise ModelNotFound(f"the model's name is empty; give {_CHOICES}")
    packaged = find_packaged(model)
    if packaged is not None:
        installed = installed_path(packaged)
        if installed is not None:
            found = _local(installed, name=model, source=packaged.hub_id)
            return msgspec.structs.replace(found, advised=packaged.generation)
        if model != packaged.hub_id:
            raise ModelNotFound(
                f"the model {model} ({packaged.hub_id}) comes with a package that isn't "
                f"installed; install it: {packaged.install}"
            )
    path = Path(model).expanduser()
    if path.exists():
        path = path.resolve()
        return _local(path, name=stem_of(path) if path.is_file() else path.name, source=str(path))
    if HUB_ID.fullmatch(model) and not model.lower().endswith(".gguf"):
        folder = fetch_hub_folder(model, report)
        return ResolvedModel(name=model, source=model, kind="folder", path=folder)
    raise ModelNotFound(f"there is no model {model!r}: no such file or folder; give {_CHOICES}")


_CHOICES = (
    f"an alias ({', '.join(ALIASES)}), a folder in the hub's format, a .gguf file, "
    "or a hub id (owner/name)"
)


def _local(path: Path, *, name: str, source: str) -> ResolvedModel:
    if path.is_dir():
        return ResolvedModel(name=name, source=source, kind="folder", path=path)
    refuse_pickle(path)
    if path.suffix.lower() != ".gguf" and not _begins_with_magic(path):
        hint = "; give the folder that it lies in" if path.suffix == ".safetensors" else ""
        raise UnsupportedModel(f"{path} is not a .gguf file{hint}")
    return ResolvedModel(name=name, source=source, kind="gguf", path=path)


def _begins_with_magic(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise ModelNotFound(f"{path} can't be read: {error}") from None
