"""LLM: the library for scripts. Blocking calls over an AsyncLLM in a thread of its own."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Literal

from penstock.client import BeamSearchParams
from penstock.client.replacing import ChangeMode
from penstock.client.served_model import ModelText
from penstock.errors import PenstockError
from penstock.llm.adapters import GivenAdapters
from penstock.llm.assembly import BeamSearchOutput
from penstock.llm.asynchronous import AsyncLLM
from penstock.llm.background_loop import BackgroundLoop
from penstock.llm.media_prompts import LibraryPrompt, library_prompt
from penstock.llm.model_tokenizer import ModelTokenizer
from penstock.llm.outputs import RequestOutput
from penstock.llm.pooling import PoolingCalls
from penstock.llm.prompts import (
    Message,
    Prompt,
    conversation_list,
    params_list,
    prompt_list,
    terms_list,
    with_salt,
)
from penstock.request.sampling_params import SamplingParams
from penstock.request.terms import Terms, checked_session


def _shut_down(loop: BackgroundLoop, llm: AsyncLLM) -> None:
    if loop.forked:
        return  # The engine is the parent's, which goes on with it.
    loop.start(llm.close()).result()
    loop.stop()


def _started(llm: AsyncLLM) -> BackgroundLoop:
    """The loop in which the engine was started, and serves."""
    loop = BackgroundLoop()
    try:
        loop.run(llm.start())
    except BaseException:
        _shut_down(loop, llm)
        raise
    return loop


class LLM(PoolingCalls):
    """Generates text with a model, through its own engine core and worker.

    `LLM("smollm2-135m", dtype="float32", max_model_len=2048)`: settings are the flags of `penstock
    serve` with underscores, or vLLM's names for the same things (tensor_parallel_size=1,
    swap_space, …: see `penstock.llm.keywords`).  max_step_slowdown is 0 unless it is given: nobody
    reads an output before its end, so prompts needn't wait for decodes.  engine_log: a file for the
    logs of the started processes, such as sys.stderr; by default they are hidden.  Close it with
    `with LLM(...) as llm:`, with `llm.close()`, or by leaving the interpreter: no process is left
    running. It belongs to the process that created it: a child of os.fork() can't use it.

    Raises StartupError if the model can't be served, and ValueError for a bad setting.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        engine_endpoint: str | None = None,
        engine_log: IO[Any] | None = None,
        **settings: Any,
    ) -> None:
        if engine_endpoint is None and settings.get("max_step_slowdown") is None:
            settings["max_step_slowdown"] = 0.0
        try:
            self._llm = AsyncLLM(
                model, engine_endpoint=engine_endpoint, engine_log=engine_log, **settings
            )
            self._loop = _started(self._llm)
        except PenstockError as error:
            raise error.with_traceback(None) from None  # Its message says it all.
        self._numbers = itertools.count()
        # Runs on close, when the object is collected, or at interpreter exit: once.
        self._finalizer = weakref.finalize(self, _shut_down, self._loop, self._llm)

    @classmethod
    def from_engine_args(cls, engine_args: Any) -> LLM:
        """An LLM with the settings of an EngineArgs."""
        keywords = {name: getattr(engine_args, name) for name in engine_args.__dataclass_fields__}
        return cls(**keywords)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: GivenAdapters = None,
        priority: Sequence[int] | None = None,
        deadline_ms: float | None = None,
        session_id: str | None = None,
        kv_retention_seconds: float | None = None,
    ) -> list[RequestOutput]:
        """Returns one RequestOutput per prompt, in the order of the prompts.

        prompts: a string, {"prompt": text}, {"prompt_token_ids": [...]}, a list of token ids, or a
        list of these. A prompt given as a dict may contain a cache_salt, and pictures as
        multi_modal_data={"image": [...]} (PIL.Image, arrays, paths, URLs, bytes), with a
        placeholder for each in its text. For an encoder-decoder model: {"audio": (samples, rate)}
        without a placeholder, or both halves as {"encoder_prompt": {"multi_modal_data": ...},
        "decoder_prompt": text}.  sampling_params: one for all prompts or one each; default:
        get_default_sampling_params().  use_tqdm: whether stderr gets a progress bar with tokens per
        second, or a replacement for tqdm.  lora_request: the adapter to apply, one for all prompts
        or one each (None: the model alone).  priority: one value each; lower values are served
        first if the scheduling policy supports priorities.  deadline_ms: from now, for all prompts;
        a sequence that isn't finished by then ends with finish_reason "timeout".  session_id: the
        conversation that the prompts continue; its KV blocks are kept for kv_retention_seconds
        afterwards (default: --kv-retention-seconds).

        Raises ValueError for a bad prompt before anything runs, and for a picture that can't be
        prepared when its turn comes.
        """
        text = self._text()
        given = prompt_list(prompts)
        tokenised = [library_prompt(prompt, text) for prompt in given]
        session = checked_session(session_id, kv_retention_seconds)
        terms = terms_list(priority, deadline_ms, len(tokenised), session)
        terms = [with_salt(prompt, each) for prompt, each in zip(given, terms, strict=True)]
        terms = self._loop.run(self._llm.with_adapters(terms, lora_request))
        return self._run(tokenised, self._params(sampling_params, len(tokenised)), terms, use_tqdm)

    def chat(
        self,
        messages: list[Message] | list[list[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: GivenAdapters = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        priority: Sequence[int] | None = None,
        deadline_ms: float | None = None,
        session_id: str | None = None,
        kv_retention_seconds: float | None = None,
    ) -> list[RequestOutput]:
        """Like generate, for one conversation or a list of them, in the model's chat template.

        chat_template: another template, as Jinja source.  continue_final_message: the model
        continues the last message (use it with add_generation_prompt=False).  tools: as in OpenAI's
        API.  chat_template_kwargs: more variables for the template, such as enable_thinking.  Parts
        of a message may be pictures: image_url, or image_pil with a Pillow object.
        mm_processor_kwargs: how pictures are prepared, where it differs from the model's own
        settings.
        """
        self._text()
        tokenised = [
            self._llm.tokenise_chat(
                chat,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                chat_template_kwargs=chat_template_kwargs,
                mm_processor_kwargs=mm_processor_kwargs,
            )
            for chat in conversation_list(messages)
        ]
        session = checked_session(session_id, kv_retention_seconds)
        terms = terms_list(priority, deadline_ms, len(tokenised), session)
        terms = self._loop.run(self._llm.with_adapters(terms, lora_request))
        return self._run(tokenised, self._params(sampling_params, len(tokenised)), terms, use_tqdm)

    def get_tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer, under transformers' method names."""
        self._text()
        return self._llm.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own generation defaults; SamplingParams()'s for what they leave out."""
        self._text()
        return self._llm.default_sampling_params

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        lora_request: GivenAdapters = None,
        deadline_ms: float | None = None,
    ) -> list[BeamSearchOutput]:
        """The beam_width best hypotheses of each prompt, in the prompts' order. Raises ValueError
        for a bad prompt before anything runs."""
        self._text()
        found = self._llm.beam_search(
            prompts, params, lora_request=lora_request, deadline_ms=deadline_ms
        )
        return self._loop.run(found)

    def reset_prefix_cache(self) -> bool:
        """Has nothing shared with earlier requests from now on. Returns True, as vLLM does."""
        self._text()

        async def reset() -> bool:
            return await self._llm.reset_prefix_cache()

        return self._loop.run(reset())

    def sleep(self, level: int = 1, mode: Literal["abort", "keep"] = "abort") -> None:
        """Frees the model's memory until wake_up; see AsyncLLM.sleep. Calls to generate wait until
        then."""
        self._text()
        self._loop.run(self._llm.sleep(level, mode))

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Loads the model again, see AsyncLLM.wake_up."""
        self._text()
        self._loop.run(self._llm.wake_up(tags))

    def update_weights(
        self,
        model: str | os.PathLike[str] | None = None,
        mode: ChangeMode = "wait",
        timeout: float | None = None,
        *,
        tensors: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None,
    ) -> None:
        """Replaces the model's weights, see AsyncLLM.update_weights."""
        self._text()
        self._loop.run(self._llm.update_weights(model, mode, timeout, tensors=tensors))

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a method of a worker extension on all ranks, see AsyncLLM.collective_rpc."""
        self._text()

        async def called() -> list[Any]:
            return await self._llm.collective_rpc(method, timeout, args, kwargs)

        return self._loop.run(called())

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
        self._loop.check()
        return self._llm.text

    def _params(
        self, params: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        return params_list(self._llm.default_sampling_params if params is None else params, count)

    def _run(
        self,
        prompts: list[LibraryPrompt],
        params: list[SamplingParams],
        terms: list[Terms],
        use_tqdm: bool | Callable[..., Any],
    ) -> list[RequestOutput]:
        with ProgressBar(len(prompts), use_tqdm) as progress:
            # Interrupted by Ctrl-C, what still runs is aborted in the engine.
            return self._loop.run(self._run_all(prompts, params, terms, progress))

    async def _run_all(
        self,
        prompts: list[LibraryPrompt],
        params: list[SamplingParams],
        terms: list[Terms],
        progress: ProgressBar,
    ) -> list[RequestOutput]:
        window = asyncio.Semaphore(self._llm.window)

        async def run(prompt: LibraryPrompt, one: SamplingParams, when: Terms) -> RequestOutput:
            async with window:
                name = f"library-{next(self._numbers)}"
                output = await self._llm.run_to_end(prompt, one, name, when)
            progress.ended(output)
            return output

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(run(prompt, one, when))
                    for prompt, one, when in zip(prompts, params, terms, strict=True)
                ]
        except* PenstockError as failures:
            # The others have been cancelled; the caller gets the first error as it is.
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]


class ProgressBar:
    """use_tqdm: whether there is a bar; or what makes one, with tqdm's arguments."""

    def __init__(self, total: int, use_tqdm: bool | Callable[..., Any]) -> None:
        self._bar: Any = None
        self._begun = time.monotonic()
        self._input = self._output = 0
        if use_tqdm:
            make = _tqdm if use_tqdm is True else use_tqdm
            self._bar = make(total=total, desc="requests", dynamic_ncols=True)

    def ended(self, output: RequestOutput) -> None:
        """Counts a request that has ended."""
        if self._bar is None:
            return
        self._input += len(output.prompt_token_ids) * len(output.outputs)
        self._output += sum(len(one.token_ids) for one in output.outputs)
        seconds = max(time.monotonic() - self._begun, 1e-9)
        self._bar.set_postfix_str(
            f"input {self._input / seconds:,.1f} toks/s, output {self._output / seconds:,.1f} "
            "toks/s",
            refresh=False,
        )
        self._bar.update(1)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _tqdm(**keywords: Any) -> Any:
    from tqdm import tqdm

    return tqdm(**keywords)
