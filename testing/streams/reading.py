"""One stream, put together again: what must be equal whatever happened while it came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from testing.streams.mix import Request


class Broken(Exception):
    """A stream that was refused, cut, or ended in an error."""


@dataclass
class Choice:
    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[Any] = field(default_factory=list)
    """An element for each token, as the endpoint gives them."""


@dataclass
class Answer:
    """All but ids, times, and where chunks were cut."""

    choices: list[Choice]
    usage: dict[str, Any] | None = None


class Reading:
    """A stream on its way."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answer = Answer([Choice() for _ in range(request.choices)])
        self.moved = [0] * request.choices  # how often each choice gained something

    @property
    def waits_for(self) -> list[int]:
        """The choices that have not ended."""
        return [i for i, c in enumerate(self.answer.choices) if c.finish_reason is None]

    async def run(self, client: httpx.AsyncClient) -> Answer:
        """Sends the request and reads to [DONE]. Raises Broken."""
        request, done = self.request, False
        try:
            async with client.stream("POST", request.path, json=request.body) as response:
                if response.status_code != 200:
                    raise Broken(f"{response.status_code} {(await response.aread())[:300]!r}")
                async for line in response.aiter_lines():
                    if line == "data: [DONE]":
                        done = True
                    elif line.startswith("data: "):
                        self._take(msgspec.json.decode(line[6:]))
        except httpx.HTTPError as error:
            raise Broken(f"{type(error).__name__}: {error}") from error
        if not done or self.waits_for:
            raise Broken("it ended without an end")
        return self.answer

    def _take(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            raise Broken(f"an error event: {chunk['error']}")
        if chunk.get("usage") is not None:
            # How much of the prompt was found in the cache says nothing about the answer.
            self.answer.usage = {**chunk["usage"], "prompt_tokens_details": None}
        for piece in chunk["choices"]:
            choice = self.answer.choices[piece["index"]]
            if choice.finish_reason is not None:
                raise Broken(f"choice {piece['index']} went on after its end")
            text = piece["text"] if "text" in piece else piece["delta"].get("content") or ""
            choice.text += text
            choice.logprobs += _logprobs(piece.get("logprobs"))
            choice.finish_reason = piece["finish_reason"]
            choice.stop_reason = piece.get("stop_reason")
            self.moved[piece["index"]] += bool(text)


def _logprobs(given: dict[str, Any] | None) -> list[Any]:
    """The lists of the completions endpoint, turned; chat has an object a token already."""
    if given is None:
        return []
    if "content" in given:
        return list(given["content"])
    columns = (given["tokens"], given["token_logprobs"], given["top_logprobs"])
    return list(zip(*columns, given["text_offset"], strict=True))
