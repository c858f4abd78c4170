"""Who is let in. A request that had been accepted before always is."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock.protocol.from_frontend import Submit
from penstock.protocol.to_frontend import Rejected
from penstock_engine.core_state import CoreState
from penstock_engine.kv.keys import prefix_root, prompt_keys
from penstock_engine.media.request_media import RequestMedia
from penstock_engine.policies.forecast import first_token_after
from penstock_engine.request.request import priority_of
from penstock_engine.scheduler.starts import next_starts
from penstock_engine.waiting.queue import Part
from penstock_engine.waiting.queue_bounds import QueueBounds, sum_of
from penstock_engine.waiting.service_rate import ServiceRate

UNAVAILABLE_RETRY_MS = 60_000
"""When to ask again an engine whose model can't be served: somebody must fix it first."""


class Admission:
    """The bounds of the queue and of each tenant, and whether a deadline can be kept."""

    def __init__(self, state: CoreState) -> None:
        facts = state.facts
        self._scheduling = state.scheduling
        self._frontends = state.frontends
        self._workers = state.workers
        self._rate = state.service_rate
        self._policy_name = facts.config.scheduler.scheduling_policy
        self._shares_prefixes = facts.config.cache.enable_prefix_caching
        self._tenants = facts.tenants()
        self._aside = (state.media, state.adapters)
        self._bounds = QueueBounds(facts.config.scheduler)

    def check_priority(self, submit: Submit) -> None:
        """Raises InvalidRequest for a priority that has no meaning here, or is too high."""
        if submit.priority and not self._scheduling.policy.ages:
            raise InvalidRequest(
                f"priority is {submit.priority}; the scheduling policy is {self._policy_name}, "
                "which has no priorities; allowed: 0",
                param="priority",
            )
        highest = self._tenants.of(submit.tenant, submit.grant).highest_priority
        if submit.priority < highest:
            raise InvalidRequest(
                f"priority is {submit.priority}; with this API key it must be at least {highest} "
                "(greater values are served later)",
                param="priority",
            )

    def weight_of(self, submit: Submit) -> int:
        """Weight of the request's tenant where tenants share the engine."""
        return self._tenants.of(submit.tenant, submit.grant).weight

    def refusal(self, submit: Submit, now: float) -> Rejected | None:
        """Why a valid request isn't taken now. For lack of room, only one that is new."""
        if self._workers.final:
            message = f"the model can't be served: {self._workers.fault}"
            return Rejected(submit.request, "unavailable", message, UNAVAILABLE_RETRY_MS)
        if submit.resumed:
            return None
        return (
            self._over_limit(submit, now) or self._no_room(submit, now) or self._late(submit, now)
        )

    def _over_limit(self, submit: Submit, now: float) -> Rejected | None:
        most = self._tenants.of(submit.tenant, submit.grant).max_requests
        requests = self._frontends.open_requests
        count = requests.count(submit.tenant)
        if most is None or count < most:
            return None
        message = f"{count} requests are open with this API key; at most {most} are allowed"
        wait_ms = _milliseconds(requests.retry_after(submit.tenant, now))
        return Rejected(submit.request, "limited", message, wait_ms)

    def _no_room(self, submit: Submit, now: float) -> Rejected | None:
        queue = self._scheduling.queue
        count = max(len(submit.sequences), submit.beams)
        full = self._bounds.refusal(
            queue,
            submit.tenant,
            self.weight_of(submit),
            count,
            len(submit.prompt_token_ids),
            len(submit.prediction),
            aside=self._part_aside,
            starting=lambda: next_starts(self._scheduling),
        )
        if full is None:
            return None
        wait_ms = _milliseconds(self._rate.retry_after(now, queue))
        return Rejected(submit.request, "overloaded", full, wait_ms)

    def _part_aside(self, tenant: str | None) -> Part:
        """What waits beside the queue for media and adapters; of one tenant, if one is named."""
        return sum_of(each.part_of(tenant) for each in self._aside)

    def _late(self, submit: Submit, now: float) -> Rejected | None:
        """The first token's deadline is the request's own: what comes later than that is lost."""
        if not submit.time_left_ms:
            return None  # None, or over already: that ends as any deadline that passes.
        left = submit.time_left_ms / 1000
        if self._expected(submit, len(submit.prompt_token_ids), now)[0] <= left:
            return None
        # Only now, as it costs a hash for each block: what of its prompt needn't be computed.
        fresh = len(submit.prompt_token_ids) - self._found(submit)
        expected, alone = self._expected(submit, fresh, now)
        if expected <= left:
            return None
        message = (
            f"the first token is expected in {expected:.1f} s at the earliest, but the deadline "
            f"is in {left:.1f} s; on an idle server it would take {alone:.1f} s"
        )
        # Until so much of what is before it is gone that it would be in time.
        wait = min(max(expected - max(left, alone), ServiceRate.SHORTEST), ServiceRate.LONGEST)
        return Rejected(submit.request, "overloaded", message, _milliseconds(wait))

    def _expected(self, submit: Submit, fresh: int, now: float) -> tuple[float, float]:
        """Seconds at least until the first token, as things are, and with nothing else to do.
        fresh: tokens of its prompt that must be computed."""
        alone = first_token_after(self._scheduling.step_cost, fresh, self._scheduling.budget)
        return max(self._wait(submit, fresh, now), alone), alone

    def _found(self, submit: Submit) -> int:
        """Tokens of the prompt whose KV is in the cache."""
        cache = self._scheduling.cache
        if cache is None or not self._shares_prefixes:
            return 0
        media = None
        if submit.media is not None:
            salted = prefix_root(submit.tenant, submit.cache_salt)
            media = RequestMedia(submit.media, salted)
        root = prefix_root(submit.tenant, submit.cache_salt, submit.adapter)
        keys = list(prompt_keys(root, submit.prompt_token_ids, cache.block_size, media))
        return self._scheduling.kv_groups.match(cache, keys).blocks * cache.block_size

    def _wait(self, submit: Submit, fresh: int, now: float) -> float:
        """Seconds at least until the first token, by what is before it."""
        scheduling = self._scheduling
        ahead = scheduling.queue.ahead(submit.tenant, priority_of(submit))
        if not ahead.requests:
            return 0.0
        tokens = scheduling.fresh_share.of(ahead.tokens) + fresh
        computing = first_token_after(scheduling.step_cost, tokens, scheduling.budget)
        each = self._rate.seconds_each(now, scheduling.queue)
        return max(computing, 0.0 if each is None else each * ahead.requests)


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)
