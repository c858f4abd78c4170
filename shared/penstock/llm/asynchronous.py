"""AsyncLLM: requests as streams, in the caller's event loop."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from penstock.client import BeamSearchParams, EngineClient, Generation, beam_search
from penstock.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    InvalidRequest,
    Overloaded,
    PenstockError,
    RequestFailed,
)
from penstock.llm.adapters import GivenAdapters, LibraryAdapters
from penstock.llm.assembly import Assembly, BeamSearchOutput, beam_output, timed_out_output
from penstock.llm.engine_control import EngineControl
from penstock.llm.media_prompts import (
    LibraryPrompt,
    library_chat,
    library_prompt,
    without_media,
)
from penstock.llm.outputs import RequestOutput
from penstock.llm.pooling import AsyncPooling
from penstock.llm.prompts import (
    Message,
    Prompt,
    prompt_list,
    terms_list,
    with_salt,
    with_template,
)
from penstock.media.item_names import PromptMedia
from penstock.media.sources import MediaSource
from penstock.request.lora import LoRARequest
from penstock.request.sampling_params import RequestOutputKind, SamplingParams
from penstock.request.terms import Terms, checked_session
from penstock.transcription.begin import begin
from penstock.transcription.transcript import Transcript
from penstock.transcription.wishes import Wishes


class AsyncTranscription:
    """Mixed into AsyncLLM."""

    async def transcribe(
        self: Any,
        audio: str | os.PathLike[str] | bytes,
        wishes: Wishes | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        deadline_ms: float | None = None,
    ) -> Transcript:
        """The text of a recording, given as a file's path or its bytes. request_id, priority and
        deadline_ms: as for generate.

        Cancelling the call aborts its requests.  Raises InvalidRequest for anything that is no
        recording and for a model that doesn't transcribe; DeadlineExceeded; RequestFailed if
        `abort` ended it.
        """
        await self.start()
        terms = Terms.checked(priority=priority, deadline_ms=deadline_ms)
        data, path = (audio, None) if isinstance(audio, bytes) else (None, Path(audio))
        source = MediaSource("audio", kind="audio", data=data, path=path)
        name = self._free_name(request_id)
        running = RunningTranscript(self._transcript(source, wishes or Wishes(), name, terms))
        self._running[name] = running
        try:
            return await running.whole()
        finally:
            self._running.pop(name, None)

    async def _transcript(
        self: Any, source: MediaSource, wishes: Wishes, name: str, terms: Terms
    ) -> Transcript:
        client, desk = self._started(), self._desk
        with desk.lease(terms.tenant, terms.deadline) as lease:
            transcriber = await begin(
                client, desk, self.text, source, lease, wishes, name=name, terms=terms
            )
            return await Transcript(transcriber).filled()


class AsyncLLM(EngineControl, AsyncTranscription, AsyncPooling):
    """Serves a model from its own engine, or from one that is already running.

    model and settings: the flags of `penstock serve` with underscores (dtype, max_model_len,
    num_kv_blocks, …), or vLLM's names (see `penstock.llm.keywords`).  engine_endpoint: connect to
    this engine core instead of starting one; then no other setting may be given.  engine_log: a
    file for the logs of the started processes, such as sys.stderr; by default they are hidden.

    Use `async with`. Or just use it, which starts it, and call `shutdown()` at the end.

    Raises InvalidRequest (a ValueError) for a setting that doesn't exist or is out of range.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        engine_endpoint: str | None = None,
        engine_log: IO[Any] | None = None,
        **settings: Any,
    ) -> None:
        given = {"engine_endpoint": engine_endpoint, "engine_log": engine_log, **settings}
        try:
            super().__init__(model, **given)
        except PenstockError as error:
            raise error.with_traceback(None) from None  # Its message says it all.
        self._running: dict[str, Generation | RunningTranscript] = {}
        self._adapters = LibraryAdapters(self._config.model.cache_dir)
        self._numbers = itertools.count()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        lora_request: LoRARequest | None = None,
        *,
        priority: int = 0,
        deadline_ms: float | None = None,
        session_id: str | None = None,
        kv_retention_seconds: float | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Yields outputs as new tokens arrive, in the form that `sampling_params.output_kind` asks
        for: the same growing RequestOutput (CUMULATIVE), one with only what is new (DELTA), or one
        at the end (FINAL_ONLY).

        priority: lower values are served first if the scheduling policy supports priorities.
        deadline_ms: from now; a sequence that isn't finished by then ends with finish_reason
        "timeout".  lora_request: the adapter to apply.  session_id: the conversation that the
        prompt continues; its KV blocks are kept for kv_retention_seconds afterwards (default:
        --kv-retention-seconds).

        Leaving the iteration early, or cancelling its task, aborts the request.  Raises
        InvalidRequest, Overloaded, EngineUnavailable or RequestFailed.
        """
        await self.start()
        session = checked_session(session_id, kv_retention_seconds)
        terms = Terms.checked(priority=priority, deadline_ms=deadline_ms, session=session)
        (terms,) = await self.with_adapters([with_salt(prompt, terms)], lora_request)
        given = library_prompt(prompt, self.text)
        async for output in self._stream(given, sampling_params, request_id, terms):
            yield output

    async def chat(
        self,
        messages: list[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        lora_request: LoRARequest | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        priority: int = 0,
        deadline_ms: float | None = None,
        session_id: str | None = None,
        kv_retention_seconds: float | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Streams the answer as generate does, for a conversation in the model's chat template. See
        LLM.chat."""
        await self.start()
        session = checked_session(session_id, kv_retention_seconds)
        terms = Terms.checked(priority=priority, deadline_ms=deadline_ms, session=session)
        (terms,) = await self.with_adapters([terms], lora_request)
        given = self.tokenise_chat(
            messages,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
        )
        async for output in self._stream(given, sampling_params, request_id, terms):
            yield output

    async def with_adapters(self, terms: list[Terms], given: GivenAdapters) -> list[Terms]:
        """The terms of some prompts, each with its adapter. Raises InvalidRequest."""
        return await self._adapters.apply(terms, given, self.welcome.max_lora_rank)

    def tokenise_chat(
        self,
        messages: list[Message],
        *,
        chat_template: str | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: list[dict[str, Any]] | None,
        chat_template_kwargs: Mapping[str, Any] | None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> LibraryPrompt:
        """A conversation in its template. Raises InvalidRequest."""
        text = with_template(self.text, chat_template, self.welcome.generation)
        return library_chat(
            messages,
            text,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables={"tools": tools, **(chat_template_kwargs or {})},
            mm_processor_kwargs=mm_processor_kwargs,
        )

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends open requests: their streams end with finish_reason "abort", a transcript with
        RequestFailed. Unknown ids are ignored."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            generation = self._running.get(name)
            if generation is not None:
                generation.abort()

    async def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        lora_request: GivenAdapters = None,
        deadline_ms: float | None = None,
    ) -> list[BeamSearchOutput]:
        """The best hypotheses of each prompt. Cancelling the call aborts its requests."""
        await self.start()
        given = prompt_list(prompts)
        prompts = [
            without_media(library_prompt(prompt, self.text), "beam search").prompt_token_ids
            for prompt in given
        ]
        terms = terms_list(None, deadline_ms, len(given))
        terms = [with_salt(prompt, each) for prompt, each in zip(given, terms, strict=True)]
        terms = await self.with_adapters(terms, lora_request)
        return await search_all(self._started(), prompts, params, terms, window=self.window)

    async def _stream(
        self,
        prompt: LibraryPrompt,
        params: SamplingParams | None,
        request_id: str | None,
        terms: Terms,
    ) -> AsyncIterator[RequestOutput]:
        with self._desk.lease(terms.tenant, terms.deadline) as lease:
            ids, media = await prompt.ready(self._desk, self.text, lease)
            async for output in self._outputs(prompt.text, ids, media, params, request_id, terms):
                yield output

    async def _outputs(
        self,
        prompt: str | None,
        prompt_token_ids: list[int],
        media: PromptMedia | None,
        params: SamplingParams | None,
        request_id: str | None,
        terms: Terms,
    ) -> AsyncIterator[RequestOutput]:
        name = self._free_name(request_id)
        client = self._started()
        # A copy: what the caller does to theirs from now on is about the next request.
        own = self.default_sampling_params if params is None else params.clone()
        generation = await client.submit(prompt_token_ids, own, name=name, terms=terms, media=media)
        self._running[name] = generation
        in_front = 0 if media is None else media.in_front
        assembly = Assembly(generation, prompt, self.text.tokenizer, in_front)
        try:
            async for deltas in generation:
                output = assembly.take(deltas)
                if output is not None:
                    yield output
        finally:
            self._running.pop(name, None)
            generation.abort()

    async def run_to_end(
        self,
        prompt: LibraryPrompt,
        params: SamplingParams,
        name: str,
        terms: Terms,
    ) -> RequestOutput:
        """Runs one request without streaming; waits and tries again while the engine has no room.

        If its deadline passes meanwhile, it ends as if that had happened while it ran.
        """
        if params.output_kind is not RequestOutputKind.FINAL_ONLY:
            params = msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
        while True:
            try:
                last = None
                async for output in self._stream(prompt, params, name, terms):
                    last = output
                if last is None:
                    raise EngineUnavailable("the request ended without an output")
                return last
            except Overloaded as refusal:
                wait = max(0.05, min(refusal.retry_after, 5.0))
                left = terms.time_left_ms(time.monotonic())
                await asyncio.sleep(wait if left is None else min(wait, left / 1000))
            except DeadlineExceeded:
                return timed_out_output(name, prompt.text, prompt.prompt_token_ids, params)

    def _free_name(self, request_id: str | None) -> str:
        """Raises InvalidRequest for one that is in use."""
        name = request_id if request_id is not None else f"library-{next(self._numbers)}"
        if name in self._running:
            raise InvalidRequest(f"request_id {name!r} is in use by an open request")
        return name

    def __repr__(self) -> str:
        config = msgspec.structs.asdict(self._config.model)
        return f"AsyncLLM(model={config['model']!r})"


_NUMBERS = itertools.count()


async def search_all(
    client: EngineClient,
    prompt_token_ids: list[list[int]],
    params: BeamSearchParams,
    terms: list[Terms],
    *,
    window: int,
) -> list[BeamSearchOutput]:
    """One output for each prompt, in order.

    window: sequences worth having in flight; every search has one for each beam.
    Raises what beam_search raises, for the first that does; the others are ended.
    """
    if client.text is None:
        raise EngineUnavailable("the engine has not said yet which model it serves")
    tokenizer = client.text.tokenizer
    room = asyncio.Semaphore(max(1, window // params.beam_width))

    async def run(token_ids: list[int], when: Terms) -> BeamSearchOutput:
        async with room:
            name = f"beam-{next(_NUMBERS)}"
            found = await beam_search(client, token_ids, params, name=name, terms=when)
        return beam_output(token_ids, found, tokenizer)

    try:
        async with asyncio.TaskGroup() as group:
            pairs = zip(prompt_token_ids, terms, strict=True)
            tasks = [group.create_task(run(token_ids, when)) for token_ids, when in pairs]
    except* PenstockError as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


class RunningTranscript:
    """A transcription in a task of its own, so that it can be ended between two windows too."""

    def __init__(self, work: Coroutine[Any, Any, Transcript]) -> None:
        self._task = asyncio.ensure_future(work)
        self._aborted = False

    def abort(self) -> None:
        """Ends it, and what runs of it in the engine. Idempotent."""
        self._aborted = True
        self._task.cancel()

    async def whole(self) -> Transcript:
        """Returns the whole transcript at the end of the recording. Raises RequestFailed where
        `abort` came first, and what the work raises. Cancelling this ends the work."""
        try:
            return await self._task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._aborted and not (caller is not None and caller.cancelling()):
                raise RequestFailed("the request was aborted by its caller") from None
            raise
