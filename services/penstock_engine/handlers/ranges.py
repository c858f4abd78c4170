"""Numbers and token ids within their bounds: of requests, and of what workers say of themselves."""

from __future__ import annotations

import math
from collections.abc import Collection

from penstock.errors import InvalidRequest
from penstock.model.kv_layout import MAX_GROUPS, KVGroup, state_of
from penstock.protocol.from_worker import Ready
from penstock_engine.kv.pool import MAX_BLOCKS

MAX_COUNT = 2**31 - 1


def check_ids(name: str, ids: Collection[int], vocab_size: int) -> None:
    """Raises InvalidRequest for an id that the vocabulary lacks."""
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        bad = next(token for token in ids if not 0 <= token < vocab_size)
        raise InvalidRequest(
            f"{name}: token id {bad} is not in the vocabulary, 0 to {vocab_size - 1}", param=name
        )


def check_number(name: str, value: float, low: float, high: float) -> None:
    """Raises InvalidRequest for a number that isn't finite, or out of range."""
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidRequest(f"{name} must be in {low:g} to {high:g}, not {value!r}", param=name)


def check_whole(name: str, value: int, low: int, high: int) -> None:
    """Raises InvalidRequest for a number out of range."""
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be in {low} to {high}, not {value}", param=name)


def wrong_ready(ready: Ready, block_size: int) -> str | None:
    """What is wrong with it; None: nothing. block_size: tokens."""
    if not 1 <= ready.num_kv_blocks <= MAX_BLOCKS:
        return f"a pool has 1 to {MAX_BLOCKS} KV blocks, not {ready.num_kv_blocks}"
    if not 0 <= ready.num_host_blocks <= MAX_BLOCKS:
        return f"a host tier has 0 to {MAX_BLOCKS} blocks, not {ready.num_host_blocks}"
    if not 0 <= ready.media_rows <= MAX_COUNT:
        return f"an encoder cache has 0 to {MAX_COUNT} rows, not {ready.media_rows}"
    if ready.media_bytes < 0:
        return f"a worker holds 0 bytes of prepared items or more, not {ready.media_bytes}"
    if not 0 <= ready.encoder_rows <= ready.media_rows:
        return (
            f"a worker's prompts begin with 0 to {ready.media_rows} rows of an encoder, not "
            f"{ready.encoder_rows}"
        )
    return wrong_groups(ready.kv_groups, block_size)


def wrong_groups(groups: tuple[KVGroup, ...], block_size: int) -> str | None:
    """Returns the fault of a worker's KV groups; None if there is none."""
    if not 1 <= len(groups) <= MAX_GROUPS:
        return f"a model has 1 to {MAX_GROUPS} KV groups, not {len(groups)}"
    spans = [span for group in groups for span in (group.window, group.chunk) if span is not None]
    if spans and min(spans) < 1:
        return f"a KV group sees 1 token or more, not {min(spans)}"
    states = [group for group in groups if group.every is not None]
    if not states:
        return None
    state = state_of(groups)
    if len(states) > 1 or state is None or len(groups) == 1:
        return "recurrent layers are one KV group, the last, behind those with keys and values"
    every = state.every or 0
    if every < 1 or every % block_size or not 1 <= state.blocks <= MAX_BLOCKS:
        return (
            f"checkpoints are {every} tokens apart, in {state.blocks} blocks each: it has to be a"
            f" multiple of {block_size} tokens, and 1 to {MAX_BLOCKS} blocks"
        )
    return None
