"""Turns any model that a user may name into a prepared folder, so that only this package knows
the hub's and GGUF's file formats.

prepare        name -> prepared folder (manifest.json, tokenizer.json, chat_template.jinja)
find_prepared  the same, where it is there already
load_manifest  prepared folder -> PreparedModel
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from penstock.prepare.folder import load_manifest

__all__ = ["find_prepared", "load_manifest", "prepare"]


def prepare(
    model: str,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
    copy_weights: bool = False,
    fetch: Literal["missing", "newest", "never"] = "missing",
    model_impl: Literal["auto", "penstock", "transformers"] = "auto",
    language_model_only: bool = False,
    mmproj: str | None = None,
    overrides: str = "",
) -> Path:
    """The prepared folder of a model, made if it isn't there yet.

    model: alias, name on the hub, folder in the hub's format, or .gguf file.
    cache_dir: folder for prepared folders; default: the XDG cache.
    progress: called with a sentence about what takes time.
    copy_weights: copy weights that lie elsewhere into cache_dir, which is whole by itself then.
    fetch: what is downloaded from the hub: what its cache lacks, also newer versions, or nothing.
    model_impl: whose code describes the layers; auto: a family, or transformers' if there is none.
    language_model_only: leave out the vision tower.
    mmproj: for a .gguf file, the path of the file with its vision tower.
    overrides: of settings in the model's own files, see penstock.prepare.overrides.
    Raises ModelNotFound, UnsupportedModel, or StartupError if a cache can't be written.
    """
    # Imported here: processes that only read manifests stay without numpy and tokenizers.
    from penstock.prepare.pipeline import prepare_model

    return prepare_model(
        model,
        cache_dir,
        progress or _silent,
        copy_weights=copy_weights,
        fetch=fetch,
        model_impl=model_impl,
        language_model_only=language_model_only,
        mmproj=mmproj,
        overrides=overrides,
    )


def find_prepared(
    model: str,
    cache_dir: str | os.PathLike[str] | None = None,
    model_impl: Literal["auto", "penstock", "transformers"] = "auto",
    language_model_only: bool = False,
    mmproj: str | None = None,
    overrides: str = "",
) -> Path | None:
    """The prepared folder of a model, if it is there and sound; else None, for whatever reason.
    Reads nothing but our own folder, and asks no hub."""
    from penstock.prepare.pipeline import find_prepared_folder

    return find_prepared_folder(
        model, cache_dir, model_impl, language_model_only, mmproj, overrides
    )


def _silent(_: str) -> None:
    """Drops progress messages, for callers who don't want them."""
