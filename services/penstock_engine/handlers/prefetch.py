"""Brings what a session will want, shortly before it is expected, and what prompts will want that
another engine core computes first."""

from __future__ import annotations

from penstock_engine.core_state import CoreState
from penstock_engine.kv.retention import KVSession


class Prefetcher:
    """Brings KV blocks back: from the host tier at once, as a copy that the next step makes; from
    disk beside the steps.

    What is brought back is kept for the session, and free as all that is. A prompt's blocks are
    free without being kept.
    """

    def __init__(self, state: CoreState) -> None:
        self._state = state

    def advance(self, now: float) -> None:
        """Brings the blocks of those whose time has come."""
        for session, keys in self._state.kv_sessions.due(now):
            self._bring(session, keys)
        for prompt in self._state.expected_prompts.due(now):
            if not self._state.plans_nothing:
                self._state.disk_kv.pull(prompt)

    def _bring(self, session: KVSession, keys: list[bytes]) -> None:
        state = self._state
        cache = state.scheduling.cache
        if cache is None or state.plans_nothing:
            return
        before = cache.num_swapped_in
        self.hold(session, keys)
        state.counts.prefetched["host"] += cache.num_swapped_in - before
        state.disk_kv.prefetch(session, keys)

    def hold(self, session: KVSession, keys: list[bytes]) -> None:
        """Keeps for the session what of these blocks is in memory, from the first one on."""
        scheduling = self._state.scheduling
        cache, groups = scheduling.cache, scheduling.kv_groups
        if cache is None:
            return
        room = min(cache.pool.num_free // 2, cache.retention.limit)
        match = groups.match(cache, keys)
        while match.taken > room and match.blocks:
            match = groups.match(cache, keys[: max(0, match.blocks - (match.taken - room))])
        if match.blocks:
            groups.claim(cache, keys[: match.blocks]).release(cache, session)
