"""One stream, put together again: what must be equal whatever happened while it came."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from testing.streams.mix import Request


class Broken(Exception):
    """A stream that was refused, cut, or ended in an error."""


class Refused(Broken):
    """The answer's status is another than 200."""


def connected(
    url: str, streams: int, *, key: str = "", timeout: float = 300.0
) -> httpx.AsyncClient:
    """A client with a connection for each stream, and one more. timeout: seconds of silence."""
    return httpx.AsyncClient(
        base_url=url,
        limits=httpx.Limits(max_connections=streams + 1),
        timeout=timeout,
        headers={"authorization": f"Bearer {key}"} if key else {},
    )


async def events(
    client: httpx.AsyncClient, body: dict[str, Any], path: str = "/v1/completions"
) -> AsyncIterator[dict[str, Any]]:
    """The JSON events of one streamed answer, to [DONE]. Raises Broken."""
    done = False
    try:
        async with client.stream("POST", path, json={**body, "stream": True}) as response:
            if response.status_code != 200:
                text = (await response.aread())[:300]
                raise Refused(f"status {response.status_code}: {text!r}")
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data: "):
                    event = msgspec.json.decode(line[6:])
                    if "error" in event:
                        raise Broken(f"an error event: {event['error']}")
                    yield event
    except (httpx.HTTPError, msgspec.DecodeError) as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
    if not done:
        raise Broken("it ended without [DONE]")


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
        async for chunk in events(client, self.request.body, self.request.path):
            self._take(chunk)
        if self.waits_for:
            raise Broken(f"choices {self.waits_for} have no end")
        return self.answer

    def _take(self, chunk: dict[str, Any]) -> None:
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
