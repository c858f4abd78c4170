"""Checks what a core's tables say of checkpoints of recurrent states. For `audit`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.checkpoints import Checkpoints
from penstock_engine.kv.groups import KVGroups
from penstock_engine.kv.pool import BrokenState
from penstock_engine.kv.table import BlockTable
from penstock_engine.request.request import Sequence as Running


def check_checkpoints(cache: KVCache, groups: KVGroups, sequence: Running) -> None:
    """Raises BrokenState unless a sequence that has a table holds its newest checkpoint and those
    that there is room for, each block of them once; and unless they are named by the tokens that
    they stand for, at multiples of the rule's number, where they have been computed."""
    table = sequence.table
    states = None if table is None else table.checkpoints
    where = f"sequence {sequence.index} of {sequence.request.name}"
    if table is None or (states is None and groups.states is None):
        return
    if states is None or groups.states is None or states.rule is not groups.states:
        raise BrokenState(f"{where} has checkpoints of another model")
    _check_held(states, table, where)
    held = table.blocks
    if len(set(held)) != len(held):
        raise BrokenState(f"{where} holds a KV block twice")
    if states.tokens_found > sequence.progress.computed:
        raise BrokenState(f"{where} goes on behind {states.tokens_found} tokens, not that far")
    for blocks, names in _contents(states, sequence, table.block_size):
        _check_blocks(cache, blocks, names, where)


def _check_held(states: Checkpoints, table: BlockTable, where: str) -> None:
    rule = states.rule
    newest = states.next_number - 1
    if newest != rule.last(table.length):
        raise BrokenState(
            f"{where} has room for checkpoint {rule.last(table.length)}, not {newest}"
        )
    if any(len(blocks) != rule.pieces for blocks in states.held):
        raise BrokenState(f"{where} has a checkpoint of other than {rule.pieces} blocks")


def _contents(
    states: Checkpoints, sequence: Running, block_size: int
) -> Iterator[tuple[Sequence[int], Sequence[bytes]]]:
    """(blocks of a checkpoint, their names, or none where it isn't written)."""
    rule, start = states.rule, states.tokens_found
    for number, blocks in zip(states.numbers(), states.held, strict=True):
        tokens = number * rule.every * block_size
        if number == states.found and start:
            tokens = start
        written = tokens <= max(start, sequence.num_published * block_size)
        key = sequence.key_at(tokens, block_size) if written else b""
        yield blocks, list(rule.names(key)) if written else ()
    tail = states.tail
    if tail is not None:
        if tail.key != sequence.key_at(tail.tokens, block_size):
            raise BrokenState(f"the tail behind {tail.tokens} tokens is named by other tokens")
        yield tail.blocks + tail.partial, ()


def _check_blocks(
    cache: KVCache, blocks: Sequence[int], names: Sequence[bytes], where: str
) -> None:
    for at, block in enumerate(blocks):
        name = cache.key_of(block)
        if not names and (name is not None or cache.pool.num_owners(block) != 1):
            raise BrokenState(f"{where}: KV block {block} is to be written, and is others' as well")
        if names and name not in (None, names[at]):
            raise BrokenState(f"{where}: KV block {block} has the name of other tokens' state")
