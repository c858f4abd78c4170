"""Streamed answers, event by event, for measurements that need no more than their times."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

FIRST_ID, IDS = 1_000, 20_000
"""Token ids of prompts: ordinary tokens of the default model."""


class Refused(RuntimeError):
    """The answer's status is another than 200. Says which, and what the answer says."""


def prompt_ids(count: int, salt: int) -> list[int]:
    """A prompt of so many tokens that begins like no other salt's."""
    return [FIRST_ID + (salt * 7919 + i * 31) % IDS for i in range(count)]


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
    """The JSON events of one streamed answer. Raises Refused, and RuntimeError for an event that is
    an error and for an answer without its end."""
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        if response.status_code != 200:
            text = (await response.aread())[:300]
            raise Refused(f"status {response.status_code}: {text!r}")
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                return
            if line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(f"an error in the stream: {event['error']}")
                yield event
    raise RuntimeError("a stream ended before its end")
