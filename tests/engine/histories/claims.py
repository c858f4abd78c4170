"""Random histories in which answers lose their readers, and others claim them."""

from __future__ import annotations

import msgspec

from penstock.protocol.common import Claim
from penstock_engine.handlers.adoption import ELSEWHERE
from tests.engine.harness import Harness
from tests.engine.scores import RequestScore
from tests.engine.walked_harness import Choices, drawn_options
from tests.engine.walker import Walker


class ClaimWalker(Walker):
    """Each request has a claim of its own; some come again, from the beginning or from within."""

    def __init__(self, choose: Choices) -> None:
        # Without, the harness tells requests' blocks apart by their numbers, which change here.
        super().__init__(Harness(**drawn_options(choose) | {"prefix_caching": True}), choose)
        self._claimed: list[RequestScore] = []
        self.walks |= {"leave": (0, self.leave), "claim": (0, self.claim)}
        self._wheel += ["leave"] * 12 + ["claim"] * 25 + ["disconnect"] * 3

    def _pool_size(self) -> int:
        """Room for one at least: an answer that a smaller pool had cut short would be kept."""
        size = self.h.facts.config.cache.kv_block_size
        return self.choose.whole(1, 3) * -(-self.h.facts.max_model_len // size)

    def submit(self) -> None:
        before = {id(request) for front in self.h.fronts for request in front.requests.values()}
        self.h.next_claim = Claim(len(self._claimed).to_bytes(4, "big"))
        super().submit()
        self.h.next_claim = None
        for front in self.h.fronts:
            self._claimed += [r for r in front.requests.values() if id(r) not in before]

    def leave(self) -> None:
        """A client is gone."""
        found = self._request()
        if found is not None and not found[1].over:
            self.h.leave(*found)

    def claim(self) -> None:
        """Somebody wants the answer: rather one of the newest."""
        front = self._front()
        if front is None or not self._claimed:
            return
        back = min(self.choose.whole(1, 8), len(self._claimed))
        old = self._claimed[-back]
        book = self.h.core.state.kept_answers
        before = book.adopted
        was = {index: list(score.tokens) for index, score in old.sequences.items()}
        submit = old.submit
        claim = Claim(submit.claim.digest if submit.claim else b"", bool(self.choose.whole(0, 3)))
        has_some = self.choose.whole(0, 1) and submit.sampling.prompt_logprobs is None
        again = self.h.submit(
            front,
            submit.prompt_token_ids,
            n=len(submit.sequences),
            emitted=was if has_some else None,
            seed=submit.sampling.seed,
            salt=submit.cache_salt,
            logprobs=submit.sampling.logprobs,
            prompt_logprobs=submit.sampling.prompt_logprobs,
            tenant=submit.tenant,
            priority=submit.priority,
            grammar=submit.grammar,
            gathered=submit.gathered,
            claim=claim,
            **msgspec.structs.asdict(submit.stopping),
        )
        self.met["adopted"] += book.adopted - before
        self.met["adopted at its end"] += book.adopted > before and again.over
        self.met["adopted within"] += book.adopted > before and bool(has_some)
        self.met["orphans"] += len(self.h.core.state.frontends.orphanage.requests)

    def end(self) -> None:
        self.h.now += 30.0  # Nobody comes for what is left.
        self.h.settle()
        super().end()
        self.h.now += 30.0
        self.h.settle()
        book = self.h.core.state.kept_answers
        assert not self.h.core.state.frontends.orphanage.requests
        assert not book._by_claim
        assert book._room.total == 0

    def _check_ended(self, request: RequestScore) -> None:
        if request.left:
            return
        ends = [score.terminal for score in request.sequences.values()]
        errors = [end.error or "" for end in ends if end is not None]
        # Deaths that it met at another reader's count, too.
        if not any(error == ELSEWHERE or "died" in error for error in errors):
            super()._check_ended(request)
