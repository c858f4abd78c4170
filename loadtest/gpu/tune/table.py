"""Everything that is tried: the kernels whose tiles are a choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from loadtest.gpu.extent import DRY_TILES, GPU_TILES, TileSizes
from loadtest.gpu.parts import kernels_rows as by_row
from loadtest.gpu.parts.cases import Bench, Case
from loadtest.gpu.parts.kernels_attention import chunk, decode
from loadtest.gpu.shapes import MODELS
from loadtest.gpu.tune import NAMES
from loadtest.gpu.tune.products import products
from loadtest.gpu.tune.settings import Candidate, Setting, ordered
from penstock.model_config import ModelConfig
from penstock_kernels.triton import tiles as now
from penstock_kernels.triton.sampling.argmax import argmax
from penstock_kernels.triton.tiles import AttentionTiles, PartTiles


def all_candidates(names: Iterable[str], *, dry: bool) -> list[Candidate]:
    """Of the kernels of these names, in order, and the same in every process."""
    sizes = DRY_TILES if dry else GPU_TILES
    table = settings(MODELS[sizes.model], sizes)
    return ordered([(name, table[name]) for name in NAMES if name in names], sizes.candidates)


def settings(config: ModelConfig, sizes: TileSizes) -> dict[str, Setting]:
    """By the names of NAMES."""
    return attention(config, sizes) | products(config, sizes) | rows(config, sizes)


def attention(config: ModelConfig, sizes: TileSizes) -> dict[str, Setting]:
    dim = config.head_dim
    mixed = now.attention_choice(dim)
    decodes = [named("decode", decode(config, *each)) for each in sizes.decode]
    chunks = [named("prefill", chunk(config, *each)) for each in sizes.chunks]
    found = {
        "decode-attention": Setting(
            f"attention_choice({dim}).few",
            "attend",
            mixed.few,
            {
                "rows": (16, 32),
                "keys": (16, 32, 64, 128),
                "split": (256, 512, 1024, 2048),
                "warps": (1, 2, 4, 8),
                "stages": (2, 3, 4, 5, 6),
            },
            tuple(decodes),
            turns=4,
        ),
        "prefill-attention": Setting(
            f"attention_choice({dim}).many",
            "attend",
            mixed.many,
            {
                "rows": (64, 128, 256),
                "keys": (32, 64, 128),
                "split": (0, 512, 2048, 8192),
                "warps": (4, 8, 16),
                "stages": (1, 2, 3, 4, 5, 6),
            },
            tuple(chunks),
            (
                replace(mixed.many, keys=64, split=512),
                replace(mixed.many, rows=64, keys=64, warps=4),
            ),
            turns=3,
        ),
        "invariant-attention": Setting(
            f"attention_choice({dim}, batch_invariant=True)",
            "attend",
            now.attention_choice(dim, batch_invariant=True).few,
            {
                "rows": (16, 32, 64, 128),
                "keys": (32, 64, 128),
                "split": (512, 1024, 2048),
                "warps": (2, 4, 8),
                "stages": (2, 3, 4, 5, 6),
            },
            (decodes[0], chunks[0]),
            turns=2,
        ),
    }
    shared = (
        "few and batch_invariant share keys for every head_dim <= 128, all share STAGES, "
        "and KEY_SPLIT, the least context of a decode graph, for every one; "
        "rows and warps serve other head_dims too"
    )
    return {name: replace(each, sensible=few_scores, shared=shared) for name, each in found.items()}


def few_scores(tiles: AttentionTiles) -> bool:
    """Some 32 scores a thread, and no more registers than there are."""
    fits = tiles.split == 0 or tiles.keys <= tiles.split
    return fits and 4 <= tiles.rows * tiles.keys / (32 * tiles.warps) <= 256


def named(what: str, case: Case) -> Case:
    """Its shape says what is computed."""
    return replace(case, shape=f"{what} {case.shape}")


@dataclass(frozen=True)
class Warps:
    warps: int


@dataclass(frozen=True)
class Block:
    block: int
    warps: int


def rows(config: ModelConfig, sizes: TileSizes) -> dict[str, Setting]:
    """Blocks and warps of kernels that go row by row."""
    block = now.row_block(config.hidden_size)
    return {
        "gate": Setting(
            "GATE_BLOCK, GATE_WARPS",
            "_gate_mul",
            Block(now.GATE_BLOCK, now.GATE_WARPS),
            {"block": (256, 512, 1024, 2048, 4096), "warps": (1, 2, 4, 8)},
            tuple(by_row.gate(config, count) for count in sizes.rows),
            shared="both serve gelu_mul and the activations without a gate too",
        ),
        "rms-norm": Setting(
            f"row_warps({block})",
            "_rms_norm",
            Warps(now.row_warps(block)),
            {"warps": (1, 2, 4, 8, 16)},
            tuple(by_row.norm(config, count) for count in sizes.rows),
            shared=f"row_warps({block}) serves layer_norm and quantise_fp8 too, and a change of "
            "its rule other rows",
        ),
        "sampling": Setting(
            "SAMPLING_PART, SAMPLING_BLOCK, SAMPLING_WARPS",
            "_sample",
            PartTiles(now.SAMPLING_PART, now.SAMPLING_BLOCK, now.SAMPLING_WARPS),
            {"part": (4096, 8192, 16_384), "block": (1024, 2048, 4096), "warps": (4, 8, 16, 32)},
            (by_row.draw(config, sizes.sampled_rows, "top-k, top-p"),),
            shared="SAMPLING_BLOCK and SAMPLING_WARPS are log_probs' too",
        ),
        "argmax": Setting(
            "ARGMAX_PART, ARGMAX_BLOCK, ARGMAX_WARPS",
            "_parts",
            PartTiles(now.ARGMAX_PART, now.ARGMAX_BLOCK, now.ARGMAX_WARPS),
            {
                "part": (4096, 8192, 16_384, 32_768),
                "block": (1024, 2048, 4096),
                "warps": (4, 8, 16),
            },
            (greedy(config, sizes.sampled_rows),),
        ),
    }


def greedy(config: ModelConfig, rows: int) -> Case:
    vocab = config.vocab_size

    def make(device: torch.device) -> Bench:
        logits = torch.randn(rows, vocab, device=device)
        return Bench(
            lambda tiles: lambda: argmax(logits, **by_row.chosen(tiles)),
            lambda: logits.argmax(-1),
            exact=True,
        )

    return Case(f"{rows} x {vocab}", make, size=4 * rows * vocab)
