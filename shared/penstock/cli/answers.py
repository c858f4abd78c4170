"""The sources of answers for `run` and `chat`: a running system, or an engine of their own."""

from __future__ import annotations

import contextlib
import queue
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from penstock.cli.http_client import HttpClient, Refused
from penstock.errors import PenstockError, RequestFailed
from penstock.request.chat_params import chat_params

if TYPE_CHECKING:
    from penstock.transcription.transcript import Transcript
    from penstock.transcription.wishes import Wishes


@dataclass
class Question:
    """messages: a conversation; or prompt: a text as it is.  sampling: SamplingParams' fields.
    longest: tokens of the answer, where neither max_tokens nor the model's generation config says;
    None: all that the context leaves."""

    sampling: dict[str, Any]
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    longest: int | None = None


@dataclass
class Facts:
    """What is known of an answer once it has ended. seconds: all, and to the first text."""

    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    first_text_seconds: float | None = None
    begun: float = field(default_factory=time.monotonic, repr=False)

    def add(self, text: str) -> None:
        now = time.monotonic() - self.begun
        if text and self.first_text_seconds is None:
            self.first_text_seconds = now
        self.text += text
        self.seconds = now

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the output, after its first text."""
        since = self.seconds - (self.first_text_seconds or 0.0)
        return (self.completion_tokens - 1) / since if since > 0 else 0.0


class Source(Protocol):
    """name: the model's.  place: where it is, for a person."""

    name: str
    place: str

    def answer(self, question: Question, facts: Facts) -> Iterator[str]:
        """Yields the text as it comes, and fills `facts`. Leaving it early aborts the request."""

    def chat_params(self) -> dict[str, Any]:
        """What a person's chat adds to its requests where nothing is set."""
        ...

    def close(self) -> None: ...


class RemoteModel:
    """A model of a running system."""

    def __init__(self, server: HttpClient, model: str | None) -> None:
        self._server = server
        self.name = model or server.first_model()
        self.place = server.url

    def answer(self, question: Question, facts: Facts) -> Iterator[str]:
        chat = question.messages is not None
        body = {
            "model": self.name,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"messages": question.messages} if chat else {"prompt": question.prompt or ""}),
            **question.sampling,
        }
        path = "/v1/chat/completions" if chat else "/v1/completions"
        for event in self._events(path, body, question):
            for choice in event.get("choices") or ():
                text = choice["delta"].get("content") if chat else choice.get("text")
                facts.finish_reason = choice.get("finish_reason") or facts.finish_reason
                facts.add(text or "")
                if text:
                    yield text
            usage = event.get("usage")
            if usage:
                facts.prompt_tokens = usage.get("prompt_tokens", 0)
                facts.completion_tokens = usage.get("completion_tokens", 0)
        if facts.finish_reason is None:
            raise RequestFailed("the server ended the answer without saying why")

    def chat_params(self) -> dict[str, Any]:
        """Parameters as the server's card of the model has them; none where it says nothing."""
        status, card = self._server.get(f"/v1/models/{quote(self.name)}")
        found = card.get("chat_params") if status == 200 and isinstance(card, dict) else None
        return found if isinstance(found, dict) else {}

    def _events(self, path: str, body: dict[str, Any], question: Question) -> Iterator[Any]:
        """The answer's events, of an answer that is no longer than the question says, and no longer
        than the context leaves. Silence says so of a chat; /v1/completions takes it for 16.

        How much the context leaves is asked only where it can matter, since asking counts as a
        request where a key has a limit of them.
        """
        chat = question.messages is not None
        if "max_tokens" in question.sampling or (chat and question.longest is None):
            yield from self._server.events(path, body)
            return
        if question.longest is None:
            yield from self._server.events(path, {**body, **self._room(question)})
            return
        begun = False
        try:
            for event in self._server.events(path, {**body, "max_tokens": question.longest}):
                begun = True
                yield event
        except Refused as error:
            if begun or error.status != 400:
                raise
            room = self._room(question)
            if not 0 < room.get("max_tokens", 0) < question.longest:
                raise  # The refusal is about something else.
            yield from self._server.events(path, {**body, **room})

    def _room(self, question: Question) -> dict[str, int]:
        """max_tokens: as many as the context leaves; nothing from a server that doesn't count
        tokens, which has its own default."""
        chat = question.messages is not None
        given = {"messages": question.messages} if chat else {"prompt": question.prompt or ""}
        _, answer = self._server.post("/tokenize", {"model": self.name, **given})
        try:
            room = int(answer["max_model_len"]) - int(answer["count"])
        except (LookupError, TypeError, ValueError):
            room = 0
        return {"max_tokens": room} if room > 0 else {}

    def close(self) -> None:
        """Does nothing: no connection is kept open."""


class _CtrlC:
    """While a model loads, Ctrl-C counts even if what it raises is lost, as in a destructor or a
    callback of the interpreter. Only where Python's own handler was in place."""

    def __init__(self) -> None:
        self._pressed = False
        self._former: Any = None

    def __enter__(self) -> _CtrlC:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            with contextlib.suppress(ValueError):  # Not the main thread, which alone may do so.
                self._former = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)

    def check(self) -> None:
        """Raises KeyboardInterrupt where it was pressed."""
        if self._pressed:
            raise KeyboardInterrupt

    def _press(self, *_: object) -> None:
        self._pressed = True
        raise KeyboardInterrupt


class LocalModel:
    """A model in processes below this one. settings: keywords of AsyncLLM.

    verbose: the processes' logs go to stderr, else the end of them is in the error of a start that
    fails without a reason.
    Raises PenstockError.
    """

    def __init__(self, model: str, settings: dict[str, Any], *, verbose: bool) -> None:
        from penstock.cli.packaged import offer_package
        from penstock.llm.asynchronous import AsyncLLM
        from penstock.llm.background_loop import BackgroundLoop
        from penstock.llm.keywords import engine_config
        from penstock.prepare import prepare
        from penstock.prepare.overrides import overrides_of

        offer_package(model)
        prepare(
            model,
            cache_dir=settings.get("cache_dir"),
            progress=_say,
            model_impl=settings.get("model_impl") or "auto",
            language_model_only=bool(settings.get("language_model_only")),
            mmproj=settings.get("mmproj"),
            overrides=overrides_of(engine_config(settings).model),
        )
        _say(f"loading {model}")
        with _CtrlC() as ctrl_c:
            self._llm = AsyncLLM(model, engine_log=sys.stderr if verbose else None, **settings)
            self._loop = BackgroundLoop()
            try:
                self._loop.run(self._llm.start())
                ctrl_c.check()
            except BaseException:
                self.close()
                raise
        self.name = self._llm.welcome.model
        self.place = "this machine"
        self.has_template = self._llm.text.template is not None

    def answer(self, question: Question, facts: Facts) -> Iterator[str]:
        """Yields the text as it comes (see Source). The event loop's thread and this one meet in a
        queue."""
        news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        running = self._loop.start(self._stream(question, news))
        try:
            while (item := news.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                text, facts.finish_reason, facts.prompt_tokens, facts.completion_tokens = item
                facts.add(text)
                if text:
                    yield text
        finally:
            running.cancel()
        if facts.finish_reason == "error":
            raise RequestFailed("the request failed in the engine")

    def chat_params(self) -> dict[str, Any]:
        """Parameters as a server of the model would have them."""
        return chat_params(self._llm.welcome.hub_id or self.name)

    def transcribe(self, recording: bytes, wishes: Wishes) -> Transcript:
        """The text of a recording. Raises InvalidRequest and PenstockError."""
        return self._loop.run(self._llm.transcribe(recording, wishes))

    async def _stream(self, question: Question, news: queue.SimpleQueue[Any]) -> None:
        from penstock.request.sampling_params import RepetitionDetectionParams, RequestOutputKind

        try:
            params = await self._llm.get_default_sampling_params()
            params.output_kind = RequestOutputKind.DELTA
            if self._llm.welcome.generation.max_new_tokens is None:
                params.max_tokens = question.longest
            for name, value in question.sampling.items():
                loop = name == "repetition_detection"
                setattr(params, name, RepetitionDetectionParams(**value) if loop else value)
            if question.messages is not None:
                stream = self._llm.chat(question.messages, params)
            else:
                stream = self._llm.generate(question.prompt or "", params)
            tokens = 0
            async for output in stream:
                for one in output.outputs:
                    tokens += len(one.token_ids)
                    prompt = len(output.prompt_token_ids)
                    news.put((one.text, one.finish_reason, prompt, tokens))
        except PenstockError as error:
            news.put(error)
        finally:
            news.put(None)

    def close(self) -> None:
        self._loop.start(self._llm.close()).result()
        self._loop.stop()


def _say(words: str) -> None:
    """Says on a terminal what is taking time; a script's stderr stays empty."""
    if sys.stderr.isatty():
        print(f"penstock: {words} …", file=sys.stderr)
