"""Tiles of paged attention: of decode, of prefill, and the one choice for both."""

from __future__ import annotations

from dataclasses import replace

from loadtest.gpu.parts.cases import Case
from loadtest.gpu.parts.kernels_attention import chunk, decode
from loadtest.gpu.tune.settings import Setting, Sizes
from penstock.model_config import ModelConfig
from penstock_kernels.triton.tiles import AttentionTiles, attention_choice

_KEYS = "keys is shared by few, many and batch_invariant of every head_dim <= 128"
_SPLIT = (
    "split is KEY_SPLIT, shared by few, many and batch_invariant of every head_dim, and the least "
    "context of a decode graph"
)
_WARPS = "warps is the same for every head_dim"
MOVES = {
    "few": {
        "rows": "rows is the same for every head_dim",
        "keys": _KEYS,
        "split": _SPLIT,
        "warps": _WARPS,
        "stages": "stages is two more than what many and batch_invariant have, for every "
        "head_dim <= 128",
    },
    "many": {
        "rows": "rows is the same for every head_dim <= 128",
        "keys": _KEYS,
        "split": _SPLIT,
        "warps": _WARPS,
        "stages": "stages is shared with batch_invariant, few has two more, for every "
        "head_dim <= 128",
    },
    "invariant": {
        "rows": "rows is the same for every head_dim",
        "keys": _KEYS,
        "split": _SPLIT,
        "warps": _WARPS,
        "stages": "stages is shared with many, few has two more, for every head_dim <= 128",
    },
}
"""Of `attention_choice`, where head_dim <= 128."""


def decoding(config: ModelConfig, sizes: Sizes) -> Setting:
    decodes = [named("decode", decode(config, *each)) for each in sizes.decode]
    return Setting(
        f"attention_choice({config.head_dim}).few",
        "attend",
        attention_choice(config.head_dim).few,
        {
            "rows": (16, 32),
            "keys": (16, 32, 64, 128),
            "split": (256, 512, 1024, 2048),
            "warps": (1, 2, 4, 8),
            "stages": (2, 3, 4, 5, 6),
        },
        (replace(decodes[0], weight=2), *decodes[1:]),
        sensible=sensible,
        moves=MOVES["few"],
    )


def prefill(config: ModelConfig, sizes: Sizes) -> Setting:
    present = attention_choice(config.head_dim).many
    return Setting(
        f"attention_choice({config.head_dim}).many",
        "attend",
        present,
        {
            "rows": (64, 128, 256),
            "keys": (32, 64, 128),
            "split": (512, 1024, 2048, 8192),
            "warps": (4, 8, 16),
            "stages": (1, 2, 3, 4),
        },
        tuple(named("prefill", chunk(config, *each)) for each in sizes.chunks),
        (replace(present, rows=64, keys=64, warps=4, stages=2),),
        sensible,
        MOVES["many"],
    )


def invariant(config: ModelConfig, sizes: Sizes) -> Setting:
    return Setting(
        f"attention_choice({config.head_dim}, batch_invariant=True)",
        "attend",
        attention_choice(config.head_dim, batch_invariant=True).few,
        {
            "rows": (16, 32, 64, 128),
            "keys": (32, 64, 128),
            "split": (512, 1024, 2048),
            "warps": (2, 4, 8),
            "stages": (2, 3, 4),
        },
        (
            named("decode", decode(config, *sizes.decode[0])),
            named("prefill", chunk(config, *sizes.chunks[0])),
        ),
        sensible=sensible,
        moves=MOVES["invariant"],
    )


def sensible(tiles: AttentionTiles) -> bool:
    """Some 32 scores a thread, and no more registers than there are."""
    return tiles.keys <= tiles.split and 4 <= tiles.rows * tiles.keys / (32 * tiles.warps) <= 256


def named(what: str, case: Case) -> Case:
    """Its shape says what is computed."""
    return replace(case, shape=f"{what} {case.shape}")
