"""A stream of chat under which a process is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from openai import OpenAI

from testing.serving import Server, wait_until


def streamed(
    url: str,
    messages: Any,
    max_tokens: int,
    on_chunk: Callable[[int], None] = lambda count: None,
) -> list[int]:
    """The tokens of a seeded answer. on_chunk: called after each chunk with its number."""
    with OpenAI(base_url=f"{url}/v1", api_key="none", timeout=240, max_retries=0) as client:
        chunks = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=messages,
            stream=True,
            max_tokens=max_tokens,
            temperature=0.8,
            seed=5,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        ids: list[int] = []
        for count, chunk in enumerate(chunks):
            ids += [i for c in chunk.choices for i in (c.model_extra or {}).get("token_ids") or ()]
            on_chunk(count)
        return ids


def check_a_killed_stream(server: Server, victim: str, messages: Any, max_tokens: int) -> None:
    """victim: the process that is killed in mid-stream, as its title names it. The stream is that
    of the same request undisturbed, and another process takes the victim's place."""
    wait_until(server.ready)
    undisturbed = streamed(server.url, messages, max_tokens)
    assert len(undisturbed) == max_tokens
    first = server.child(victim)

    def kill_once(count: int) -> None:
        if count == 6:
            os.kill(first, signal.SIGKILL)

    assert streamed(server.url, messages, max_tokens, kill_once) == undisturbed
    wait_until(lambda: server.children().get(f"penstock: {victim}") not in (None, first))
