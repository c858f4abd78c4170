"""Questions about pictures, and how long the first token of an answer takes."""

from __future__ import annotations

import base64
import time
from typing import Any

import httpx

from testing.streams.reading import events
from testing.trained.seeing.exam import file_of
from testing.trained.seeing.pictures import EVERY

SIDE = 448
QUESTION = "What is in the picture?"


def png(seed: int) -> bytes:
    """The picture with that number."""
    return file_of(EVERY[seed % len(EVERY)], 100_000 + 3 * seed + 1, SIDE, SIDE)


def body(seed: int, tokens: int = 8) -> dict[str, Any]:
    """A question about the picture with that number."""
    url = f"data:image/png;base64,{base64.b64encode(png(seed)).decode()}"
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": QUESTION},
    ]
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


async def wait_of(client: httpx.AsyncClient, asked: dict[str, Any]) -> float:
    """Seconds to the first token of the answer, which is read to its end."""
    begun, first = time.perf_counter(), 0.0
    async for event in events(client, asked, "/v1/chat/completions"):
        if not first and any(each["delta"].get("content") for each in event["choices"]):
            first = time.perf_counter() - begun
    return first or time.perf_counter() - begun
