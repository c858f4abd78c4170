"""The files of a hub folder that say how its vectors are made: those of the sentence-transformers
library, of ColBERT's makers and of BGE-M3's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.small_file import read_json
from penstock.formats.weight_files import is_file_name

MODULES = "modules.json"
DENSE_WEIGHTS = "model.safetensors"
SENTENCE_CONFIG = "sentence_bert_config.json"
LATE_SETTINGS = "config_sentence_transformers.json"
STANFORD_SETTINGS = "artifact.metadata"
WEIGHTS_OF_TOKENS, VECTORS_OF_TOKENS = "sparse_linear", "colbert_linear"
"""BGE-M3's further layers."""
MAX_BYTES = 1 << 20


def pooling_inputs(path: Path) -> list[Path]:
    """The files whose change makes a prepared folder stale."""
    layers = [f"{name}.safetensors" for name in (WEIGHTS_OF_TOKENS, VECTORS_OF_TOKENS)]
    own = (MODULES, SENTENCE_CONFIG, LATE_SETTINGS, STANFORD_SETTINGS, *layers)
    named = [path / name for name in own]
    folders = {*path.glob("*_*"), *_module_folders(path)}
    modules = [folder / name for folder in folders for name in ("config.json", DENSE_WEIGHTS)]
    return [file for file in (*named, *sorted(modules)) if file.is_file()]


def _module_folders(path: Path) -> list[Path]:
    """Folders that modules.json names, whatever they are called; none if it can't be read."""
    try:
        folders = [inside(path, module) for module in read_modules(path)]
    except UnsupportedModel:  # its reader will say so
        return []
    return [folder for folder in folders if folder != path]


def read_modules(folder: Path) -> list[dict[str, Any]]:
    """What modules.json lists. Raises UnsupportedModel."""
    path = folder / MODULES
    modules = _json(path)
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise UnsupportedModel(f"{path} is not a JSON list of objects")
    return modules


def inside(folder: Path, module: dict[str, Any]) -> Path:
    """Returns a module's folder. Raises UnsupportedModel for one that lies elsewhere."""
    name = module.get("path")
    # The folder itself is named by nothing.
    if not isinstance(name, str) or not is_file_name(name):
        raise UnsupportedModel(f"{folder / MODULES}: a module's path is {str(name)[:80]!r}")
    return folder / name


def read_settings(path: Path) -> Fields:
    """The settings in a file; none if there is no such file."""
    if not path.is_file():
        return Fields({}, str(path))
    values = _json(path)
    if not isinstance(values, dict):
        raise UnsupportedModel(f"{path} is not a JSON object")
    return Fields(values, str(path))


def _json(path: Path) -> Any:
    try:
        return read_json(path, MAX_BYTES)
    except FileNotFoundError as error:
        raise UnsupportedModel(f"{path} is not readable JSON: {error}") from None
