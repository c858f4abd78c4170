"""Handles a worker's messages about its disk tier, the sequences that wait for it, and blocks that
are fetched before their request comes."""

from __future__ import annotations

from penstock.protocol.from_worker import FetchedKV, FoundKV
from penstock_engine.core_state import CoreState
from penstock_engine.kv.retention import KVSession
from penstock_engine.request.request import Request


class Prefetcher:
    """Brings KV blocks back: from the host tier at once, as a copy in the next step; from disk
    concurrently with steps.

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


class DiskKVHandler:
    """Lets sequences go when what they wait for has come, or isn't going to."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._prefetcher = Prefetcher(state)

    def answered(self, message: FoundKV | FetchedKV, rank: int) -> None:
        """Handles an answer of the store. Raises UnfitAnswer for one that wasn't asked for."""
        disk = self._state.disk_kv
        if isinstance(message, FoundKV):
            fetch = disk.found(message, rank)
        else:
            fetch = disk.fetched(message, rank)
        if fetch is None:
            return
        if fetch.early:
            self._state.counts.prefetched["disk"] += len(fetch.names)
        if fetch.session is not None and fetch.names:
            self._prefetcher.hold(fetch.session, list(fetch.wanted.prefix))
        tokens = fetch.gained * self._state.scheduling.block_size
        if fetch.prompt is None:
            self._let_go(fetch.requests, tokens)
        else:
            self._ask_again(fetch.requests, tokens)

    def worker_lost(self) -> None:
        """Ends all waiting for KV blocks: the worker that was to read them is lost."""
        self._let_go(self._state.disk_kv.worker_lost())

    def _ask_again(self, requests: list[Request], tokens: int) -> None:
        """Asks for the rest of the prompts of requests that came while some of their blocks were
        being fetched."""
        disk, now = self._state.disk_kv, self._state.clock.now
        for request in requests:
            waiting = self._state.remote_kv.waiting(request)
            if all(disk.ask(sequence, now) is None for sequence in waiting):
                self._let_go([request], tokens)
                continue
            for sequence in waiting:
                if sequence.timeline is not None:
                    sequence.timeline.stored_tokens += tokens

    def _let_go(self, requests: list[Request], tokens: int = 0) -> None:
        """tokens: of the prompt, whose KV has come."""
        for request in requests:
            for sequence in self._state.remote_kv.arrived(request):
                if sequence.timeline is not None:
                    sequence.timeline.stored_tokens += tokens
                self._state.enter(sequence)
