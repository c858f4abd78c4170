"""What a model's recurrent layers need of the KV pool and of memory, known before it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.model.config import ModelConfig
from penstock.model.kv_layout import (
    KVGroup,
    state_bytes,
    state_copies,
    state_of,
    state_results,
    state_sizes,
    with_states,
)
from penstock.protocol.to_worker import Setup
from penstock_worker.forward.interface import Unable
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.shard import Shard, shard_of
from penstock_worker.states.live_states import LiveStates
from penstock_worker.states.program_states import ProgramStates
from penstock_worker.states.slot_states import SlotStates
from penstock_worker.states.snapshots import num_snapshots


def groups_with_states(
    config: ModelConfig,
    groups: tuple[KVGroup, ...],
    block_bytes: int,
    setup: Setup,
    place: RankPlace,
) -> tuple[KVGroup, ...]:
    """Returns the KV groups of a model that has keys and values in `groups`, on one rank. Raises
    StartupError for a setting that can't be followed, and Unable for several ranks."""
    states = state_bytes(config)
    if states and place.ranks > 1:
        raise Unable(
            f"tensor_parallel_size is {place.tensor} and pipeline_parallel_size {place.pipeline};"
            " the model has recurrent layers, of which this backend computes all on one rank"
        )
    return _with_states(groups, states, block_bytes, setup)


def groups_over_ranks(
    config: ModelConfig,
    groups: tuple[KVGroup, ...],
    block_bytes: Callable[[Shard], int],
    setup: Setup,
    place: RankPlace,
) -> tuple[KVGroup, ...]:
    """Returns what `groups_with_states` does, the same on every rank: a checkpoint takes the blocks
    that it takes on the rank that needs most. `block_bytes`: bytes of a rank's block."""
    if not state_bytes(config):
        return _with_states(groups, 0, 1, setup)
    shards = [shard_of(config, replace(place, rank=rank)) for rank in range(place.ranks)]
    sizes = [(state_bytes(shard.own), block_bytes(shard)) for shard in shards]
    states, size = max(sizes, key=lambda each: -(-each[0] // each[1]))
    return _with_states(groups, states, size, setup)


def _with_states(
    groups: tuple[KVGroup, ...], states: int, block_bytes: int, setup: Setup
) -> tuple[KVGroup, ...]:
    return with_states(
        groups,
        states,
        block_bytes=block_bytes,
        block_size=setup.block_size,
        every=setup.state_checkpoint_tokens,
    )


def slot_states(
    config: ModelConfig, groups: tuple[KVGroup, ...], setup: Setup
) -> SlotStates | None:
    """Returns the states of a model with these groups; None if it has no recurrent layers.
    `config`: of this rank's part."""
    group = state_of(groups)
    if group is None:
        return None
    return SlotStates(
        state_sizes(config),
        group,
        setup.max_num_seqs,
        state_results(config),
        snapshots_for(config, setup),
    )


def planned_bytes(states: LiveStates | None, setup: Setup) -> int:
    """Returns the most bytes that states take in addition to the pool; see
    kv_layout.state_memory."""
    if states is None:
        return 0
    copies = state_copies(setup.max_num_seqs, setup.max_num_batched_tokens)
    return states.nbytes + copies * states.copied_bytes


def program_states(
    config: ModelConfig, groups: tuple[KVGroup, ...], setup: Setup
) -> ProgramStates | None:
    """Returns what `slot_states` does, for a program of the CPU kernels."""
    group = state_of(groups)
    if group is None:
        return None
    return ProgramStates(
        state_sizes(config),
        group,
        setup.max_num_seqs,
        state_results(config),
        snapshots_for(config, setup),
    )


def snapshots_for(config: ModelConfig, setup: Setup) -> int:
    """How many snapshots of a model's states there are. `config`: of the whole model, so that all
    ranks have equally many, and draft the same."""
    asked = setup.speculation
    drafts = 0 if asked is None else asked.num_speculative_tokens
    return num_snapshots(drafts, setup.max_num_seqs, state_bytes(config))
