"""What a model counts for while it is loaded."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.config.model_list import ModelEntry
from penstock.config.settings import ServeConfig
from penstock.errors import StartupError
from penstock.model.speculation import WITH_MODEL
from penstock.prepare import load_manifest

GIB = 1 << 30
LEAST_KV_GIB = 0.001


def weights_gib(folder: Path) -> float:
    """GiB of the files that a prepared folder's weights lie in. Raises StartupError."""
    weights = load_manifest(folder).weights
    files = [*weights.files, *([weights.mmproj] if weights.mmproj else [])]
    try:
        return sum(Path(file).stat().st_size for file in files) / GIB
    except OSError as error:
        raise StartupError(f"its weights can't be read: {error.strerror}") from None


def within_memory(
    entry: ModelEntry, config: ServeConfig, folder: Path
) -> tuple[ServeConfig, float]:
    """The model's settings, with a KV cache that keeps to what the entry says, and the GiB that it
    counts for. A draft model's weights count too. Raises StartupError where weights alone take
    more."""
    weights, cache = weights_gib(folder), config.engine.cache
    drafting = config.engine.speculation.config
    if drafting is not None and drafting.method in WITH_MODEL:
        # By its prepared folder, see `with_draft_folder`.
        weights += weights_gib(Path(drafting.model))
    if entry.memory_gib is None:
        if not cache.kv_memory_gib and config.models.models_memory_gib is not None:
            raise StartupError(
                "kv_memory_gib is 0, which bounds no KV cache: with --models-memory-gib it needs "
                "memory_gib, or kv_memory_gib above 0"
            )
        return config, weights + cache.kv_memory_gib + cache.host_kv_gib
    left = entry.memory_gib - weights - cache.host_kv_gib
    if left < LEAST_KV_GIB:
        host = f", blocks in the host's memory {cache.host_kv_gib:g}" if cache.host_kv_gib else ""
        raise StartupError(
            f"its weights take {weights:.2f} GiB{host}, memory_gib is {entry.memory_gib:g}: there "
            "is no room for a KV cache"
        )
    bound = min(left, cache.kv_memory_gib) if cache.kv_memory_gib else left
    engine = msgspec.structs.replace(
        config.engine, cache=msgspec.structs.replace(cache, kv_memory_gib=bound)
    )
    return msgspec.structs.replace(config, engine=engine), entry.memory_gib
