"""Whether a valid request is accepted now."""

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
from penstock_engine.waiting.queue_bounds import QueueBounds, ServiceRate, sum_of

UNAVAILABLE_RETRY_MS = 60_000
"""Milliseconds after which to ask again an engine core whose model can't be served: a person must
mend it first."""


class Admission:
    """Decides whether a valid request is accepted now: by the bounds of the queue, by those of its
    tenant, and by whether its deadline can be kept."""

    def __init__(self, state: CoreState) -> None:
        facts = state.facts
        self._scheduling = state.scheduling
        self._frontends = state.frontends
        self._workers = state.workers
        self._rate = state.service_rate
        self._shares_prefixes = facts.config.cache.enable_prefix_caching
        self._tenants = facts.tenants()
        self._aside = (state.media, state.adapters)
        self._bounds = QueueBounds(facts.config.scheduler)

    def check_priority(self, submit: Submit) -> None:
        """Raises InvalidRequest for a priority under a policy that has none, or for a higher one
        than the tenant may ask for."""
        policy = self._scheduling.policy
        if submit.priority and not policy.ages:
            raise InvalidRequest(
                f"priority is {submit.priority}; the scheduling policy is {policy.name}, "
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
        """Weight of the request's tenant in fair sharing."""
        return self._tenants.of(submit.tenant, submit.grant).weight

    def refusal(self, submit: Submit, now: float) -> Rejected | None:
        """Returns the rejection of a valid request that can't be accepted now, or None. A resumed
        one is never rejected for lack of room."""
        if self._workers.final:
            message = f"the model can't be served: {self._workers.fault}"
            return Rejected(submit.request, "unavailable", message, UNAVAILABLE_RETRY_MS)
        if submit.resumed:
            return None
        return self.over_limit(submit, now) or self._no_room(submit, now) or self._late(submit, now)

    def over_limit(self, submit: Submit, now: float) -> Rejected | None:
        """Returns the rejection of a request whose tenant has as many open as it may have; None
        otherwise."""
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
        """Counts of what waits outside the queue for media and adapters: of one tenant, or of all
        for None."""
        return sum_of(each.part_of(tenant) for each in self._aside)

    def _late(self, submit: Submit, now: float) -> Rejected | None:
        """Returns the rejection of a request whose first token can't come before its deadline, or
        None."""
        if not submit.time_left_ms:
            return None  # No deadline; or one that is over already, which ends as any other does.
        left = submit.time_left_ms / 1000
        if self._expected(submit, len(submit.prompt_token_ids), now)[0] <= left:
            return None
        # Cached tokens needn't be computed. Looked up only now, as each block costs a hash.
        fresh = len(submit.prompt_token_ids) - self._found(submit)
        expected, alone = self._expected(submit, fresh, now)
        if expected <= left:
            return None
        message = (
            f"the first token is expected in {expected:.1f} s at the earliest, but the deadline "
            f"is in {left:.1f} s; on an idle server it would take {alone:.1f} s"
        )
        # Wait until so much of the queue before it has gone that it would be in time.
        wait = min(max(expected - max(left, alone), ServiceRate.SHORTEST), ServiceRate.LONGEST)
        return Rejected(submit.request, "overloaded", message, _milliseconds(wait))

    def _expected(self, submit: Submit, fresh: int, now: float) -> tuple[float, float]:
        """Least seconds until the first token: (with the present queue, on an idle engine core).
        fresh: number of the prompt's tokens that must be computed."""
        alone = first_token_after(self._scheduling.step_cost, fresh, self._scheduling.budget)
        return max(self._wait(submit, fresh, now), alone), alone

    def _found(self, submit: Submit) -> int:
        """Number of the prompt's tokens whose KV blocks are in the cache."""
        cache = self._scheduling.cache
        if cache is None or not self._shares_prefixes:
            return 0
        media = None
        if submit.media is not None:
            salted = prefix_root(submit.tenant, submit.cache_salt)
            media = RequestMedia(submit.media, salted, submit.prompt_token_ids)
        root = prefix_root(submit.tenant, submit.cache_salt, submit.adapter)
        keys = list(prompt_keys(root, submit.prompt_token_ids, cache.block_size, media))
        return self._scheduling.kv_groups.match(cache, keys).blocks * cache.block_size

    def _wait(self, submit: Submit, fresh: int, now: float) -> float:
        """Least seconds until the first token, given the requests that are served earlier. fresh:
        as in `_expected`."""
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
