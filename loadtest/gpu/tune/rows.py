"""Blocks and warps of kernels that go row by row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from loadtest.gpu.parts.kernels_rows import asking
from loadtest.gpu.tune.products import drawn
from loadtest.gpu.tune.settings import Bench, Case, Setting, Sizes
from penstock.model_config import ModelConfig
from penstock_kernels import reference
from penstock_kernels.reference.sampling import SamplingCuts
from penstock_kernels.triton import tiles as present
from penstock_kernels.triton.rowwise.gated import silu_mul
from penstock_kernels.triton.rowwise.rms_norm import rms_norm
from penstock_kernels.triton.sampling.argmax import argmax
from penstock_kernels.triton.sampling.sample import sample_rows
from penstock_kernels.triton.tiles import PartTiles

TEMPERATURE, TOP_K, TOP_P = 0.8, 50, 0.95
COMPARED = 16
"""Drawn rows that are held against the reference, on the host."""


@dataclass(frozen=True)
class Warps:
    warps: int


@dataclass(frozen=True)
class Block:
    block: int
    warps: int


@dataclass(frozen=True)
class Part:
    part: int
    block: int
    warps: int


def norm(config: ModelConfig, sizes: Sizes) -> Setting:
    size, eps = config.hidden_size, config.rms_norm_eps

    def case(rows: int) -> Case:
        def make(device: torch.device) -> Bench:
            x, weight = drawn(device, rows, size), drawn(device, size)
            return Bench(
                lambda tiles: lambda: rms_norm(x, weight, eps, warps=tiles.warps),
                lambda: functional.rms_norm(x.float(), (size,), weight.float(), eps),
            )

        return Case(f"{rows} x {size}", make, size=2 * (2 * rows * size + size))

    block = present.row_block(size)
    now = Warps(present.row_warps(block))
    return Setting(
        f"row_warps({block})",
        "_rms_norm",
        now,
        {"warps": (1, 2, 4, 8, 16)},
        tuple(map(case, sizes.rows)),
        moves={
            "warps": f"row_warps({block}) serves layer_norm and quantise_fp8 too, and a change of "
            "its rule other rows"
        },
    )


def gate(config: ModelConfig, sizes: Sizes) -> Setting:
    size = config.intermediate_size

    def case(rows: int) -> Case:
        def make(device: torch.device) -> Bench:
            both = drawn(device, rows, 2 * size)
            return Bench(
                lambda tiles: lambda: silu_mul(both, block=tiles.block, warps=tiles.warps),
                lambda: functional.silu(both[:, :size].float()) * both[:, size:].float(),
            )

        return Case(f"{rows} x {size}", make, size=2 * 3 * rows * size)

    return Setting(
        "GATE_BLOCK, GATE_WARPS",
        "_gate_mul",
        Block(present.GATE_BLOCK, present.GATE_WARPS),
        {"block": (256, 512, 1024, 2048, 4096), "warps": (1, 2, 4, 8)},
        tuple(map(case, sizes.rows)),
        moves={
            "block": "GATE_BLOCK serves gelu_mul and the activations without a gate too",
            "warps": "GATE_WARPS serves gelu_mul and the activations without a gate too",
        },
    )


def sampled(config: ModelConfig, sizes: Sizes) -> Setting:
    rows, vocab = sizes.sampled_rows, config.vocab_size

    def make(device: torch.device) -> Bench:
        logits = 4 * torch.randn(rows, vocab, device=device)
        asked = asking(rows, TEMPERATURE, TOP_K, TOP_P, device)
        return Bench(
            lambda tiles: (
                lambda: sample_rows(
                    logits, asked, tiles=PartTiles(tiles.part, tiles.block, tiles.warps)
                )
            ),
            lambda: drawn_tokens(logits[:COMPARED].cpu()).to(device),
            lambda tokens: tokens[:COMPARED],
            exact=True,
        )

    return Setting(
        "SAMPLING_PART, SAMPLING_BLOCK, SAMPLING_WARPS",
        "_sample",
        Part(present.SAMPLING_PART, present.SAMPLING_BLOCK, present.SAMPLING_WARPS),
        {"part": (4096, 8192, 16_384), "block": (1024, 2048, 4096), "warps": (4, 8, 16, 32)},
        (Case(f"top-k, top-p, {rows} x {vocab}", make, size=4 * rows * vocab),),
        moves={
            "block": "SAMPLING_BLOCK also is log_probs'",
            "warps": "SAMPLING_WARPS also is log_probs'",
        },
    )


def drawn_tokens(logits: Tensor) -> Tensor:
    """What the reference draws, on the host."""
    rows = len(logits)
    draws = reference.uniform(list(range(rows)), [0] * rows, [0] * rows)
    cuts = SamplingCuts(TEMPERATURE, TOP_K, TOP_P)
    pairs = zip(logits, draws, strict=True)
    return torch.tensor([reference.sample_row(row, cuts, draw) for row, draw in pairs])


def greedy(config: ModelConfig, sizes: Sizes) -> Setting:
    rows, vocab = sizes.sampled_rows, config.vocab_size

    def make(device: torch.device) -> Bench:
        logits = torch.randn(rows, vocab, device=device)
        return Bench(
            lambda tiles: (
                lambda: argmax(logits, part=tiles.part, block=tiles.block, warps=tiles.warps)
            ),
            lambda: logits.argmax(-1),
            exact=True,
        )

    return Setting(
        "ARGMAX_PART, ARGMAX_BLOCK, ARGMAX_WARPS",
        "_parts",
        Part(present.ARGMAX_PART, present.ARGMAX_BLOCK, present.ARGMAX_WARPS),
        {
            "part": (4096, 8192, 16_384, 32_768),
            "block": (1024, 2048, 4096),
            "warps": (4, 8, 16),
        },
        (Case(f"{rows} x {vocab}", make, size=4 * rows * vocab),),
    )
