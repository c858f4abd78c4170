"""What the core counts while it works. Plain numbers: no clock, no lock, nothing that decides.

What needs a count for each token is not here: it is summed up from the open requests when somebody
asks, and counted for good when a sequence ends.
"""

from __future__ import annotations

from typing import Any, get_args

from penstock.metrics.histogram import Histogram
from penstock.metrics.vllm_names import STEP_TOKENS
from penstock.protocol.common import FinishReason
from penstock_engine.parts import ReportsStatus
from penstock_engine.policies.tenants import ANONYMOUS

MAX_TENANTS = 100
"""Tenants that are counted by name: the first that came. The rest is `other`."""
OTHER = "other"

STEP_SECONDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0),
)
RECOVERY_SECONDS = (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 7.5, 10, 15, 20, 30, 60, 120, 300)
SEQUENCES = tuple(float(2**power) for power in range(13))
DRAFT_PLACES = 16
REJECTIONS = ("invalid", "overloaded", "unavailable", "limited")


class EngineCounts(ReportsStatus):
    """Since the process began. Seconds are of the core's clock.

    dispatch_seconds: of steps beyond what the worker computed.  swapped_out, swapped_in: blocks, of
    workers that are gone.  disk_blocks_read, disk_blocks_missed: that were read from the tier on
    disk, and that were found there and could not be.  prefetched: blocks that came before their
    session, or their prompt, did, by where they were.  prompt_tokens, generation_tokens: by tenant;
    of requests that were accepted here first, and of sequences that have ended.  media_encoded,
    media_found: items of prompts that were encoded, and whose encoding was there or not needed;
    media_bytes: of items that were sent to workers.  drafts: works on a sequence that had drafted
    tokens; drafted_tokens, kept_tokens: of these, all and those that were right; kept_at: the
    latter by their place in the draft, the last one standing for all after it.  adapters_loaded,
    adapters_failed: by workers; adapter_seconds: that the former took together.
    handed_over: requests that another engine core goes on with, as this one drains.
    """

    def __init__(self) -> None:
        self.step_seconds = Histogram(STEP_SECONDS)
        self.step_sequences = Histogram(SEQUENCES)
        self.iteration_tokens = Histogram(STEP_TOKENS)
        self.recovery_seconds = Histogram(RECOVERY_SECONDS)
        self.dispatch_seconds = 0.0
        self.ended: dict[str, int] = dict.fromkeys(get_args(FinishReason), 0)
        self.rejected: dict[str, int] = dict.fromkeys(REJECTIONS, 0)
        self.resumed = self.handed_over = 0
        self.worker_deaths = 0
        self.media_encoded = self.media_found = self.media_bytes = 0
        self.adapters_loaded = self.adapters_failed = 0
        self.adapter_seconds = 0.0
        self.swapped_out = self.swapped_in = 0
        self.disk_blocks_read = self.disk_blocks_missed = 0
        self.prefetched = {"host": 0, "disk": 0}
        self.drafts = self.drafted_tokens = self.kept_tokens = 0
        self.kept_at = [0] * DRAFT_PLACES
        self.prompt_tokens: dict[str, int] = {}
        self.generation_tokens: dict[str, int] = {}
        self._dispatch = 0.0
        self._lost_at: float | None = None

    def status(self) -> dict[str, Any]:
        """Returns the counts in the status that front ends get: fields of Status."""
        return {
            "step_tokens": self.iteration_tokens.counts,
            "media_items_encoded": self.media_encoded,
            "media_items_found": self.media_found,
            "media_bytes": self.media_bytes,
            "drafts": self.drafts,
            "drafted_tokens": self.drafted_tokens,
            "kept_tokens": self.kept_tokens,
        }

    def settled(self, tokens: int, sequences: int, whole: float, computed: float) -> None:
        """A step was applied that took `whole` seconds, `computed` of them in the worker."""
        self.step_seconds.observe(whole)
        self.step_sequences.observe(sequences)
        self.iteration_tokens.observe(tokens)
        # Two results in one turn: the second's time is too short by what the first's is too long.
        self._dispatch += whole - computed
        if self._dispatch > self.dispatch_seconds:
            self.dispatch_seconds = self._dispatch

    def drafted(self, tokens: int, kept: int) -> None:
        """Counts that so many tokens were drafted for a sequence, of which the first `kept` were
        right."""
        self.drafts += 1
        self.drafted_tokens += tokens
        self.kept_tokens += kept
        for place in range(kept):
            self.kept_at[min(place, DRAFT_PLACES - 1)] += 1

    def lost(self, now: float) -> None:
        """A worker is gone."""
        self.worker_deaths += 1
        if self._lost_at is None:
            self._lost_at = now

    def recovered(self, now: float) -> None:
        """Steps get done again, or could if there were work; or they always have."""
        if self._lost_at is not None:
            self.recovery_seconds.observe(now - self._lost_at)
            self._lost_at = None

    def adapter_loaded(self, seconds: float) -> None:
        """Workers have loaded an adapter."""
        self.adapters_loaded += 1
        self.adapter_seconds += seconds

    def accepted(self, tenant: str, prompt: int, *, resumed: bool) -> None:
        """A request was. One that is resumed has been counted where it was accepted first."""
        self.resumed += resumed
        name = self.label(tenant)
        self.prompt_tokens[name] += 0 if resumed else prompt

    def closed(self, reason: FinishReason, *, handed_over: bool) -> None:
        """The last of a request has ended, or goes on at another engine core."""
        if handed_over:
            self.handed_over += 1
        else:
            self.ended[reason] += 1

    def generated(self, tenant: str, tokens: int) -> None:
        """Counts the tokens that a sequence of a tenant has generated here, when it has ended."""
        self.generation_tokens[self.label(tenant)] += tokens

    def label(self, tenant: str) -> str:
        """What a tenant is called: its name, while there is room for one more."""
        name = tenant or ANONYMOUS
        if name not in self.prompt_tokens:
            if len(self.prompt_tokens) >= MAX_TENANTS:
                name = OTHER
            self.prompt_tokens.setdefault(name, 0)
            self.generation_tokens.setdefault(name, 0)
        return name
