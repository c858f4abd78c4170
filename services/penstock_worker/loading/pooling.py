"""Loads a pooling model, and chooses how it is computed."""

from __future__ import annotations

import time
from importlib import import_module

import msgspec
import torch

from penstock.errors import StartupError
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.media_facts import MediaFacts
from penstock.model.prepared_model import PreparedModel
from penstock.process import logs
from penstock.protocol.from_worker import Ready
from penstock.protocol.to_worker import Setup
from penstock_worker.forward.backends import choose_among
from penstock_worker.loading.fingerprint import fingerprint
from penstock_worker.loading.kernels import NO_KERNELS, triton_kernels
from penstock_worker.loading.loaded import Loaded
from penstock_worker.loading.tensors import setup_of_loaders
from penstock_worker.media.planning import told_of
from penstock_worker.metrics.phases import Phases
from penstock_worker.pooling.recipe import PoolingRecipe

log = logs.get(__name__)

_MODULES = {
    "triton": "penstock_worker.pooling.triton",
    "cpu": "penstock_worker.pooling.cpu",
    "reference": "penstock_worker.pooling.reference",
    "transformers": "penstock_worker.pooling.transformers",
}
"""The modules of backends, as in `forward.backends`, with recipes for pooling models."""


def load_pooling(
    prepared: PreparedModel, setup: Setup, threads: int, begun: float, phases: Phases
) -> Loaded:
    """Loads a pooling model as `load` does. begun: by time.monotonic().  Raises StartupError."""
    prepared = without_ears(prepared)
    recipe = choose_pooling(prepared, with_own_files(prepared, setup), threads)
    with torch.inference_mode():
        parts = recipe.load(phases)
    ready = Ready(
        num_kv_blocks=parts.blocks,
        device=recipe.device_name,
        fingerprint=fingerprint(prepared.digest, recipe.fingerprint),
        load_seconds=time.monotonic() - begun,
        num_host_blocks=parts.host_blocks,
        copy_seconds=parts.copy_seconds,
        kv_groups=parts.kv_groups,
        **told_of(parts.media),
    )
    log.info(
        "pooling model loaded",
        model=prepared.name,
        dtype=recipe.dtype,
        backend=recipe.backend,
        device=recipe.device_name,
        fingerprint=recipe.fingerprint,
        threads=threads,
        kv_blocks=parts.blocks,
        seconds=ready.load_seconds,
    )
    kernels = triton_kernels() if recipe.backend == "triton" else NO_KERNELS
    return Loaded(setup, parts.runner, ready, parts.kv_bytes, kernels)


def choose_pooling(prepared: PreparedModel, setup: Setup, threads: int) -> PoolingRecipe:
    """Returns the recipe that `setup` asks for. Raises StartupError if there is none."""
    if setup.pooling is None:
        raise ValueError("the setup is of a model that generates")
    if setup.quantization != "none":
        raise StartupError(
            f"quantization is {setup.quantization}; pooling models support only none"
        )
    if setup.cpu_experts != "off":
        raise StartupError(f"cpu_experts is {setup.cpu_experts}; pooling models support only off")
    allowed = ("auto", *_MODULES)
    if setup.attention_backend not in allowed:
        raise StartupError(
            f"attention_backend is {setup.attention_backend!r}; for pooling models allowed: "
            f"{', '.join(allowed)}"
        )
    found: PoolingRecipe = choose_among(_MODULES, prepared, setup, threads)
    return found


def require_encoder(name: str, prepared: PreparedModel, config: EncoderConfig) -> None:
    """Raises Unable for an encoder that a backend can't run, ImportError where its library is
    missing."""
    import_module(_MODULES[name]).require_encoder(config, setup_of_loaders(prepared))


def without_ears(prepared: PreparedModel) -> PreparedModel:
    """Returns the model without its audio tower: vectors are made of texts and pictures. Raises
    StartupError for an encoder-decoder model, whose prompts all begin with a sound."""
    config = prepared.config
    if prepared.encoder_rows:
        raise StartupError(f"{prepared.name} is an encoder-decoder model and gives no vectors")
    if not isinstance(config, ModelConfig) or not config.takes_media:
        return prepared
    kinds = {} if prepared.media is None else dict(prepared.media.kinds)
    kinds.pop("audio", None)
    sees = config.vision is not None and bool(kinds)
    config = msgspec.structs.replace(config, vision=config.vision if sees else None, audio=None)
    media = MediaFacts(kinds=kinds) if sees else None
    return msgspec.structs.replace(prepared, config=config, media=media)


def with_own_files(prepared: PreparedModel, setup: Setup) -> Setup:
    """Returns the setup with the files that this worker has: the engine's may lie elsewhere."""
    if setup.pooling is None or prepared.pooling is None:
        return setup
    pooling = msgspec.structs.replace(setup.pooling, dense=prepared.pooling.dense)
    return msgspec.structs.replace(setup, pooling=pooling)
