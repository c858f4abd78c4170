"""AsyncLLM: requests as streams, in the caller's event loop."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

import msgspec

from penstock.call_values import decode_value
from penstock.client import BeamSearchParams, EngineClient, Generation, ModelText
from penstock.client.replacing import ChangeMode
from penstock.client.sleeping import sleep_level, wake_tags
from penstock.config.settings import EngineConfig
from penstock.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    InvalidRequest,
    Overloaded,
    RequestFailed,
)
from penstock.generation_config import sampling_defaults
from penstock.llm.adapters import GivenAdapters, LibraryAdapters
from penstock.llm.assembly import Assembly, timed_out_output
from penstock.llm.beam import search_all
from penstock.llm.beam_outputs import BeamSearchOutput
from penstock.llm.given_weights import GivenWeights
from penstock.llm.keywords import engine_config
from penstock.llm.launched_engine import LaunchedEngine
from penstock.llm.media_prompts import (
    LibraryPrompt,
    library_chat,
    library_prompt,
    without_media,
)
from penstock.llm.model_tokenizer import ModelTokenizer
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
from penstock.llm.running_transcript import RunningTranscript
from penstock.lora import LoRARequest
from penstock.media.desk import MediaDesk
from penstock.media.items import PromptMedia
from penstock.media.sources import MediaSource
from penstock.protocol.to_frontend import Status, Welcome
from penstock.sampling_params import RequestOutputKind, SamplingParams
from penstock.terms import Terms, checked_session
from penstock.transcription.begin import begin
from penstock.transcription.transcript import Transcript
from penstock.transcription.wishes import Wishes

START_TIMEOUT = 600.0
"""Seconds that an engine gets to load its model."""


class AsyncLLM(AsyncPooling):
    """Serves a model from this process's own engine, or from one that already runs.

    model and settings: as the flags of `penstock serve`, with underscores (dtype, max_model_len,
    num_kv_blocks, …), or under vLLM's names (see `penstock.llm.keywords`).  engine_endpoint: dial
    this engine core instead of starting one; no other setting may be given then.  engine_log: a
    file that the started processes write their logs to, such as sys.stderr; default: nobody sees
    them.

    Use `async with`; or just use it, which starts it, and `shutdown()` it.

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
        if model is not None:
            settings["model"] = model
        if engine_endpoint is not None and settings:
            raise ValueError(
                f"engine_endpoint was given with {', '.join(sorted(settings))}; "
                "a running engine core has its own settings"
            )
        self._config: EngineConfig = engine_config(settings)
        self._endpoint = engine_endpoint
        self._engine_log = engine_log
        self._starting = asyncio.Lock()
        self._running: dict[str, Generation | RunningTranscript] = {}
        self._engine: LaunchedEngine | None = None
        self._client: EngineClient | None = None
        self._desk = MediaDesk(self._config.media)
        self._adapters = LibraryAdapters(self._config.model.cache_dir)
        self._given = GivenWeights(self._config.model.model, self._config.model.cache_dir)
        self._numbers = itertools.count()

    @classmethod
    def from_engine_args(cls, engine_args: Any, **unused: Any) -> AsyncLLM:
        """From an AsyncEngineArgs. What else vLLM takes here has no meaning."""
        keywords = {name: getattr(engine_args, name) for name in engine_args.__dataclass_fields__}
        return cls(**keywords)

    async def start(self) -> None:
        """Starts the engine where needed and waits until it serves. Raises StartupError."""
        async with self._starting:
            if self._client is None:
                await self._start()

    async def _start(self) -> None:
        endpoint = self._endpoint
        self._desk = MediaDesk(self._config.media)  # One that was closed stays so.
        if endpoint is None:
            self._engine = LaunchedEngine(self._config, log=self._engine_log)
            endpoint = self._engine.endpoint
            try:
                await asyncio.to_thread(self._engine.wait_ready, START_TIMEOUT)
            except BaseException:
                self._stop_engine()
                raise
        client = EngineClient(endpoint, name="library", settings=self._config.transport)
        await client.start()
        self._client = client
        try:
            await client.wait_connected(30.0)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Aborts what runs and stops the engine that `start` started. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        self._desk.close()
        self._stop_engine()
        self._given.close()

    def shutdown(self) -> None:
        """The same for who can't wait, in the event loop or after its end. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close_now()
        self._desk.close()
        self._stop_engine()
        self._given.close()

    async def __aenter__(self) -> AsyncLLM:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def text(self) -> ModelText:
        """Tokenizer and chat template of the model."""
        text = self._started().text
        if text is None:
            raise EngineUnavailable("the engine has not said yet which model it serves")
        return text

    @property
    def welcome(self) -> Welcome:
        """What the engine core said of itself and its model."""
        welcome = self._started().welcome
        if welcome is None:
            raise EngineUnavailable("the engine has not said yet which model it serves")
        return welcome

    @property
    def status(self) -> Status | None:
        """The engine core's last word about its state."""
        return self._started().status

    @property
    def window(self) -> int:
        """Requests worth having in flight at once: enough to keep every step full."""
        limits = self.welcome.limits
        return min(limits.max_waiting_requests, 2 * limits.max_num_seqs)

    @property
    def tokenizer(self) -> ModelTokenizer:
        """See get_tokenizer; of one that has started."""
        return ModelTokenizer(self.text, self.welcome.generation, self.welcome.model)

    @property
    def default_sampling_params(self) -> SamplingParams:
        """The model's own generation defaults; of one that has started."""
        return SamplingParams(**sampling_defaults(self.welcome.generation))

    async def get_tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer, under transformers' method names."""
        await self.start()
        return self.tokenizer

    async def get_default_sampling_params(self) -> SamplingParams:
        """What is used where no SamplingParams are given: the model's own generation defaults."""
        await self.start()
        return self.default_sampling_params

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
        """Yields what `sampling_params.output_kind` says each time something new has come: the same
        RequestOutput, grown (CUMULATIVE); one with the news alone (DELTA); one at the end.

        priority: the lower value is served earlier, where the scheduling policy knows priorities.
        deadline_ms: from now; what isn't finished then ends with finish_reason "timeout".
        lora_request: the adapter that is applied.  session_id: the conversation that this is a turn
        of, whose KV blocks are kept for so many seconds after it (default: --kv-retention-seconds).

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
        """As generate, for a conversation in the model's chat template. See LLM.chat."""
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

    async def transcribe(
        self,
        audio: str | os.PathLike[str] | bytes,
        wishes: Wishes | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        deadline_ms: float | None = None,
    ) -> Transcript:
        """The text of a recording: a file's path, or its bytes. request_id, priority and
        deadline_ms: as generate has them.

        Cancelling it aborts what runs.  Raises InvalidRequest for what is no recording, and for a
        model that doesn't transcribe; DeadlineExceeded; RequestFailed where `abort` ended it.
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
        self, source: MediaSource, wishes: Wishes, name: str, terms: Terms
    ) -> Transcript:
        client, desk = self._started(), self._desk
        with desk.lease(terms.tenant, terms.deadline) as lease:
            transcriber = await begin(
                client, desk, self.text, source, lease, wishes, name=name, terms=terms
            )
            return await Transcript(transcriber).filled()

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends open requests; their streams end with finish_reason "abort", and a transcript with
        RequestFailed. Others are ignored."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            generation = self._running.get(name)
            if generation is not None:
                generation.abort()

    async def reset_prefix_cache(self) -> bool:
        """From now on nothing is shared with earlier requests; as in vLLM, always True."""
        await self.start()
        self._started().reset_prefix_cache()
        return True

    async def pause_generation(self, *, mode: Literal["abort", "keep"] = "abort") -> None:
        """Stops computing, as in vLLM; returns once no step runs any more. mode: abort ends open
        requests as they are; keep lets them go on where they were. Raises InvalidRequest."""
        if mode not in ("abort", "keep"):
            raise InvalidRequest(f"mode is {mode!r}; allowed: abort, keep", param="mode")
        await self.start()
        await self._started().set_paused(True, abort=mode == "abort")

    async def resume_generation(self) -> None:
        """Goes on computing."""
        await self.start()
        await self._started().set_paused(False)

    async def is_paused(self) -> bool:
        """Whether nothing is computed until resume_generation."""
        await self.start()
        return self._started().paused

    async def sleep(self, level: int = 1, mode: Literal["abort", "keep"] = "abort") -> None:
        """Gives the model's memory back, as in vLLM; returns once it is free. level: 1 for the KV
        cache, and a device's weights; 2 for all weights, too. mode: abort ends open requests as
        they are; keep lets them go on where they were. Requests that come meanwhile wait. Raises
        InvalidRequest."""
        if mode not in ("abort", "keep"):
            raise InvalidRequest(f"mode is {mode!r}; allowed: abort, keep", param="mode")
        depth = sleep_level(level)
        await self.start()
        await self._started().put_to_sleep(depth, abort=mode == "abort")

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Loads the model again, and goes on; returns then. tags: "weights" or "kv_cache": what is
        wanted again. It wakes once both were named. Raises InvalidRequest."""
        wanted = wake_tags(tags)
        await self.start()
        await self._started().wake_up(wanted)

    async def is_sleeping(self) -> bool:
        """Whether it computes nothing until wake_up."""
        await self.start()
        return self._started().sleeping

    async def update_weights(
        self,
        model: str | os.PathLike[str] | None = None,
        mode: ChangeMode = "wait",
        timeout: float | None = None,
        *,
        tensors: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None,
    ) -> None:
        """Replaces the model's weights by those of a folder or .gguf file, or of a model on the
        hub; returns once they are loaded. Architecture and tokenizer must be the same; the chat
        template and sampling defaults stay as they are.

        tensors, in place of a model: torch's or NumPy's, all that its checkpoint has, by the names
        there; of a model whose checkpoint is in the hub's format, and that this object has started.
        They go through the machine's shared memory, and the caller's may be changed afterwards.

        No answer comes of both: mode wait has requests that have begun end first, within so many
        seconds (timeout: 60; at most 3600), and holds those that come meanwhile; abort ends all
        that are open as they are. KV of the former weights is never used again.

        Raises InvalidRequest for what are no other weights of this model, DeadlineExceeded,
        EngineUnavailable, and RequestFailed where they can't be loaded: then the former ones stay.
        """
        if (model is None) == (tensors is None):
            raise InvalidRequest("weights come as a model or as tensors; give one of the two")
        await self.start()
        if tensors is not None:
            await self._take_tensors(tensors, mode, timeout)
            return
        client = self._started()
        await client.replace_weights(
            model or "", mode=mode, timeout=timeout, cache_dir=self._config.model.cache_dir
        )
        self._given.taken(newest=False, promised=client.sleeping)

    async def _take_tensors(
        self,
        tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
        mode: ChangeMode,
        timeout: float | None,
    ) -> None:
        if self._endpoint is not None:
            raise InvalidRequest(
                "tensors can be given to a model that this object has started; an engine core that"
                " runs elsewhere takes a folder",
                param="tensors",
            )
        given, client = self._given, self._started()
        folder = await asyncio.to_thread(given.write, tensors)
        try:
            await client.replace_weights(
                folder, mode=mode, timeout=timeout, cache_dir=given.cache_of(folder)
            )
        except (InvalidRequest, RequestFailed):
            given.refused()
            raise
        given.taken(newest=True, promised=client.sleeping)

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a method of a worker extension on all ranks, between two steps; as in vLLM, but a
        method is named, and never sent. Returns what each rank does, in their order.

        timeout: seconds (60; at most 3600) for which it may wait until it begins, and then again
        for which it may run; a worker in which it runs longer is replaced, and streams go on.
        args, kwargs: plain values and arrays; arrays come back as NumPy's.

        Raises InvalidRequest for a method or arguments that there is no way to call with,
        RequestFailed where it raised, DeadlineExceeded where it could not begin, and
        EngineUnavailable where a worker ended meanwhile.
        """
        await self.start()
        results = await self._started().call_workers(method, args, kwargs, timeout)
        return [decode_value(each) for each in results]

    async def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        lora_request: GivenAdapters = None,
        deadline_ms: float | None = None,
    ) -> list[BeamSearchOutput]:
        """The best hypotheses of each prompt. Cancelling it aborts what runs."""
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
        """One request without streaming; waits and tries again while the engine has no room.

        One whose deadline passes meanwhile has ended as if it had passed while it ran.
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

    def _started(self) -> EngineClient:
        if self._client is None:
            raise EngineUnavailable("not started: use `async with AsyncLLM(...)` or start() first")
        return self._client

    def _stop_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()

    def __repr__(self) -> str:
        config = msgspec.structs.asdict(self._config.model)
        return f"AsyncLLM(model={config['model']!r})"
