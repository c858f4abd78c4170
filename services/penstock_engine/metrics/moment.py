"""What the engine core's figures are read of."""

from __future__ import annotations

from functools import cached_property

from penstock.metrics.vllm_names import cache_config
from penstock_engine.core import EngineCore
from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.states import SequenceState


class Moment:
    """A core in its loop's own turn, and what several figures are made of.

    planning, applying: seconds that the core's own work has taken.
    """

    def __init__(self, core: EngineCore, now: float, planning: float, applying: float) -> None:
        self.core, self.now = core, now
        self.planning, self.applying = planning, applying
        self.state = core.state
        self.counts = core.state.counts
        self.scheduler = core.state.scheduling
        self.cache, self.pool = self.scheduler.cache, self.scheduler.pool
        self.host = None if self.cache is None else self.cache.host
        self.adapters, self.media = core.state.adapters, core.state.media
        self.workers, self.kept_answers = core.state.workers, core.state.kept_answers
        self.debts = self.scheduler.policy.debts()

    @property
    def waiting_tokens(self) -> int:
        """Tokens of sequences that wait, for a slot or for something of their own."""
        parked = self.media.part_of().tokens + self.adapters.part_of().tokens
        return self.scheduler.queue.num_tokens + self.state.grammars.waiting_tokens + parked

    @property
    def oldest_waiting(self) -> float:
        """Seconds since the first of those was accepted that wait and have been given nothing."""
        oldest = self.now
        for request in self.state.frontends.requests():
            if request.accepted < oldest and any(map(_waits, request.sequences.values())):
                oldest = request.accepted
        return self.now - oldest

    @property
    def blocks(self) -> dict[str, int]:
        """KV blocks by state."""
        kept = 0 if self.cache is None else self.cache.num_kept
        free, total = (0, 0) if self.pool is None else (self.pool.num_free, self.pool.num_blocks)
        return {"free": free - kept, "used": total - free, "cached": kept}

    @property
    def used_fraction(self) -> float:
        """Fraction of KV blocks in use."""
        blocks = self.blocks
        return blocks["used"] / (sum(blocks.values()) or 1)

    @property
    def host_blocks(self) -> dict[str, int]:
        """Blocks of the host tier by state."""
        used, total = (0, 0) if self.host is None else (self.host.num_used, self.host.num_blocks)
        return {"free": total - used, "used": used}

    @property
    def swapped(self) -> dict[str, int]:
        """KV blocks that were copied to the host tier, and back."""
        out, back = self.counts.swapped_out, self.counts.swapped_in
        if self.cache is not None:
            out, back = out + self.cache.num_swapped_out, back + self.cache.num_swapped_in
        return {"out": out, "in": back}

    @property
    def cache_config(self) -> tuple[str, ...]:
        """Values of the labels that describe the KV cache."""
        return cache_config(
            self.scheduler.block_size,
            0 if self.pool is None else self.pool.num_blocks,
            0 if self.host is None else self.host.num_blocks,
            self.state.facts.config.cache.enable_prefix_caching,
        )

    @property
    def step_parts(self) -> dict[str, float]:
        """Seconds of steps by what they went into."""
        return {
            "plan": self.planning,
            "apply": self.applying,
            "compute": self.workers.compute_seconds,
            "dispatch": self.counts.dispatch_seconds,
        }

    @property
    def encoder_rows(self) -> dict[str, int]:
        """Rows of the encoder cache by state."""
        encodings = self.media.encodings
        return {"used": encodings.used, "free": encodings.capacity - encodings.used}

    @property
    def audits(self) -> dict[str, int]:
        """Audits by result."""
        audits = self.state.audits
        equal, different = (0, 0) if audits is None else (audits.equal, audits.different)
        return {"equal": equal, "different": different}

    @cached_property
    def open_requests(self) -> dict[str, int]:
        """Open requests by tenant; all tenants that are counted."""
        found = dict.fromkeys(self.counts.prompt_tokens, 0)
        for tenant, count in self.state.frontends.open_requests.by_tenant().items():
            found[self.counts.label(tenant)] += count
        return found

    @property
    def generation_tokens(self) -> dict[str, int]:
        """Generated tokens by tenant."""
        found = dict(self.counts.generation_tokens)
        for request in self.state.frontends.requests():
            found[self.counts.label(request.tenant)] += _generated(request)
        return found

    @property
    def tenant_debts(self) -> dict[str, float] | None:
        """Debts by tenant (Policy.debts), of several under one name the highest. None: the policy
        keeps no accounts."""
        if self.debts is None:
            return None
        found = dict.fromkeys(self.open_requests, 0.0)
        for tenant, debt in self.debts.items():
            name = self.counts.label(tenant)
            found[name] = max(debt, found[name])
        return found


def _waits(sequence: Sequence) -> bool:
    idle = sequence.state is not SequenceState.RUNNING and not sequence.finished
    return idle and not sequence.num_generated


def _generated(request: Request) -> int:
    """Tokens of those of its sequences that have not been counted for good."""
    return sum(s.num_generated for s in request.sequences.values() if not s.finished)
