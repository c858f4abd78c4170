"""Blocks and warps of kernels that go row by row."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from loadtest.gpu.parts import kernels_rows
from loadtest.gpu.parts.cases import Bench, Case
from loadtest.gpu.parts.kernels_rows import chosen
from loadtest.gpu.tune.settings import Setting, Sizes
from penstock.model_config import ModelConfig
from penstock_kernels.triton import tiles as present
from penstock_kernels.triton.sampling.argmax import argmax
from penstock_kernels.triton.tiles import PartTiles


@dataclass(frozen=True)
class Warps:
    warps: int


@dataclass(frozen=True)
class Block:
    block: int
    warps: int


def norm(config: ModelConfig, sizes: Sizes) -> Setting:
    block = present.row_block(config.hidden_size)
    return Setting(
        f"row_warps({block})",
        "_rms_norm",
        Warps(present.row_warps(block)),
        {"warps": (1, 2, 4, 8, 16)},
        tuple(kernels_rows.norm(config, rows) for rows in sizes.rows),
        moves={
            "warps": f"row_warps({block}) serves layer_norm and quantise_fp8 too, and a change of "
            "its rule other rows"
        },
    )


def gate(config: ModelConfig, sizes: Sizes) -> Setting:
    others = "serves gelu_mul and the activations without a gate too"
    return Setting(
        "GATE_BLOCK, GATE_WARPS",
        "_gate_mul",
        Block(present.GATE_BLOCK, present.GATE_WARPS),
        {"block": (256, 512, 1024, 2048, 4096), "warps": (1, 2, 4, 8)},
        tuple(kernels_rows.gate(config, rows) for rows in sizes.rows),
        moves={"block": f"GATE_BLOCK {others}", "warps": f"GATE_WARPS {others}"},
    )


def sampled(config: ModelConfig, sizes: Sizes) -> Setting:
    return Setting(
        "SAMPLING_PART, SAMPLING_BLOCK, SAMPLING_WARPS",
        "_sample",
        PartTiles(present.SAMPLING_PART, present.SAMPLING_BLOCK, present.SAMPLING_WARPS),
        {"part": (4096, 8192, 16_384), "block": (1024, 2048, 4096), "warps": (4, 8, 16, 32)},
        (kernels_rows.draw(config, sizes.sampled_rows, "top-k, top-p"),),
        moves={
            "block": "SAMPLING_BLOCK also is log_probs'",
            "warps": "SAMPLING_WARPS also is log_probs'",
        },
    )


def greedy(config: ModelConfig, sizes: Sizes) -> Setting:
    rows, vocab = sizes.sampled_rows, config.vocab_size

    def make(device: torch.device) -> Bench:
        logits = torch.randn(rows, vocab, device=device)
        return Bench(
            lambda tiles: lambda: argmax(logits, **chosen(tiles)),
            lambda: logits.argmax(-1),
            exact=True,
        )

    return Setting(
        "ARGMAX_PART, ARGMAX_BLOCK, ARGMAX_WARPS",
        "_parts",
        PartTiles(present.ARGMAX_PART, present.ARGMAX_BLOCK, present.ARGMAX_WARPS),
        {
            "part": (4096, 8192, 16_384, 32_768),
            "block": (1024, 2048, 4096),
            "warps": (4, 8, 16),
        },
        (Case(f"{rows} x {vocab}", make, size=4 * rows * vocab),),
    )
