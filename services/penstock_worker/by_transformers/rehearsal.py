"""Tests of a model of transformers before it serves, as its code is unknown here.

A sequence is computed at once, and once more in chunks with another one. If the numbers differ,
sequences aren't kept apart; if only the bits differ, the promise about them can't be made.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock_worker.attention.interface import BatchLayout, CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.by_transformers.model import LibraryModel
from penstock_worker.by_transformers.paged import LayerFacts, PagedStep

LENGTH, BESIDE = 21, 11
"""Tokens of the sequence, and of the other one."""
CHUNKS = ((1, 9), (17, 2), (3, 0))
"""The tokens of each sequence that are computed in the steps of the second time."""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Share of the largest number by which the second time may differ."""


def rehearse(model: LibraryModel, shape: CacheShape, vocab: int) -> tuple[LayerFacts, bool]:
    """Returns what was learnt of the layers, and whether the bits were the same.

    Raises UnsupportedModel for a model whose sequences aren't kept apart, or whose layers aren't
    what config.json says.
    """
    facts = LayerFacts()
    tokens, other = (torch.arange(7, 7 + count) * 7919 % vocab for count in (LENGTH, BESIDE))
    size = shape.block_size
    mine = np.arange(-(-LENGTH // size))
    others = np.arange(-(-BESIDE // size)) + len(mine)
    blocks = len(mine) + len(others)
    try:
        first = _step(model, ReferenceAttention(shape, blocks), facts, [(tokens, mine, 0)], True)
        _check_layers(facts, shape.num_layers)
        again = _in_chunks(
            model, ReferenceAttention(shape, blocks), facts, (tokens, other), (mine, others)
        )
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise UnsupportedModel(
            f"transformers' code can't be run over a paged cache: {type(error).__name__}: "
            f"{str(error)[:300]}"
        ) from error
    largest = float(first.abs().max())
    difference = float((first.float() - again.float()).abs().max())
    if not difference <= TOLERANCE.get(first.dtype, 0.1) * max(largest, 1e-6):
        raise UnsupportedModel(
            "transformers' code mixes the sequences of a step: a sequence computed in chunks next "
            f"to another one differs by {difference:.3g} from itself alone"
        )
    return facts, torch.equal(first, again)


def _in_chunks(
    model: LibraryModel,
    cache: ReferenceAttention,
    facts: LayerFacts,
    tokens: tuple[Tensor, Tensor],
    tables: tuple[np.ndarray, np.ndarray],
) -> Tensor:
    found, starts = [], [0, 0]
    for counts in CHUNKS:
        parts = [
            (tokens[at][starts[at] : starts[at] + counts[at]], tables[at], starts[at])
            for at in (1, 0)
            if counts[at]
        ]
        found.append(_step(model, cache, facts, parts, False)[-counts[0] :])
        starts = [start + count for start, count in zip(starts, counts, strict=True)]
    return torch.cat(found)


def _step(
    model: LibraryModel,
    cache: ReferenceAttention,
    facts: LayerFacts,
    parts: list[tuple[Tensor, np.ndarray, int]],
    learning: bool,
) -> Tensor:
    layout = BatchLayout(
        [table for _, table, _ in parts],
        np.array([start for _, _, start in parts]),
        np.array([len(tokens) for tokens, _, _ in parts]),
    )
    step = PagedStep(cache.plan(layout), cache.shape, facts, lambda: None, learning)
    tokens = torch.cat([tokens for tokens, _, _ in parts])
    positions = torch.from_numpy(layout.positions)
    return model.outputs(tokens, positions, step, torch.arange(len(tokens)))


def _check_layers(facts: LayerFacts, layers: int) -> None:
    if sorted(facts.windows) != list(range(layers)):
        raise UnsupportedModel(
            f"attention goes through the interface in {len(facts.windows)} layers, and config.json "
            f"says {layers}"
        )
