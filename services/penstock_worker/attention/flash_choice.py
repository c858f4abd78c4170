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

import numpy as np
import torch
from torch import Tensor

from penstock.model.attention_spec import AttentionSpec, KVHeadsSpec
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import KVGroup
from penstock.process import logs
from penstock.protocol.to_worker import Setup
from penstock_kernels.triton.attention.plan import DeviceAttentionPlan, plan_attention
from penstock_kernels.triton.tiles import attention_choice
from penstock_worker.attention.flash_attention import ARGUMENTS, FlashAttention, Kernel, LongChunks
from penstock_worker.attention.interface import CacheShape, ScoreRule
from penstock_worker.attention.triton_encoded import LayerCache

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


# A small step by FlashAttention 3, held against the same in float32: whether this build, on this
# device, computes what a layer needs from a cache that lies as ours.

STARTS, COUNTS = (40, 37, 0), (1, 150, 70)
"""Tokens before the step, and new ones: a decode, which the library must leave out, and two
chunks."""
WINDOW = 33
"""The widest that is tried: a wider one would reach everything."""
MOST_APART = 0.02
"""Largest difference, as a share of the largest number: several times what two roundings to
bfloat16 make."""


@dataclass(frozen=True)
class Tried:
    """Layers that are tried together."""

    heads: int
    kv_heads: KVHeadsSpec
    scale: float | None
    window: int | None
    soft_cap: float | None


def trial(
    kernel: Kernel, what: Tried, shape: CacheShape, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Returns why the library can't be used for such layers, or None. Slots that no sequence has
    are not-a-number."""
    scale = what.kv_heads.size**-0.5 if what.scale is None else what.scale
    window = None if what.window is None else min(what.window, WINDOW)
    rule = ScoreRule(scale=scale, window=window, soft_cap=what.soft_cap)
    chunks = LongChunks(sum(COUNTS), max(COUNTS))
    query, cache, tables = _drawn(what, shape, dtype)
    keys, values = (each.to(device) for each in cache)
    if shape.heads_of_layers:
        # As in a cache with room for wider layers: a slot's heads lie together.
        keys, values = (
            each.transpose(0, 1).contiguous().transpose(0, 1) for each in (keys, values)
        )
    plan = _plan(tables, shape.block_size, what, device)
    try:
        step = FlashAttention(kernel, "", frozenset()).step(chunks, plan)
        found = step.long(query.to(device), LayerCache(keys, values, 0, None), plan, scale, rule)
        found = found.cpu().float()
    except Exception as error:  # Whatever a build without one of its parts raises.
        return f"a trial failed: {type(error).__name__}: {error}"
    wanted = _expected(query, cache, tables, shape.block_size, rule)
    long = torch.from_numpy(np.repeat(np.array(COUNTS) > plan.choice.split_queries, COUNTS))
    apart = (found[long] - wanted[long]).abs().max() / wanted[long].abs().max()
    if not apart <= MOST_APART:
        return f"in a trial, numbers were {apart:.3g} of the largest away from what they should be"
    return None


def _drawn(
    what: Tried, shape: CacheShape, dtype: torch.dtype
) -> tuple[Tensor, tuple[Tensor, Tensor], list[np.ndarray]]:
    """Queries, keys and values on the host, and each sequence's scattered blocks."""
    generator, size = torch.Generator().manual_seed(0), shape.block_size
    lengths = np.array(STARTS) + COUNTS
    needs = -(-lengths // size)
    order = np.random.default_rng(0).permutation(int(needs.sum()) + 1)
    tables = np.split(order[:-1], np.cumsum(needs)[:-1])
    sizes = what.kv_heads.count, len(order) * size, what.kv_heads.size

    def draw(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(dtype)

    keys, values = (torch.full(sizes, torch.nan, dtype=dtype) for _ in range(2))
    for table, length in zip(tables, lengths, strict=True):
        slots = _slots(table, int(length), size)
        for each in (keys, values):
            each[:, slots] = draw(sizes[0], int(length), sizes[2])
    query = draw(sum(COUNTS), what.heads, what.kv_heads.size)
    return query, (keys, values), tables


def _slots(table: np.ndarray, length: int, size: int) -> Tensor:
    return torch.from_numpy((table[:, None] * size + np.arange(size)).ravel()[:length])


def _plan(
    tables: list[np.ndarray], size: int, what: Tried, device: torch.device
) -> DeviceAttentionPlan:
    return plan_attention(
        tables,
        np.array(COUNTS),
        np.array(STARTS) + COUNTS,
        block_size=size,
        group=what.heads // what.kv_heads.count,
        choice=attention_choice(what.kv_heads.size),
        device=device,
    )


def _expected(
    query: Tensor,
    cache: tuple[Tensor, Tensor],
    tables: list[np.ndarray],
    size: int,
    rule: ScoreRule,
) -> Tensor:
    """Computes the same attention in float32, one sequence after the other. Returns [rows, heads,
    head size]."""
    found = []
    queries = query.float().split(COUNTS)
    for own, table, start in zip(queries, tables, STARTS, strict=True):
        slots = _slots(table, start + len(own), size)
        keys, values = (each[:, slots].float() for each in cache)
        grouped = own.unflatten(1, (len(keys), -1))
        scores = torch.einsum("rkgd,ktd->kgrt", grouped, keys) * (rule.scale or 1.0)
        if rule.soft_cap:
            scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
        distance = start + torch.arange(len(own))[:, None] - torch.arange(len(slots))
        hidden = distance < 0
        if rule.window is not None:
            hidden |= distance >= rule.window
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        found.append(torch.einsum("kgrt,ktd->rkgd", weights, values).flatten(1, 2))
    return torch.cat(found)
