"""Loads a model onto the CPU: weights, and a KV cache in the memory that is left."""

from __future__ import annotations

from penstock.errors import StartupError
from penstock.process.start_phases import START
from penstock.protocol.to_worker import Setup
from penstock_worker.forward.interface import Forward, Recipe
from penstock_worker.machine.memory import mib, pool_blocks
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.states.planning import planned_bytes


def load_on_host(recipe: Recipe, setup: Setup, ranks: Ranks = ALONE) -> tuple[Forward, int, int]:
    """Returns (the forward pass, its number of KV blocks, that of the host tier)."""
    START.passed("reading headers")
    try:
        with_blocks = recipe.build()
    except (MemoryError, RuntimeError) as error:
        raise StartupError(f"not enough memory for the weights: {error}") from error
    START.passed("weights read and laid out", reads=True)
    own = 0 if recipe.states is None else recipe.states.own_blocks
    states = planned_bytes(recipe.states, setup) + own * recipe.block_bytes
    media = 0 if recipe.media is None else recipe.media.nbytes
    adapters = 0 if recipe.adapters is None else recipe.adapters.nbytes
    blocks = pool_blocks(setup, recipe.block_bytes, recipe.kv_groups, states, media, adapters)
    host_blocks = setup.host_kv_bytes // recipe.block_bytes
    blocks, host_blocks = ranks.least([blocks, host_blocks])
    try:
        forward = with_blocks(blocks + own)
    except (MemoryError, RuntimeError) as error:
        also = f" and {mib(states)} of states" if states else ""
        raise StartupError(f"not enough memory for {blocks} KV blocks{also}: {error}") from error
    START.passed("KV cache")
    return forward, blocks, host_blocks
