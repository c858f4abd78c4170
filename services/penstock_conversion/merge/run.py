"""Merges an adapter into its base: reads one matrix at a time, and writes a folder."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from penstock.adapters import UnfitAdapter, read_adapter
from penstock.adapters.adapter import MAX_RANK
from penstock.errors import InvalidRequest, StartupError, UnsupportedModel
from penstock.formats.safetensors_writing import INDEX, Entry, SafetensorsWriter
from penstock.formats.small_file import read_json
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import PreparedModel
from penstock.prepare import load_manifest, prepare
from penstock.prepare.adapters import find_adapter
from penstock_conversion.merge.tensors import Merged, untied
from penstock_worker.adapters.fitting import Fitted, fitted
from penstock_worker.adapters.models import adaptable_decoder
from penstock_worker.weights.opening import open_weights

CONFIG = "config.json"
MAX_CONFIG_BYTES = 16 << 20
MAX_COPIED_BYTES = 256 << 20
"""Most bytes of each file that is copied in addition to the weights."""
_WEIGHTS = (
    *(".safetensors", ".bin", ".gguf", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx"),
    ".index.json",
)
"""Endings of files that hold weights, or say where they lie."""


@dataclass(frozen=True)
class MergeOptions:
    """What the command was asked for."""

    model: str
    adapter: str
    output: Path
    most_shard_bytes: int = 5_000_000_000
    cache_dir: str | None = None


@dataclass(frozen=True)
class MergedModel:
    """What was made."""

    path: Path
    files: int
    size: int
    """Bytes of all tensors."""
    modules: int
    """Matrices that the adapter changed."""


def merge(wanted: MergeOptions) -> MergedModel:
    """Writes the folder. Raises InvalidRequest (UnfitAdapter, too), ModelNotFound, UnsupportedModel
    and StartupError."""
    prepared = load_manifest(prepare(wanted.model, cache_dir=wanted.cache_dir))
    config = _mergeable(prepared)
    if wanted.output.exists():
        raise InvalidRequest(f"{wanted.output} is there already: give another --output")
    if not wanted.output.absolute().parent.is_dir():
        raise InvalidRequest(
            f"--output {wanted.output}: the folder that it is to be in isn't there"
        )
    _, adapter = read_adapter(find_adapter(wanted.adapter))
    weights = partial(open_weights, prepared.weights, config, torch.float32)
    model = adaptable_decoder(config, takes_whole=True, takes_experts=True)
    changes = fitted(adapter, model, MAX_RANK, weights)
    both = untied(prepared, config, changes)
    merged = Merged(prepared.weights.files, weights().tensors, changes, both)
    _check_all(changes, merged)
    entries = merged.entries()
    _write(wanted, prepared, merged, entries)
    return MergedModel(
        wanted.output,
        len(list(wanted.output.glob("*.safetensors"))),
        sum(entry.size for entry in entries),
        len(changes),
    )


def _mergeable(prepared: PreparedModel) -> ModelConfig:
    """Raises UnsupportedModel for a base into which nothing is merged."""
    config = prepared.config
    if prepared.weights.format == "gguf" or prepared.weights.quantised is not None:
        raise UnsupportedModel(
            f"{prepared.name} is quantised, or a GGUF file: rounding it again would lose what the"
            " adapter changes. Merge into the unquantised folder, and then use `penstock quantize`;"
            " or serve this one with --enable-lora"
        )
    if not isinstance(config, ModelConfig):
        raise UnsupportedModel(f"{prepared.name} is no decoder that Penstock itself describes")
    return config


def _check_all(changes: Fitted, merged: Merged) -> None:
    """Raises UnfitAdapter where the base's files have no tensor for a change."""
    known = {name.removesuffix(".weight") for name in merged.own}
    if merged.untied:
        known.add("lm_head")
    missing = sorted(changes.keys() - known)
    if missing:
        raise UnfitAdapter(f"the adapter changes {missing[0]}, which the base's files don't have")


def _write(
    wanted: MergeOptions, prepared: PreparedModel, merged: Merged, entries: list[Entry]
) -> None:
    making = Path(tempfile.mkdtemp(prefix=".merging-", dir=wanted.output.absolute().parent))
    try:
        _copy_rest(Path(prepared.weights.files[0]).parent, making, untied=merged.untied)
        with torch.inference_mode():
            writer = SafetensorsWriter(making, entries, wanted.most_shard_bytes)
            writer.write(merged.pieces())
        making.chmod(0o755)
        os.rename(making, wanted.output)
    except OSError as error:
        raise StartupError(f"{wanted.output} can't be written: {error.strerror}") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _copy_rest(base: Path, making: Path, *, untied: bool) -> None:
    """Copies the tokenizer, the templates and the folder's other files."""
    for path in sorted(base.iterdir()):
        of_weights = path.name.endswith(_WEIGHTS) or path.name == INDEX
        if of_weights or path.name.startswith(".") or not path.is_file():
            continue
        if path.stat().st_size > MAX_COPIED_BYTES:
            raise UnsupportedModel(f"{path} has more than {MAX_COPIED_BYTES:,} bytes")
        shutil.copyfile(path, making / path.name)
    if untied:
        values = read_json(base / CONFIG, MAX_CONFIG_BYTES)
        values["tie_word_embeddings"] = False
        if isinstance(values.get("text_config"), dict):
            values["text_config"]["tie_word_embeddings"] = False
        (making / CONFIG).write_text(json.dumps(values, indent=2), "utf-8")
