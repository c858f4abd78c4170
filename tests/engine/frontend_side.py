"""The client side of the harness: front ends that connect, submit requests, answer questions about
media and leave. Whatever the core tells them goes into the scores of `scores.py`, which compare it
with a naive model of the right answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.protocol.common import (
    AdapterFile,
    Claim,
    Grammar,
    Grant,
    SessionTerms,
    Stopping,
    TokenSampling,
)
from penstock.protocol.from_frontend import (
    Abort,
    Finish,
    FromFrontend,
    Hello,
    MediaChunk,
    MediaFile,
    OpenSequence,
    Submit,
)
from penstock.protocol.media import MAX_MEDIA_CHUNK, Media
from penstock.protocol.to_frontend import (
    Accepted,
    Adapters,
    Called,
    NeedMedia,
    Outputs,
    Prepared,
    Rejected,
    SequenceOutput,
    Status,
    ToFrontend,
    Unchanged,
    Welcome,
)
from penstock_engine.facts import EngineFacts
from tests.engine.core_under_test import CoreUnderTest
from tests.engine.fake_model import told_of
from tests.engine.scores import Front, RequestScore, SequenceScore
from tests.engine.wire import over_the_wire


class FrontendSide(CoreUnderTest):
    """What front ends do, and what they are told."""

    def __init__(self, engine_facts: EngineFacts | None = None, **options: Any) -> None:
        super().__init__(engine_facts, **options)
        self.gone: list[Front] = []
        """Front ends that have left, or whose sessions the core ended."""
        self.by_file = True
        """Whether front ends have items as files."""
        self.prepared: Callable[[int], bytes] = bytes
        """The bytes of an item of that size."""
        self.asked_media: deque[tuple[Front, NeedMedia]] = deque()
        """What front ends have not answered."""
        self.next_claim: Claim | None = None
        """The claim of requests that are given none."""
        self.next_shared = False
        """Whether requests may be shared that say nothing of it."""
        self._requests = 0

    # ---- what they do

    def connect(self, versions: tuple[int, ...] = (2,), **known: Any) -> Front:
        """known: fields of Hello, of what it knows."""
        front = Front(self._new_session())
        self.fronts.append(front)
        hello = over_the_wire(Hello(list(versions), "test", 1, **known), FromFrontend)
        self.core.frontend_opened(front.session, hello, self.now)
        self.settle()
        return front

    def send(self, front: Front, message: FromFrontend, *, settle: bool = True) -> None:
        message = over_the_wire(message, FromFrontend)
        self.core.frontend_received(front.session, message, self.now)
        if settle:
            self.settle()

    def submit(
        self,
        front: Front,
        prompt: list[int],
        *,
        n: int = 1,
        emitted: dict[int, list[int]] | None = None,
        deaths: int = 0,
        resumed: bool | None = None,
        seed: int = 1,
        salt: str = "",
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        delivered: int = 0,
        settle: bool = True,
        grammar: Grammar | None = None,
        grant: Grant | None = None,
        sampling: dict[str, Any] | None = None,
        tenant: str = "",
        priority: int = 0,
        time_left_ms: int | None = None,
        timeline: bool = False,
        media: Media | None = None,
        prediction: list[int] | None = None,
        claimed: bool = False,
        adapter: AdapterFile | None = None,
        gathered: bool = False,
        session: SessionTerms | None = None,
        claim: Claim | None = None,
        shared: bool | None = None,
        **stopping: Any,
    ) -> RequestScore:
        self._requests += 1
        emitted = emitted or {}
        indexes = sorted(emitted) or range(n)
        submit = Submit(
            self._requests,
            self.name_of(),
            prompt,
            [OpenSequence(index, emitted.get(index, [])) for index in indexes],
            TokenSampling(
                seed=seed,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
                **(sampling or {}),
            ),
            Stopping(**{"max_tokens": 8, **stopping}),
            deaths,
            resumed if resumed is not None else bool(emitted or deaths),
            cache_salt=salt,
            tenant=tenant,
            priority=priority,
            time_left_ms=time_left_ms,
            grammar=grammar,
            grant=grant,
            timeline=timeline,
            prompt_delivered=delivered,
            media=media,
            prediction=prediction or [],
            adapter=adapter,
            gathered=gathered,
            session=session,
            claim=claim or self.next_claim,
            claimed=claimed,
            shared=self.next_shared if shared is None else shared,
        )
        left = None if time_left_ms is None else time_left_ms / 1000
        # Also after a trial that failed, until a worker is told of the former weights again.
        others = self.digest not in ("", self.core.state.facts.model.digest)
        on_trial = others or self.core.state.weights.former is not None
        score = RequestScore(
            submit, None if left is None else self.now + left, during_trial=on_trial
        )
        for index in indexes:
            score.sequences[index] = SequenceScore(list(emitted.get(index, [])), deaths=deaths)
        if delivered and 0 in score.sequences:
            told = [told_of(prompt, at) for at in range(1, delivered)]
            score.sequences[0].prompt_logprobs = told
        front.requests[submit.request] = score
        if submit.claim is not None:
            first = self.claims.setdefault(submit.claim.digest, score)
            for index, each in score.sequences.items():
                # Whoever found a stop string in it: it ends there.
                each.finished_by_us = first.sequences[index].finished_by_us
        self.send(front, submit, settle=settle)
        return score

    def name_of(self) -> str:
        """The name of the newest request."""
        return f"r{self._requests}"

    def abort(self, front: Front, request: RequestScore) -> None:
        request.aborted = True
        self.send(front, Abort(request.submit.request))

    def leave(self, front: Front, request: RequestScore) -> None:
        """Leaves a request, as a front end does whose client is gone."""
        request.aborted = request.left = True
        self.send(front, Abort(request.submit.request, kept=True))

    def take_away(self, front: Front, request: RequestScore) -> None:
        """Takes a request away, as a front end does that has it go on elsewhere."""
        request.aborted = True
        self.send(front, Abort(request.submit.request, handed_over=True))

    def finish(self, front: Front, request: RequestScore, index: int) -> None:
        score = request.sequences[index]
        score.finished_by_us = True
        if request.submit.claim is not None:
            self.claims[request.submit.claim.digest].sequences[index].finished_by_us = True
        self.send(front, Finish(request.submit.request, index, len(score.tokens)))

    def disconnect(self, front: Front) -> None:
        self.core.frontend_ended(front.session, "it left", self.now)
        self._drop(front)
        self.settle()

    def _drop(self, front: Front) -> None:
        self.fronts.remove(front)
        self.gone.append(front)

    def send_media(self, front: Front, asked: NeedMedia) -> None:
        """A front end answers, if it is still there."""
        if front not in self.fronts:
            return
        request, number = asked.request, asked.item
        if self.by_file and not asked.chunks:
            self.send(front, MediaFile(request, number, "/run/media/item"))
            return
        media = front.requests[request].submit.media
        assert media is not None
        size = min(MAX_MEDIA_CHUNK, media.items[number].size - asked.offset)
        chunk = over_the_wire(MediaChunk(request, number, asked.offset, size), FromFrontend)
        self.core.frontend_sent_chunk(front.session, chunk, self.prepared(size), self.now)
        self.settle()

    # ---- what they are told

    def _front_gets(self, front: Front, message: ToFrontend, frames: tuple[bytes, ...]) -> None:
        match message:
            case Welcome():
                assert front.welcome is None
                front.welcome, front.frames = message, frames
            case Status():
                front.status = message
                front.heard.append(message)
            case Unchanged():
                assert front.status is not None
                front.heard.append(message)
            case Adapters(adapters):
                front.adapters |= {each.name: each for each in adapters}
            case Accepted(request, shared):
                score = front.requests[request]
                score.shared = shared
                assert not score.accepted
                assert score.rejected is None
                score.accepted = True
            case Rejected(request):
                assert not front.requests[request].accepted
                front.requests[request].rejected = message
            case NeedMedia(request, item):
                score = front.requests[request]
                assert score.accepted
                assert not score.over
                assert score.submit.media is not None
                assert message.offset < score.submit.media.items[item].size
                self.asked_media.append((front, message))
            case Called():
                front.called.append(message)
            case Prepared(request):
                assert front.requests[request].accepted
                front.requests[request].prepared = True
            case Outputs(outputs, entered, left):
                assert outputs or entered or left
                front.num_outputs += bool(outputs)
                assert not front.in_step & {*entered}
                assert {*left} <= front.in_step
                front.in_step = (front.in_step | {*entered}) - {*left}
                for output in outputs:
                    self._take(front.requests[output.request], output)

    def _take(self, request: RequestScore, output: SequenceOutput) -> None:
        longest, capacity = self.facts.max_model_len, self.capacity
        request.take(output, now=self.now, longest=longest, capacity=capacity)

    def _check_in_step(self, running: set[tuple[bytes, int]], *, internal_errors: bool) -> None:
        """Each front end knows which of its requests are in a step. running: see _in_slots."""
        for front in self.fronts:
            expected = {number for session, number in running if session == front.session}
            known = {n for n, request in front.requests.items() if not request.left}
            told = {n for n in front.in_step & known if not front.requests[n].over}
            heard = told == expected or internal_errors
            assert heard, "the front end doesn't know what is in a step"
