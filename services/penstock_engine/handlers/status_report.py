"""What front ends are told of this engine core, whether or not they have requests here."""

from __future__ import annotations

from penstock.protocol.to_frontend import Status
from penstock_engine.core_state import CoreState


class StatusReport:
    """Says when a Status is due, and fills it: at least every beat interval, and at once when
    readiness changes, or when the model comes to a standstill."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._due = 0.0
        self._last_health: tuple[object, ...] | None = None

    def next_deadline(self) -> float:
        """The time at which the next Status is due, even if nothing changes."""
        return self._due

    def hasten(self, now: float) -> None:
        """Makes one due at once: there is news, or somebody who has heard none."""
        self._due = now

    def take(self, now: float) -> Status | None:
        """Returns the status if one is due, else None."""
        state = self._state
        healthy, reason = state.health(now)
        paused = state.paused and state.stands_still
        health = (healthy, reason, paused, state.sleep.level, state.sleep.waking, state.asleep)
        if now < self._due and health == self._last_health:
            return None
        self._last_health = health
        self._due = now + state.facts.config.transport.beat_interval
        return self._filled(healthy=healthy, reason=reason, paused=paused)

    def _filled(self, *, healthy: bool, reason: str, paused: bool) -> Status:
        state, scheduling, workers = self._state, self._state.scheduling, self._state.workers
        ready, pool, cache, counts = workers.ready, scheduling.pool, scheduling.cache, state.counts
        return Status(
            ready=healthy,
            reason=reason,
            fingerprint=None if ready is None else ready.fingerprint,
            weights=None if ready is None else state.facts.model.digest,
            waiting=state.num_waiting,
            running=len(scheduling.running),
            blocks_total=0 if pool is None else pool.num_blocks,
            blocks_free=0 if pool is None else pool.num_free,
            block_size=scheduling.block_size,
            steps=scheduling.num_steps,
            preemptions=scheduling.num_preemptions,
            blocks_cached=0 if cache is None else cache.num_cached,
            compute_seconds=round(workers.compute_seconds, 6),
            tokens_computed=workers.tokens_computed,
            tokens_generated=workers.tokens_generated,
            frontends=len(state.frontends),
            workers=workers.num_ready,
            draining=state.draining,
            hands_over=state.drain.hands_over,
            step_tokens=counts.iteration_tokens.counts,
            host_blocks=0 if cache is None else cache.num_host_blocks,
            prefix_caching=state.facts.config.cache.enable_prefix_caching,
            media_items_encoded=counts.media_encoded,
            media_items_found=counts.media_found,
            media_bytes=counts.media_bytes,
            drafts=counts.drafts,
            drafted_tokens=counts.drafted_tokens,
            kept_tokens=counts.kept_tokens,
            aligns=ready is None or ready.aligns,
            paused=paused,
            sleeping=state.sleep.level,
            asleep=state.asleep,
            waking=state.sleep.waking,
            missing=tuple(workers.ranks.missing),
        )
