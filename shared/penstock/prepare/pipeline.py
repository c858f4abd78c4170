"""The prepare step, which runs before any other process of the system is started."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from penstock.config.plugins import FAMILIES, plugin_packages
from penstock.config.settings import ModelImpl
from penstock.errors import ModelNotFound, PenstockError, UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.small_file import read_json
from penstock.prepare.carry import carried
from penstock.prepare.folder import (
    default_cache_dir,
    folder_name,
    is_sound,
    write_folder,
)
from penstock.prepare.inputs import CONFIG, MAX_JSON_BYTES, inputs_of
from penstock.prepare.resolve import Fetch, Report, ResolvedModel, resolve


def prepare_model(
    model: str,
    cache_dir: str | os.PathLike[str] | None,
    report: Report,
    *,
    copy_weights: bool,
    fetch: Fetch = "missing",
    model_impl: ModelImpl = "auto",
    language_model_only: bool = False,
    mmproj: str | None = None,
    overrides: str = "",
) -> Path:
    """Prepares a model and returns its folder (see `penstock.prepare.prepare`)."""
    found = _with_mmproj(resolve(model, report, fetch), mmproj, language_model_only)
    root = _root(cache_dir)
    if copy_weights:
        found = carried(found, inputs_of(found), root, report)
    folder = _folder_of(found, root, model_impl, language_model_only, overrides)
    if is_sound(folder):
        return folder
    report(f"preparing {found.name}")
    # Here, because the readers need numpy, tokenizers and every family, and most starts don't.
    from penstock.prepare.making import manifest_of, read_checkpoint

    checkpoint = read_checkpoint(found, model_impl, language_model_only, overrides)
    return write_folder(
        folder, manifest_of(found, checkpoint), checkpoint.tokenizer_json, checkpoint.chat_template
    )


def find_prepared_folder(
    model: str,
    cache_dir: str | os.PathLike[str] | None,
    model_impl: ModelImpl = "auto",
    language_model_only: bool = False,
    mmproj: str | None = None,
    overrides: str = "",
) -> Path | None:
    """A model's prepared folder, if there is one (see `penstock.prepare.find_prepared`)."""
    try:
        resolved = resolve(model, lambda _: None, "never")
        found = _with_mmproj(resolved, mmproj, language_model_only)
        root = _root(cache_dir)
        folder = _folder_of(found, root, model_impl, language_model_only, overrides)
        return folder if is_sound(folder) else None
    except (PenstockError, OSError):
        return None


def _with_mmproj(
    found: ResolvedModel, mmproj: str | None, language_model_only: bool
) -> ResolvedModel:
    """Raises UnsupportedModel for a file beside a model that has its tower in its own files."""
    if mmproj is None or language_model_only:
        return found
    if found.kind != "gguf":
        raise UnsupportedModel(
            f"mmproj is {mmproj}, which goes with a .gguf file; {found.path} is a folder, whose "
            "own files hold what the model sees with"
        )
    path = Path(mmproj).expanduser().absolute()
    if not path.is_file():
        raise ModelNotFound(f"mmproj is {path}, and there is no such file")
    return msgspec.structs.replace(found, mmproj=path)


def _root(cache_dir: str | os.PathLike[str] | None) -> Path:
    return Path(cache_dir).expanduser().absolute() if cache_dir else default_cache_dir()


def _folder_of(
    found: ResolvedModel,
    root: Path,
    model_impl: ModelImpl,
    language_model_only: bool,
    overrides: str,
) -> Path:
    """The prepared folder of a model, one for each of the ways in which the model may be
    described."""
    try:
        source = found.source
        if _for_transformers(found, model_impl):
            source += "\0transformers"
        elif language_model_only:
            source += "\0language model only"
        elif found.mmproj is not None:
            source += "\0mmproj"
        if overrides:
            source += f"\0overrides {overrides}"
        brought = plugin_packages(FAMILIES)
        if brought:  # another version may describe the model otherwise
            source += "\0".join(["", "plug-ins", *brought])
        name = folder_name(found.name, source, inputs_of(found))
    except OSError as error:
        raise ModelNotFound(f"{found.path} can't be read: {error}") from None
    return root / "models" / name


def _for_transformers(found: ResolvedModel, model_impl: ModelImpl) -> bool:
    if found.kind == "gguf" or model_impl == "penstock":
        return False
    if model_impl == "transformers":
        return True
    from penstock.prepare.by_transformers import is_for_transformers

    try:
        stated = read_json(found.path / CONFIG, MAX_JSON_BYTES)
    except FileNotFoundError:
        return False  # The reader says so.
    where = str(found.path / CONFIG)
    return isinstance(stated, dict) and is_for_transformers(Fields(stated, where), model_impl)
