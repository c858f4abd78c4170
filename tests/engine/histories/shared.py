"""Random histories in which requests come that are equal to others, and get their answers."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.protocol.common import Claim
from penstock_engine.handlers.adoption import ELSEWHERE
from tests.engine.harness import Harness
from tests.engine.scores import RequestScore
from tests.engine.walked_harness import Choices, drawn_options
from tests.engine.walker import Walker


class ShareWalker(Walker):
    """All requests may be shared. Many are equal to one of the newest, some with a part of it."""

    def __init__(self, choose: Choices) -> None:
        # Without, the harness tells requests' blocks apart by their numbers, which change here.
        super().__init__(Harness(**drawn_options(choose) | {"prefix_caching": True}), choose)
        self.h.next_shared = True
        self._known: list[RequestScore] = []
        self.walks |= {"again": (0, self.again), "leave": (0, self.leave)}
        self._wheel += ["again"] * 40 + ["leave"] * 6 + ["disconnect"] * 2 + ["finish"] * 3

    def _pool_size(self) -> int:
        """Room for one at least: an answer that a smaller pool had cut short would be kept."""
        size = self.h.facts.config.cache.kv_block_size
        return self.choose.whole(1, 3) * -(-self.h.facts.max_model_len // size)

    def submit(self) -> None:
        before = {id(request) for front in self.h.fronts for request in front.requests.values()}
        self.h.next_claim = self._claim()
        super().submit()
        self.h.next_claim = None
        for front in self.h.fronts:
            self._known += [r for r in front.requests.values() if id(r) not in before]

    def _claim(self, goes_on: bool = False) -> Claim | None:
        """One of its own, or none."""
        whole = self.choose.whole
        digest = len(self.h.claims).to_bytes(4, "big")
        return Claim(digest, goes_on, bool(whole(0, 1))) if whole(0, 2) == 0 else None

    def leave(self) -> None:
        """A client is gone."""
        found = self._request()
        if found is not None and not found[1].over:
            (self.h.leave if found[1].submit.claim is not None else self.h.abort)(*found)

    def again(self) -> None:
        """Somebody asks for the same: rather what one of the newest asked for."""
        front = self._front()
        if front is None or not self._known:
            return
        whole = self.choose.whole
        old = self._known[-min(whole(1, 5), len(self._known))]
        submit, open_ones = old.submit, list(self.h.core.state.frontends.requests())
        emitted: dict[int, list[int]] | None = None
        if whole(0, 4) == 0 and submit.sampling.prompt_logprobs is None:
            emitted = {index: list(score.tokens) for index, score in old.sequences.items()}
        claim, count = self._claim(), whole(1, len(submit.sequences))
        if submit.claim is not None and whole(0, 2) == 0:
            claim, count = Claim(submit.claim.digest, bool(whole(0, 1))), len(submit.sequences)
        before = self.h.core.state.kept_answers.shared
        options: dict[str, Any] = msgspec.structs.asdict(submit.stopping)
        request = self.h.submit(
            front,
            submit.prompt_token_ids,
            n=count,
            emitted=emitted,
            deaths=whole(0, 9) // 9,
            seed=submit.sampling.seed,
            salt=submit.cache_salt,
            logprobs=submit.sampling.logprobs,
            prompt_logprobs=submit.sampling.prompt_logprobs,
            tenant=submit.tenant,
            priority=submit.priority,
            time_left_ms=whole(0, 20_000) if whole(0, 4) == 0 else None,
            grammar=submit.grammar,
            gathered=bool(whole(0, 1)),
            session=submit.session,
            claim=claim,
            **options,
        )
        shared = self.h.core.state.kept_answers.shared - before
        self.met["shared"] += shared
        self.met["shared with some of it"] += shared and emitted is not None
        self.met["shared while it waits"] += shared and not any(
            each.num_running for each in open_ones if request.submit.tenant == each.tenant
        )
        most = max(
            (len(each.readers) for each in self.h.core.state.frontends.requests()), default=0
        )
        self.met["three readers"] += most >= 3

    def end(self) -> None:
        self.h.now += 30.0  # Nobody comes for what is left.
        self.h.settle()
        super().end()
        self.h.now += 30.0
        self.h.settle()
        state = self.h.core.state
        assert not list(state.frontends.requests())
        assert not any(session.readers for session in state.frontends)
        assert not state.frontends.open_requests.by_tenant()
        assert state.shared_answers.deadlines.next() is None
        assert not state.kept_answers._by_claim
        assert not state.kept_answers._by_share
        assert state.kept_answers._room.total == 0

    def _check_ended(self, request: RequestScore) -> None:
        if request.left:
            return
        ends = [score.terminal for score in request.sequences.values()]
        errors = [end.error or "" for end in ends if end is not None]
        # Deaths that others met count, too.
        if not any(error == ELSEWHERE or "died" in error for error in errors):
            super()._check_ended(request)
