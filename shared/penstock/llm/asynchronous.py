"""AsyncLLM: requests as streams, in the caller's event loop."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import msgspec

from penstock.cli.config_tree import replace_settings
from penstock.client import EngineClient, ModelText
from penstock.config import EngineConfig
from penstock.errors import DeadlineExceeded, EngineUnavailable, Overloaded
from penstock.llm.launched_engine import LaunchedEngine
from penstock.llm.outputs import RequestOutput, add_delta, empty_output, timed_out_output
from penstock.llm.pooling import AsyncPooling
from penstock.llm.prompts import Message, Prompt, tokenise_chat, tokenise_prompt, with_salt
from penstock.sampling_params import SamplingParams
from penstock.terms import Terms

START_TIMEOUT = 600.0
"""Seconds that an engine gets to load its model."""


class AsyncLLM(AsyncPooling):
    """Serves a model from this process's own engine, or from one that already runs.

    model and settings: as the flags of `penstock serve`, with underscores (dtype, max_model_len,
    num_kv_blocks, …).  engine_endpoint: dial this engine core instead of starting one; no other
    setting may be given then.  Use `async with`, or `start()` and `close()`.

    Raises InvalidRequest (a ValueError) for a setting that doesn't exist or is out of range.
    """

    def __init__(
        self, model: str | None = None, *, engine_endpoint: str | None = None, **settings: Any
    ) -> None:
        if model is not None:
            settings["model"] = model
        if engine_endpoint is not None and settings:
            raise ValueError(
                f"engine_endpoint was given with {', '.join(sorted(settings))}; "
                "a running engine core has its own settings"
            )
        self._config: EngineConfig = replace_settings(EngineConfig(), settings)
        self._endpoint = engine_endpoint
        self._engine: LaunchedEngine | None = None
        self._client: EngineClient | None = None
        self._numbers = itertools.count()

    async def start(self) -> None:
        """Starts the engine where needed and waits until it serves. Raises StartupError."""
        if self._client is not None:
            return
        endpoint = self._endpoint
        if endpoint is None:
            self._engine = LaunchedEngine(self._config)
            endpoint = self._engine.endpoint
            try:
                await asyncio.to_thread(self._engine.wait_ready, START_TIMEOUT)
            except BaseException:
                self._stop_engine()
                raise
        self._client = EngineClient(endpoint, name="library", settings=self._config.transport)
        await self._client.start()
        try:
            await self._client.wait_connected(30.0)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Aborts what runs and stops the engine that `start` started. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        self._stop_engine()

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
    def window(self) -> int:
        """Requests worth having in flight at once: enough to keep every step full."""
        welcome = self._started().welcome
        if welcome is None:
            return 1
        return min(welcome.limits.max_waiting_requests, 2 * welcome.limits.max_num_seqs)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        deadline_ms: float | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Yields the same RequestOutput, grown, each time something new has come.

        priority: the lower value is served earlier, where the scheduling policy knows priorities.
        deadline_ms: from now; what isn't finished then ends with finish_reason "timeout".

        Leaving the iteration early aborts the request.  Raises InvalidRequest, Overloaded,
        EngineUnavailable or RequestFailed.
        """
        terms = Terms.checked(priority=priority, deadline_ms=deadline_ms)
        terms = with_salt(prompt, terms)
        text, ids = tokenise_prompt(prompt, self.text)
        async for output in self._stream(text, ids, sampling_params, request_id, terms):
            yield output

    async def chat(
        self,
        messages: list[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        add_generation_prompt: bool = True,
        priority: int = 0,
        deadline_ms: float | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """As generate, for a conversation in the model's chat template."""
        terms = Terms.checked(priority=priority, deadline_ms=deadline_ms)
        ids = tokenise_chat(messages, self.text, add_generation_prompt=add_generation_prompt)
        async for output in self._stream(None, ids, sampling_params, request_id, terms):
            yield output

    async def _stream(
        self,
        prompt: str | None,
        ids: list[int],
        params: SamplingParams | None,
        request_id: str | None,
        terms: Terms,
    ) -> AsyncIterator[RequestOutput]:
        name = request_id if request_id is not None else f"library-{next(self._numbers)}"
        client = self._started()
        generation = await client.submit(ids, params or SamplingParams(), name=name, terms=terms)
        output = empty_output(generation, prompt)
        try:
            async for deltas in generation:
                for delta in deltas:
                    add_delta(output.outputs[delta.index], delta, self.text.tokenizer)
                output.finished = generation.finished
                output.num_cached_tokens = generation.cached_tokens
                yield output
        finally:
            generation.abort()

    async def run_to_end(
        self, prompt: str | None, ids: list[int], params: SamplingParams, name: str, terms: Terms
    ) -> RequestOutput:
        """One request without streaming; waits and tries again while the engine has no room.

        One whose deadline passes meanwhile has ended as if it had passed while it ran.
        """
        while True:
            try:
                last = None
                async for output in self._stream(prompt, ids, params, name, terms):
                    last = output
                if last is None:
                    raise EngineUnavailable("the request ended without an output")
                return last
            except Overloaded as refusal:
                wait = max(0.05, min(refusal.retry_after, 5.0))
                left = terms.time_left_ms(time.monotonic())
                await asyncio.sleep(wait if left is None else min(wait, left / 1000))
            except DeadlineExceeded:
                return timed_out_output(name, prompt, ids, params)

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
