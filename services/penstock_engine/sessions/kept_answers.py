"""Which answers another front end may claim: those that are being computed, and for a while those
that have ended."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection

from penstock.protocol.from_frontend import Submit
from penstock_engine.kv.pool import BrokenState
from penstock_engine.request.kept import KeptAnswer, KeptRoom
from penstock_engine.request.request import Request

MOST_ORPHANS = 1024
"""Requests that go on without a front end at once."""

MOST_KEPT = 2**19
"""Tokens of answers that have ended, with their prompts, and log-probabilities of all, that are
kept at once."""

EACH = 64
"""What else is kept of an answer that has ended, in tokens."""


class KeptAnswers:
    """Answers by their claims; of several with equal claims, the newest.

    grace: seconds for which an answer waits for a reader who goes on with it; 0: none does.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self.adopted = self.recomputed = 0
        """Readers who went on with what was there, and for whom it was computed again."""
        self._room = KeptRoom()
        self._by_claim: dict[bytes, Request] = {}
        self._orphans: OrderedDict[Request, float] = OrderedDict()
        """Open requests without a front end, with the time until which they wait: oldest first."""
        self._ended: OrderedDict[Request, float] = OrderedDict()
        """Requests whose answer has ended, with the time until which it is kept: oldest first."""

    def watch(self, request: Request, submit: Submit) -> None:
        """Begins to keep the answer of a request that was accepted just now, if it has a claim and
        could be given again as it was."""
        claim = submit.claim
        if claim is None or not self.grace or not _can_be_kept(submit):
            return
        earlier = self._by_claim.get(claim.digest)
        if earlier is not None:
            self._forget(earlier)
        tokens = {index: sequence.emitted for index, sequence in request.sequences.items()}
        request.kept = KeptAnswer(claim.digest, tokens, self._room)
        self._by_claim[claim.digest] = request

    def find(self, claim: bytes) -> Request | None:
        """The request that has, or had, an equal claim, and whose answer is of use."""
        request = self._by_claim.get(claim)
        if request is None or request.kept is None:
            return None
        if request.ended and not request.kept.whole:
            self._forget(request)
            return None
        return request

    def takes_in(self, request: Request, now: float) -> bool:
        """Whether a request that has lost its front end may go on. Then it waits from now on. What
        has gained nothing may not: its client was given nothing to go on from, and asks anew."""
        if request.kept is None or request.ended or len(self._orphans) >= MOST_ORPHANS:
            return False
        if not any(sequence.emitted for sequence in request.sequences.values()):
            return False
        self._orphans[request] = now + self.grace
        return True

    def taken_over(self, request: Request) -> None:
        """An orphan has a front end again; nothing happens if it had one."""
        self._orphans.pop(request, None)

    def ended(self, request: Request, now: float) -> None:
        """The last of a request has ended. Its last output is still to be noted."""
        self._orphans.pop(request, None)
        if request.kept is not None:
            self._ended[request] = now + self.grace
            request.kept.grow(len(request.prompt_token_ids) + EACH)

    def settle(self, now: float) -> None:
        """Forgets ended answers whose time is over, or that there is no room for, the oldest
        first."""
        while self._ended:
            request, until = next(iter(self._ended.items()))
            if now < until and self._room.used <= MOST_KEPT:
                break
            self._forget(request)
        if self._room.used > MOST_KEPT:
            for request in list(self._by_claim.values()):
                if request.kept is not None and request.kept.size:
                    self._forget(request)

    def oldest_of(self, tenant: str) -> Request | None:
        """The tenant's orphan that has waited for longest."""
        return next((each for each in self._orphans if each.tenant == tenant), None)

    def over(self, now: float) -> list[Request]:
        """Takes out the orphans whose time is over."""
        found = []
        while self._orphans:
            request, until = next(iter(self._orphans.items()))
            if now < until:
                break
            del self._orphans[request]
            found.append(request)
        return found

    def forget_ended(self) -> None:
        """What has ended is not given to anybody any more."""
        for request in list(self._ended):
            self._forget(request)

    def check(self, orphans: Collection[Request]) -> None:
        """Proves the book. Raises BrokenState. orphans: those that have no front end."""
        if set(orphans) != set(self._orphans):
            raise BrokenState(f"{len(orphans)} requests are orphans, {len(self._orphans)} wait")
        kept = [*self._by_claim.values()]
        used = sum(each.kept.size for each in kept if each.kept is not None)
        if used != self._room.used:
            raise BrokenState(f"{self._room.used} tokens of answers are kept, not {used}")
        if any(request not in kept for request in self._ended):
            raise BrokenState("an answer is kept that nobody can find")

    def next_deadline(self) -> float:
        """The time at which the first has waited long enough; infinity for none."""
        oldest = (next(iter(each.values()), math.inf) for each in (self._orphans, self._ended))
        return min(oldest)

    def _forget(self, request: Request) -> None:
        """Nobody gets its answer from here on. If it is open, it ends with its reader, or now."""
        kept, request.kept = request.kept, None
        self._ended.pop(request, None)
        if request in self._orphans:
            self._orphans[request] = -math.inf
            self._orphans.move_to_end(request, last=False)
        if kept is None:
            return
        kept.drop()
        if self._by_claim.get(kept.claim) is request:
            del self._by_claim[kept.claim]


def _can_be_kept(submit: Submit) -> bool:
    """Whether all that its reader is told can be told again: not how many of the tokens that a
    client predicted were right, nor log-probabilities of tokens from another life, and media come
    from its front end."""
    wanted = submit.sampling
    begun = any(each.emitted for each in submit.sequences)
    partly = (wanted.logprobs is not None and begun) or submit.prompt_delivered > 1
    return not (partly or submit.prediction or submit.media or submit.pooling or submit.beams)
