"""A scripted stand-in for penstock.client.EngineClient: for tests of HTTP shapes only."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from penstock.client import ModelText, SequenceDelta
from penstock.client.adapters import AdapterDirectory
from penstock.client.beam_request import Follow, NextStep, Outcome
from penstock.client.client_view import EngineState
from penstock.client.delivery import Sink
from penstock.client.emitted import KnownTokens
from penstock.client.live import LiveFeed
from penstock.client.observer import UNOBSERVED, Observer, RequestEvents, observe
from penstock.client.placement import Computing, Placement
from penstock.client.ready_params import ReadyParams, ready_of_each
from penstock.client.routing import RoutingRequest
from penstock.client.session_turns import TextSink
from penstock.client.timing import RequestTiming
from penstock.errors import PenstockError
from penstock.media.item_names import PromptMedia
from penstock.model.prepared_model import GenerationDefaults
from penstock.protocol.call_values import encode_value
from penstock.protocol.common import FinishReason, GrammarKind, NamedAdapter, TokenLogprobs, WakeTag
from penstock.protocol.to_frontend import Limits, Status, Welcome
from penstock.request.sampling_params import SamplingParams
from penstock.request.terms import Terms
from tests.gateway.byte_tokenizer import END, VOCABULARY, ByteTokenizer, LineTemplate

MODEL = "org/tiny-model"
CONTEXT = 512

Step = list[SequenceDelta] | float | Exception
"""Deltas of one wake-up, seconds of silence, or what the iteration raises."""
Script = Callable[[list[int], SamplingParams], Iterable[Step]]


class FakeGeneration:
    """Plays a script's steps to whoever iterates it. feeds: a sink is offered them first, as a real
    one does it."""

    cached_tokens: int | None = None
    drafted = kept = 0
    prediction: Sequence[int] = ()
    timing: RequestTiming | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    def __init__(
        self,
        steps: Iterable[Step],
        n: int,
        observed: RequestEvents = UNOBSERVED,
        *,
        feeds: bool = False,
        cached: int = 0,
    ) -> None:
        self.placement = Placement(RoutingRequest([], 0))
        self._steps = iter(steps)
        self._cached = cached
        self._feeds = feeds
        self._sink: Sink | None = None
        self._text: TextSink | None = None
        self._open = set(range(n))
        self._observed = observed
        self.aborted = asyncio.Event()
        self.withdrawn = False
        observed.found_cached(cached)

    def abort(self, *, withdrawn: bool = False) -> None:
        self.withdrawn = withdrawn
        self._observed.leave(self.release)
        self.release()

    def release(self) -> None:
        if self._open:
            self._open.clear()
            self.aborted.set()

    def replayed(self, sequence: int) -> None:
        """It begins anew, whatever its client knows."""

    def feed(self, sink: Sink) -> None:
        self._sink = sink if self._feeds else None

    def feed_text(self, sink: TextSink) -> None:
        self._text = sink

    def _taken(self, deltas: list[SequenceDelta]) -> bool:
        """Whether a TextSink took them."""
        text = self._text
        if text is None or len(deltas) != 1:
            return False
        first = deltas[0]
        if first.finish_reason is not None or first.logprobs is not None:
            return False
        if not text.take(first.text, len(first.token_ids), time.perf_counter()):
            return False
        if first.text:
            text.put()
        return True

    def __aiter__(self) -> FakeGeneration:
        return self

    async def __anext__(self) -> list[SequenceDelta]:
        while self._open:
            step = next(self._steps)
            if isinstance(step, Exception):
                self._open.clear()
                self._observed.fail()
                raise step
            if isinstance(step, (int, float)):
                await asyncio.sleep(step)
                continue
            await asyncio.sleep(0)
            self.cached_tokens = self._cached  # As the first output says.
            self._open -= {d.index for d in step if d.finish_reason is not None}
            # A delta belongs to whoever takes it.
            deltas = [msgspec.structs.replace(d, token_ids=list(d.token_ids)) for d in step]
            if self._taken(deltas):
                self._observed.give(deltas)
                continue
            put = None if self._sink is None else self._sink(deltas)
            self._observed.give(deltas)
            if put is None:
                return deltas
            put()
        raise StopAsyncIteration


class FakeEngineClient:
    """Implements what the gateway uses of EngineClient. `submitted` keeps what it was given."""

    feeds = True
    """Whether its generations offer what they have to a sink first."""
    cached = 0
    """Tokens of each prompt that it finds in its cache."""

    def __init__(self, script: Script | None = None) -> None:
        tokenizer = ByteTokenizer()
        self.template = LineTemplate(tokenizer)
        self.text: Any = ModelText(tokenizer, self.template)  # type: ignore[arg-type]
        self.connected = True
        self.closed = False
        self.age = 0.1
        self.welcome = welcome()
        self.status: Status | None = status()
        self.live = LiveFeed()
        self.adapters = AdapterDirectory()
        self.script: Script = script or hello
        self.refusal: PenstockError | None = None
        self.refuse_after = 0
        self.submitted: list[tuple[list[int], SamplingParams, str]] = []
        self.read_at_end: list[bool] = []
        self.ready: list[ReadyParams | None] = []
        self.terms: list[Terms] = []
        self.generations: list[FakeGeneration] = []
        self.searches: list[FakeSearch] = []
        self.routed: Counter[tuple[int, str]] = Counter()
        self.moved = self.refused = 0
        self.pauses: list[tuple[bool, bool]] = []
        self.weights: list[tuple[Path, str, float | None]] = []
        self.sleeps: list[tuple[int, bool]] = []
        self.wakes: list[list[WakeTag]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.answers: list[Any] | Exception = []
        self._observer: Observer | None = None

    def name_adapters(self, adapters: list[NamedAdapter]) -> None:
        self.adapters.learn(adapters)

    async def set_paused(self, paused: bool, *, abort: bool = False) -> None:
        self.pauses.append((paused, abort))
        self.status = msgspec.structs.replace(self.status, paused=paused)

    async def replace_weights(
        self,
        source: Path,
        *,
        mode: str = "wait",
        timeout: float | None = None,
        cache_dir: str | None = None,
    ) -> None:
        """Notes it."""
        self.weights.append((source, mode, timeout))

    async def put_to_sleep(self, level: Literal[1, 2] = 1, *, abort: bool = False) -> None:
        self.sleeps.append((level, abort))
        self.status = msgspec.structs.replace(self.status, sleeping=level, asleep=True)

    async def wake_up(self, tags: Sequence[WakeTag] = ()) -> bool:
        self.wakes.append(list(tags))
        if len(tags) == 1:
            return False
        self.status = msgspec.structs.replace(self.status, sleeping=0, asleep=False)
        return True

    @property
    def sleeping(self) -> bool:
        return self.status is not None and self.status.sleeping > 0

    async def call_workers(
        self, method: str, args: Any = (), kwargs: Any = None, timeout: float | None = None
    ) -> list[bytes]:
        self.calls.append((method, args, kwargs, timeout))
        if isinstance(self.answers, Exception):
            raise self.answers
        return [encode_value(each) for each in self.answers]

    @property
    def paused(self) -> bool:
        return self.status is not None and self.status.paused

    def observe(self, observer: Observer) -> None:
        self._observer = observer

    undecided = 0
    count = 1

    @property
    def arithmetics(self) -> tuple[tuple[str, ...], ...]:
        return (
            () if self.status is None or not self.status.arithmetic else (self.status.arithmetic,)
        )

    @property
    def fingerprints(self) -> set[str]:
        told = None if self.status is None else self.status.fingerprint
        return set() if told is None else {told}

    def lately(self) -> set[str]:
        return self.fingerprints

    def fingerprint_for(self, prompt_token_ids: list[int], terms: Terms) -> str | None:
        return next(iter(self.fingerprints), None)

    async def next_status(self) -> None:
        """Comes at once."""

    def status_age(self, now: float) -> float:
        return self.age if self.status is not None else float("inf")

    @property
    def takes_requests(self) -> bool:
        return self.connected

    @property
    def engines(self) -> list[EngineState]:
        told = self.status if self.connected else None
        ready = told is not None and told.ready and not told.draining
        return [
            EngineState(
                index=0,
                endpoint="ipc:///fake",
                connected=self.connected,
                ready=ready,
                reason="" if ready else "no session",
                draining=told is not None and told.draining,
                open_requests=0,
                status=told,
                status_age=self.age,
                welcome=self.welcome,
            )
        ]

    async def ready_of_each(
        self, params: Sequence[SamplingParams], terms: Terms
    ) -> list[ReadyParams]:
        return ready_of_each(params, self.text.tokenizer, self.welcome.limits)

    async def submit(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        name: str,
        terms: Terms,
        timed: bool = False,
        media: PromptMedia | None = None,
        prediction: Sequence[int] = (),
        read_at_end: bool = False,
        known: Sequence[KnownTokens] = (),
        ready: ReadyParams | None = None,
    ) -> FakeGeneration:
        observed = await observe(self._observer, len(prompt_token_ids), params.n, terms.adapter)
        await asyncio.sleep(0)
        terms.check_time()
        self.terms.append(terms)
        if self.refusal is not None and len(self.submitted) >= self.refuse_after:
            raise self.refusal
        self.submitted.append((prompt_token_ids, params, name))
        self.read_at_end.append(read_at_end)
        self.ready.append(ready)
        steps = self.script(prompt_token_ids, params)
        generation = FakeGeneration(steps, params.n, observed, feeds=self.feeds, cached=self.cached)
        if self.status is not None:
            generation.placement.placed(
                Computing.told(self.status, self.welcome, None), begun=False
            )
        generation.prediction = prediction
        if prediction:
            generation.drafted, generation.kept = 9, 7
        self.begin(generation, params.n, timed=timed or observed.timed)
        observed.accepted(generation.timing, params.max_tokens or CONTEXT - len(prompt_token_ids))
        observed.entered()
        self.generations.append(generation)
        return generation

    def begin(self, generation: FakeGeneration, n: int, *, timed: bool) -> None:
        """For fakes that have more to say of a generation."""

    async def search(
        self,
        prompt_token_ids: list[int],
        follow: Follow,
        *,
        beams: int,
        candidates: int,
        name: str,
        terms: Terms,
    ) -> FakeSearch:
        observed = await observe(self._observer, len(prompt_token_ids), beams)
        await asyncio.sleep(0)
        observed.accepted(None)
        self.searches.append(FakeSearch(follow, candidates, observed))
        return self.searches[-1]


class FakeSearch:
    """A beam search that has ended already: A is the likeliest letter, whatever came before."""

    def __init__(self, follow: Follow, candidates: int, observed: RequestEvents) -> None:
        self.generated = 0
        observed.found_cached(0)
        self.done: asyncio.Future[FinishReason] = asyncio.get_running_loop().create_future()
        entry = logprobs_of(ord("A"), candidates)
        step: NextStep = [[]]
        while not isinstance(step, str):
            self.generated += len(step)
            observed.gain(len(step))
            step = follow([Outcome(entry, "length") for _ in step])
        self.done.set_result(step)
        observed.end_search(step)

    def abort(self) -> None: ...


def welcome(**changes: Any) -> Welcome:
    fields: dict[str, Any] = {
        "version": 1,
        "boot": "b00t",
        "model": MODEL,
        "digest": "d1gest",
        "created": 1_700_000_000,
        "limits": Limits(
            max_grammar_bytes=65_536,
            max_model_len=CONTEXT,
            vocab_size=VOCABULARY,
            max_waiting_requests=100,
            max_num_seqs=8,
            grammar_kinds=get_args(GrammarKind),
        ),
        "generation": GenerationDefaults(eos_token_ids=(END,)),
        "add_bos": False,
        "seed": None,
    }
    return Welcome(**fields | changes)


def status(**changes: Any) -> Status:
    fields: dict[str, Any] = {
        "ready": True,
        "reason": "",
        "fingerprint": "digest float32 reference avx2 tp1",
        "waiting": 1,
        "running": 2,
        "blocks_total": 100,
        "blocks_free": 60,
        "block_size": 16,
        "steps": 7,
        "preemptions": 0,
        "frontends": 1,
        "workers": 1,
    }
    return Status(**fields | changes)


def logprobs_of(token: int, count: int) -> TokenLogprobs:
    """The emitted token at -0.5, the tokens after it below; the last one impossible."""
    ids = [(token + i) % 256 for i in range(count)]
    values = [-0.5 - i for i in range(count)]
    if count > 1:
        values[-1] = -1e30
    return TokenLogprobs(-0.5, tuple(ids), tuple(values))


def say(text: str, *, finish: str = "stop", stop_reason: int | str | None = None) -> Script:
    """Every sequence says `text` and then its index, a byte a wake-up; text of a character comes
    with its last byte, as from a real detokeniser. Ends in END when finish is "stop"."""

    def script(prompt: list[int], params: SamplingParams) -> Iterable[Step]:
        for characters in zip(*(f"{text}{i}" for i in range(params.n)), strict=True):
            for place in range(len(characters[0].encode())):
                yield [
                    _delta(i, character, place, params) for i, character in enumerate(characters)
                ]
        ended = [END] if finish == "stop" and stop_reason is None else []
        yield [
            SequenceDelta(
                index=i,
                token_ids=list(ended),
                logprobs=None if params.logprobs is None else [logprobs_of(END, 0)] * len(ended),
                finish_reason=finish,  # type: ignore[arg-type]
                stop_reason=stop_reason,
            )
            for i in range(params.n)
        ]

    return script


def _delta(index: int, character: str, place: int, params: SamplingParams) -> SequenceDelta:
    raw = character.encode()
    return SequenceDelta(
        index=index,
        text=character if place == len(raw) - 1 else "",
        token_ids=[raw[place]],
        logprobs=None if params.logprobs is None else [logprobs_of(raw[place], params.logprobs)],
    )


HELLO = "Hé 👋"
hello = say(HELLO)
