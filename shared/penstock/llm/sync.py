"""LLM: the library for scripts. Blocking calls over an AsyncLLM in a thread of its own."""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from tqdm import tqdm

from penstock.client.model_text import ModelText
from penstock.errors import PenstockError
from penstock.llm.asynchronous import AsyncLLM
from penstock.llm.outputs import RequestOutput
from penstock.llm.pooling import PoolingCalls
from penstock.llm.prompts import (
    Message,
    Prompt,
    conversation_list,
    params_list,
    prompt_list,
    terms_list,
    tokenise_chat,
    tokenise_prompt,
    with_salt,
)
from penstock.sampling_params import SamplingParams
from penstock.terms import Terms

Value = TypeVar("Value")


class _Loop:
    """An event loop in a daemon thread, which is also the thread that the engine is tied to."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="penstock")
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Value]) -> Future[Value]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _shut_down(loop: _Loop, llm: AsyncLLM) -> None:
    loop.start(llm.close()).result()
    loop.stop()


class LLM(PoolingCalls):
    """Generates text with a model, through an engine core and a worker of its own.

    `LLM("smollm2-135m", dtype="float32", max_model_len=2048)`; settings are the flags of
    `penstock serve` with underscores.  Close it with `with LLM(...) as llm:`, `llm.close()`, or by
    leaving the interpreter: no process stays behind.

    Raises StartupError when the model can't be served, ValueError for a bad setting.
    """

    def __init__(
        self, model: str | None = None, *, engine_endpoint: str | None = None, **settings: Any
    ) -> None:
        self._llm = AsyncLLM(model, engine_endpoint=engine_endpoint, **settings)
        self._loop = _Loop()
        self._numbers = itertools.count()
        try:
            self._loop.start(self._llm.start()).result()
        except BaseException:
            _shut_down(self._loop, self._llm)
            raise
        # Runs on close, when the object is collected, or at interpreter exit: once.
        self._finalizer = weakref.finalize(self, _shut_down, self._loop, self._llm)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        deadline_ms: float | None = None,
    ) -> list[RequestOutput]:
        """One RequestOutput per prompt, in the prompts' order.

        prompts: a string, {"prompt_token_ids": [...]}, or a list of these.  sampling_params: one
        for all or one each.  priority: one value each; the lower is served earlier, where the
        scheduling policy knows priorities.  deadline_ms: from now, for all; what isn't finished
        then ends with finish_reason "timeout".  Raises ValueError for a bad prompt before anything
        runs.
        """
        text = self._text()
        given = prompt_list(prompts)
        tokenised = [tokenise_prompt(prompt, text) for prompt in given]
        terms = terms_list(priority, deadline_ms, len(tokenised))
        terms = [with_salt(prompt, each) for prompt, each in zip(given, terms, strict=True)]
        return self._run(tokenised, params_list(sampling_params, len(tokenised)), terms, use_tqdm)

    def chat(
        self,
        messages: list[Message] | list[list[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        priority: Sequence[int] | None = None,
        deadline_ms: float | None = None,
    ) -> list[RequestOutput]:
        """As generate, for one conversation or a list of them, in the model's chat template."""
        text = self._text()
        tokenised: list[tuple[str | None, list[int]]] = [
            (None, tokenise_chat(chat, text, add_generation_prompt=add_generation_prompt))
            for chat in conversation_list(messages)
        ]
        terms = terms_list(priority, deadline_ms, len(tokenised))
        return self._run(tokenised, params_list(sampling_params, len(tokenised)), terms, use_tqdm)

    def close(self) -> None:
        """Stops the engine. Idempotent; the object can't be used afterwards."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _text(self) -> ModelText:
        if not self._finalizer.alive:
            raise RuntimeError("this LLM is closed")
        return self._llm.text

    def _run(
        self,
        prompts: list[tuple[str | None, list[int]]],
        params: list[SamplingParams],
        terms: list[Terms],
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        with tqdm(total=len(prompts), desc="requests", disable=not use_tqdm) as bar:
            everything = self._loop.start(self._run_all(prompts, params, terms, bar))
            try:
                return everything.result()
            except BaseException:
                everything.cancel()  # Ctrl-C: what still runs is aborted in the engine.
                raise

    async def _run_all(
        self,
        prompts: list[tuple[str | None, list[int]]],
        params: list[SamplingParams],
        terms: list[Terms],
        bar: tqdm[Any],
    ) -> list[RequestOutput]:
        window = asyncio.Semaphore(self._llm.window)

        async def run(
            prompt: str | None, ids: list[int], one: SamplingParams, when: Terms
        ) -> RequestOutput:
            async with window:
                name = f"library-{next(self._numbers)}"
                output = await self._llm.run_to_end(prompt, ids, one, name, when)
            bar.update()
            return output

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(run(prompt, ids, one, when))
                    for (prompt, ids), one, when in zip(prompts, params, terms, strict=True)
                ]
        except* PenstockError as failures:
            # The others have been cancelled; the caller gets the first error as it is.
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]
