"""Which answers another front end may claim: those that are being computed, and for a while those
that have ended; and which equal requests find while they are computed."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, OrderedDict
from collections.abc import Collection

import msgspec

from penstock.protocol.common import TokenSampling
from penstock.protocol.from_frontend import Submit
from penstock_engine.kv.pool import BrokenState
from penstock_engine.parts import HasDeadline
from penstock_engine.request.kept import KeptAnswer
from penstock_engine.request.request import Request, priority_of
from penstock_engine.waiting.queue_bounds import TenantShares

MOST_ORPHANS = 1024
"""Requests that go on without a front end at once. A tenant may have as many as `leaves_room` lets
it: alone four fifths of them, and less, the more others have."""

MOST_KEPT = 2**19
"""Tokens of answers that have ended, with their prompts, and log-probabilities of all, that are
kept at once. Beyond that, the tenant that has most of it makes room, with its oldest."""

EACH = 64
"""What else is kept of an answer that has ended, in tokens."""


class KeptAnswers(HasDeadline):
    """Answers by their claims; of several with equal claims, the newest.

    grace: seconds for which an answer waits for a reader that resumes it; 0: none waits.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self.adopted = self.recomputed = 0
        """Readers who went on with what was there, and for whom it was computed again."""
        self.shared = 0
        """Requests whose answer was computed along with an earlier one's."""
        self._fingerprint: str | None = None
        """What workers computed with last; None: there was none yet."""
        self._room = TenantShares()
        self._by_claim: dict[bytes, Request] = {}
        self._by_share: dict[bytes, Request] = {}
        self._orphans: OrderedDict[Request, float] = OrderedDict()
        """Open requests without a front end, with the time until which they wait: oldest first."""
        self._ended: OrderedDict[Request, float] = OrderedDict()
        """Requests whose answer has ended, with the time until which it is kept: oldest first."""
        self._ended_of: dict[str, OrderedDict[Request, None]] = {}
        """The requests of `_ended` by tenant, oldest first; of tenants that have any."""
        self._orphans_of = TenantShares()
        """Numbers of orphans."""

    def watch(self, request: Request, submit: Submit) -> None:
        """Begins to keep the answer of a request that was accepted just now, if it has a claim, or
        may be shared, and could be given again as it was."""
        claim = submit.claim if self.grace else None
        self.recomputed += submit.claim is not None and submit.claim.goes_on
        if (claim is None and not submit.shared) or not _can_be_kept(submit):
            return
        tokens = {index: sequence.emitted for index, sequence in request.sequences.items()}
        request.kept = kept = KeptAnswer(tokens, self._room, submit.tenant, request.sampling)
        if submit.shared:
            kept.shared = share_name(submit, request.sampling)
            earlier = self._by_share.get(kept.shared)
            if earlier is not None:
                self.cut(earlier)
            self._by_share[kept.shared] = request
        if claim is not None:
            kept.retried = claim.retried
            self._claim(request, claim.digest)

    def joined(self, request: Request, submit: Submit) -> None:
        """One more request has the answer of a request that has not ended."""
        kept = request.kept
        if kept is None:
            return
        kept.joined += 1
        self.came_again(request, submit)
        if submit.claim is not None and self.grace and submit.claim.digest not in kept.claims:
            kept.retried |= submit.claim.retried
            self._claim(request, submit.claim.digest)

    def left(self, request: Request, claims: Collection[bytes]) -> None:
        """Notes that readers with these claims have disconnected, and may come again."""
        if request.kept is not None:
            known = request.kept.left
            known += [each for each in claims if each not in known]

    def came_again(self, request: Request, submit: Submit) -> None:
        """Notes that the reader of this submission has come back."""
        kept, claim = request.kept, submit.claim
        if kept is not None and claim is not None and claim.digest in kept.left:
            kept.left.remove(claim.digest)

    def _claim(self, request: Request, claim: bytes) -> None:
        """Makes a request the one that a claim finds: of several with equal claims, the newest."""
        earlier = self._by_claim.get(claim)
        if earlier is not None:
            self._forget(earlier)
        if request.kept is not None:
            request.kept.claims.append(claim)
            self._by_claim[claim] = request

    def find(self, claim: bytes) -> Request | None:
        """The request that has, or had, an equal claim, and whose answer is of use."""
        request = self._by_claim.get(claim)
        if request is None or request.kept is None:
            return None
        if request.ended and not request.kept.whole:
            self._forget(request)
            return None
        return request

    def find_shared(self, submit: Submit, sampling: TokenSampling) -> Request | None:
        """Returns an equal request that has not ended. sampling: in the worker's form."""
        if not self._by_share:
            return None
        return self._by_share.get(share_name(submit, sampling))

    def cut(self, request: Request) -> None:
        """A sequence of it ends as its reader has found a stop string, which an equal request need
        not have."""
        kept = request.kept
        if kept is not None and kept.shared:
            if self._by_share.get(kept.shared) is request:
                del self._by_share[kept.shared]
            kept.shared = b""
            if not kept.claims:
                self._forget(request)

    def takes_in(self, request: Request, now: float) -> bool:
        """Whether a request that has lost its front end may go on. Then it waits from now on. What
        has gained nothing may not, unless it may be asked for again all the same: mostly its client
        was given nothing to go on from, and asks anew."""
        kept = request.kept
        if kept is None or not kept.claims or request.ended:
            return False
        if not self._orphans_of.may_have(request.tenant, 1, MOST_ORPHANS):
            return False
        if not kept.retried and not _begun(request):
            return False
        self._orphans[request] = now + self.grace
        self._orphans_of.add(request.tenant, 1)
        return True

    def taken_over(self, request: Request) -> None:
        """An orphan has a front end again, or has ended; nothing happens if it was none."""
        if self._orphans.pop(request, None) is not None:
            self._orphans_of.add(request.tenant, -1)

    def ended(self, request: Request, now: float) -> None:
        """The last of a request has ended. Its last output is still to be noted."""
        self.taken_over(request)
        kept = request.kept
        if kept is None:
            return
        self.cut(request)
        if kept.claims:
            self._ended[request] = now + self.grace
            self._ended_of.setdefault(request.tenant, OrderedDict())[request] = None
            kept.grow(len(request.prompt_token_ids) + EACH)

    def settle(self, now: float) -> None:
        """Drops ended answers whose time is over, or that there is no room for: of the tenant with
        most, the oldest first. If that has no ended ones, its open ones aren't kept."""
        while self._ended:
            request, until = next(iter(self._ended.items()))
            if now < until:
                break
            self._forget(request)
        while self.is_over:
            tenant = self._room.largest()
            ended = self._ended_of.get(tenant)
            if ended:
                self._forget(next(iter(ended)))
                continue
            for request in self._kept():
                if request.tenant == tenant and request.kept is not None and request.kept.size:
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
            self.taken_over(request)
            found.append(request)
        return found

    def computed_with(self, fingerprint: str) -> None:
        """Workers that compute with this fingerprint are ready. Answers that were begun with
        another one are given to no new reader, and end if they have none."""
        former, self._fingerprint = self._fingerprint, fingerprint
        if former in (None, fingerprint):
            return
        for request in self._kept():
            kept = request.kept
            if kept is not None and (request.ended or kept.size or _begun(request)):
                self._forget(request)

    def forget_ended(self) -> None:
        """What has ended is not given to anybody any more."""
        for request in list(self._ended):
            self._forget(request)

    def check(self, orphans: Collection[Request]) -> None:
        """Proves the book. Raises BrokenState. orphans: those that have no front end."""
        if set(orphans) != set(self._orphans):
            raise BrokenState(f"{len(orphans)} requests are orphans, {len(self._orphans)} wait")
        kept = self._kept()
        used = sum(each.kept.size for each in kept if each.kept is not None)
        if used != self._room.total:
            raise BrokenState(f"{self._room.total} tokens of answers are kept, not {used}")
        if self._orphans_of.by_tenant != Counter(each.tenant for each in self._orphans):
            raise BrokenState("the tenants' orphans are miscounted")
        of_tenants: Counter[str] = Counter()
        for each in kept:
            if each.kept is not None and each.kept.size:
                of_tenants[each.tenant] += each.kept.size
        if of_tenants != self._room.by_tenant:
            raise BrokenState("the tenants' kept answers are miscounted")
        ended = [request for each in self._ended_of.values() for request in each]
        if set(ended) != set(self._ended) or not all(self._ended_of.values()):
            raise BrokenState("the tenants' ended answers are others")
        if any(request not in kept for request in self._ended):
            raise BrokenState("an answer is kept that nobody can find")

    @property
    def is_over(self) -> bool:
        """Whether there is no room for all, so that `settle` has something to forget."""
        return self._room.total > MOST_KEPT

    def next_deadline(self) -> float:
        """The time at which the first has waited long enough; infinity for none."""
        oldest = (next(iter(each.values()), math.inf) for each in (self._orphans, self._ended))
        return min(oldest)

    def _forget(self, request: Request) -> None:
        """Removes the request's answer from those that can be claimed. If it is open, it ends with
        its reader, or now."""
        kept, request.kept = request.kept, None
        if self._ended.pop(request, math.inf) != math.inf:
            ended = self._ended_of[request.tenant]
            del ended[request]
            if not ended:
                del self._ended_of[request.tenant]
        if request in self._orphans:
            self._orphans[request] = -math.inf
            self._orphans.move_to_end(request, last=False)
        if kept is None:
            return
        kept.drop()
        for claim in kept.claims:
            if self._by_claim.get(claim) is request:
                del self._by_claim[claim]
        if self._by_share.get(kept.shared) is request:
            del self._by_share[kept.shared]

    def _kept(self) -> list[Request]:
        """Each once."""
        return list(dict.fromkeys([*self._by_claim.values(), *self._by_share.values()]))


def _begun(request: Request) -> bool:
    """Whether there is a token of it."""
    return any(each.emitted for each in request.sequences.values())


def _can_be_kept(submit: Submit) -> bool:
    """Whether all that its reader was sent can be sent again: not how many of a client's predicted
    tokens were right, nor log-probabilities of tokens from an earlier process; media come from its
    front end."""
    wanted = submit.sampling
    begun = any(each.emitted for each in submit.sequences)
    partly = (wanted.logprobs is not None and begun) or submit.prompt_delivered > 1
    return not (partly or submit.prediction or submit.media or submit.pooling or submit.beams)


def can_be_shared(submit: Submit) -> bool:
    """Whether a request may get the answer of another one. That of a prediction says how it
    fared."""
    partly = submit.prompt_delivered > 1
    return not (partly or submit.prediction or submit.media or submit.pooling or submit.beams)


def share_name(submit: Submit, sampling: TokenSampling) -> bytes:
    """Names all that a request's tokens depend on, whose it is, and how urgent. Greedy requests
    depend on no seed. sampling: in the worker's form."""
    if sampling.temperature == 0.0:
        sampling = msgspec.structs.replace(sampling, seed=0)
    whole = (
        submit.tenant,
        submit.cache_salt,
        submit.adapter,
        submit.prompt_token_ids,
        sampling,
        submit.stopping,
        submit.grammar,
        submit.session,
        priority_of(submit),
    )
    encoded = msgspec.msgpack.encode(whole, order="deterministic")
    return hashlib.blake2b(encoded, digest_size=16, person=b"shared").digest()
