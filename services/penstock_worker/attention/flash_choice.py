"""Whether FlashAttention 3 computes a worker's long chunks, and of which layers.

It is nothing that the worker needs: where the package is installed, on a Hopper GPU and in the
default mode, it is tried on a small step, and used if it gives what it should.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from penstock.model.attention_spec import AttentionSpec, KVHeadsSpec
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import KVGroup
from penstock.process import logs
from penstock.protocol.to_worker import Setup
from penstock_worker.attention.flash_attention import ARGUMENTS, FlashAttention, Kernel
from penstock_worker.attention.flash_trial import Tried, trial
from penstock_worker.attention.interface import CacheShape

log = logs.get(__name__)

MODULE, FUNCTION = "flash_attn_interface", "flash_attn_with_kvcache"
HOPPER = 9
"""Major compute capability."""
DTYPES = (torch.bfloat16, torch.float16)
LARGEST_HEAD = 256
HEAD_MULTIPLE = 8
"""Numbers that it loads at once, so that a head's begin lies on 16 bytes."""
LARGEST_BLOCK = 32
"""Tokens. Pages that are multiples of its tiles, of 64 keys at least, it loads whole: there, a
number that isn't finite after a sequence's end would reach the result
(github.com/Dao-AILab/flash-attention/issues/1745)."""


class Refusal(Exception):
    """Why the library isn't used."""


@dataclass(frozen=True)
class FlashChoice:
    """The outcome of the choice: whether FlashAttention is used, and why."""

    library: FlashAttention | None
    reason: str
    """Why it is None, or empty."""

    @property
    def numerics(self) -> str:
        """What the fingerprint says of the library: keys and values after such a layer differ in
        their bits."""
        return "" if self.library is None else f" long chunks {self.library.name}"

    def tell(self, layers: int) -> None:
        """Says in the log which attention computes the model, of so many layers."""
        if self.library is None:
            log.info("FlashAttention 3 isn't used", because=self.reason)
        else:
            served = f"{len(self.library.layers)} of {layers} layers"
            log.info("FlashAttention 3 computes long chunks", version=self.library.name, of=served)


def choose_flash(
    setup: Setup, config: ModelConfig, shape: CacheShape, dtype: torch.dtype, device: torch.device
) -> FlashChoice:
    """`config`: of this rank's layers and heads. `dtype`: of queries. `shape`: of the cache.
    Imports the library only where it may be used. Waits for the device."""
    try:
        _check(setup, config, shape, dtype, device)
        kernel, name = library()
        tried: dict[Tried, str | None] = {}
        layers, reasons = [], []
        for layer, spec, heads, group in _layers(config, shape):
            reason = layer_obstacle(spec, heads, group)
            if reason is None:
                what = Tried(shape.num_heads, heads, spec.scale, spec.window, spec.soft_cap)
                if what not in tried:
                    tried[what] = trial(kernel, what, shape, dtype, device)
                reason = tried[what]
            if reason is None:
                layers.append(layer)
            else:
                reasons.append(reason)
        if not layers:
            raise Refusal(reasons[0])
    except Refusal as refusal:
        return FlashChoice(None, str(refusal))
    return FlashChoice(FlashAttention(kernel, name, frozenset(layers)), "")


def layer_obstacle(spec: AttentionSpec, heads: KVHeadsSpec, group: KVGroup) -> str | None:
    """Returns why the library can't compute such a layer, or None. `group`: its KV group."""
    if spec.sinks:
        return "a layer's heads have sinks"
    if spec.chunk is not None:
        return "a layer attends within chunks of positions"
    if group.forgets:
        # It loads whole tiles of keys, also in front of the window.
        return "a layer's blocks may belong to another sequence as soon as its window has passed"
    if heads.size > LARGEST_HEAD or heads.size % HEAD_MULTIPLE:
        return (
            f"a head's size is {heads.size}; it must be a multiple of {HEAD_MULTIPLE} and at most"
            f" {LARGEST_HEAD}"
        )
    return None


def _check(
    setup: Setup, config: ModelConfig, shape: CacheShape, dtype: torch.dtype, device: torch.device
) -> None:
    """Raises Refusal for what concerns all layers."""
    if not setup.flash_attention_3:
        raise Refusal("flash_attention_3 is off")
    if setup.batch_invariant:
        raise Refusal("batch_invariant is on: its sums depend on the step")
    if device.type != "cuda":
        raise Refusal("it needs a GPU")
    major, minor = torch.cuda.get_device_capability(device)
    if major != HOPPER:
        raise Refusal(f"it needs compute capability {HOPPER}.x, and the GPU has {major}.{minor}")
    if config.latent is not None:
        raise Refusal("the model's attention is over latents")
    if config.encoder_rows:
        raise Refusal("the model has an encoder")
    if dtype not in DTYPES or shape.dtype != dtype:
        query, cache = (str(each).removeprefix("torch.") for each in (dtype, shape.dtype))
        raise Refusal(
            "queries and KV cache must both be bfloat16 or both float16, and are"
            f" {query} and {cache}"
        )
    if shape.block_size > LARGEST_BLOCK:
        raise Refusal(f"kv_block_size is {shape.block_size}; it must be at most {LARGEST_BLOCK}")


def library() -> tuple[Kernel, str]:
    """Imports the package. Returns the function, and its name with the package's version. Raises
    Refusal."""
    if importlib.util.find_spec(MODULE) is None:
        raise Refusal(f"the package that has {MODULE} isn't installed")
    try:
        kernel: Kernel = getattr(importlib.import_module(MODULE), FUNCTION)
        has = inspect.signature(kernel).parameters
    except Exception as error:  # Whatever a library made for another torch raises.
        raise Refusal(f"{MODULE} can't be imported: {type(error).__name__}: {error}") from error
    missing = [name for name in ARGUMENTS if name not in has]
    if missing:
        raise Refusal(f"{MODULE}.{FUNCTION} has no {', '.join(missing)}")
    return kernel, f"FlashAttention 3 {_version()}"


def _version() -> str:
    """Version of the package that has the module."""
    names = importlib.metadata.packages_distributions().get(MODULE, [])
    return importlib.metadata.version(names[0]) if names else "of no version"


def _layers(
    config: ModelConfig, shape: CacheShape
) -> Iterator[tuple[int, AttentionSpec, KVHeadsSpec, KVGroup]]:
    """Each layer that has attention, with its number, heads and KV group."""
    for number in range(config.num_layers):
        spec = config.layer(number)
        if spec.attends:
            group, _ = shape.place(number)
            yield number, spec.attention, config.kv_heads(number), shape.groups[group]
