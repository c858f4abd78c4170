"""An SSE server that follows a script: known answers, delays and faults for the load generator's
tests, and a source of chunks fast enough to measure what the generator itself costs."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"connection: close\r\n\r\n"
)


@dataclass(frozen=True)
class Script:
    """How one request is answered."""

    tokens: int | None = None  # None: as many as max_tokens asks
    tokens_per_chunk: int = 1
    first_delay: float = 0.0  # seconds before the first chunk
    chunk_delay: float = 0.0  # seconds between chunks
    status: int = 200  # any other gives that error and nothing else
    usage: str = "end"  # "end": in a last chunk of its own; "chunk": in every chunk; "none"
    finish_reason: str | None = "length"  # sent in a chunk without text at the end
    role_chunk: bool = False  # a chunk without text comes first, as chats have
    fault: str | None = None
    """After `fault_after` chunks: "close" cuts the connection, "error" sends an error event,
    "garbage" an event that is no JSON, "hang" sends nothing more, "no-done" ends the body properly
    but without [DONE]."""
    fault_after: int = 0


Choose = Callable[[int, dict[str, Any]], Script]


class ScriptedServer:
    """`async with ScriptedServer(choose) as server:` listens on a free loopback port.

    choose(n, body) gives the n-th POST's script, from 0 in order of arrival.
    """

    def __init__(self, choose: Choose = lambda n, body: Script(), port: int = 0) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.port = port
        self._choose = choose
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=4096)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            if head.startswith("get "):
                writer.write(_plain(200, {"data": [{"id": "scripted"}], "version": "1"}))
            else:
                length = int(head.partition("content-length:")[2].split()[0])
                body = json.loads(await reader.readexactly(length))
                number = len(self.bodies)
                self.bodies.append(body)
                await self._answer(self._choose(number, body), body, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()

    async def _answer(
        self, script: Script, body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        if script.status != 200:
            writer.write(_plain(script.status, {"error": {"message": "as scripted"}}))
            return
        asked = body["max_tokens"] if script.tokens is None else script.tokens
        writer.write(_HEAD)
        if script.role_chunk:
            writer.write(_event(_chunk({"role": "assistant", "content": ""})))
        await asyncio.sleep(script.first_delay)
        sent = 0
        for number in range(-(-asked // script.tokens_per_chunk)):
            if script.fault is not None and number == script.fault_after:
                await self._fault(script.fault, writer)
                return
            count = min(script.tokens_per_chunk, asked - sent)
            sent += count
            usage = _usage(sent) if script.usage == "chunk" else None
            writer.write(_event(_chunk({"content": " word" * count}, usage)))
            await writer.drain()
            await asyncio.sleep(script.chunk_delay)
        if script.finish_reason is not None:
            writer.write(_event(_chunk({}, finish_reason=script.finish_reason)))
        if script.usage == "end":
            writer.write(_event(json.dumps({"choices": [], "usage": _usage(sent)}).encode()))
        writer.write(_event(b"[DONE]") + b"0\r\n\r\n")

    async def _fault(self, fault: str, writer: asyncio.StreamWriter) -> None:
        if fault == "error":
            writer.write(_event(b'{"error": {"message": "as scripted", "code": 500}}'))
        elif fault == "garbage":
            writer.write(_event(b'{"choices": ['))
        elif fault == "no-done":
            writer.write(b"0\r\n\r\n")
        elif fault == "hang":
            await asyncio.sleep(3600)


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": tokens}


def _chunk(
    delta: dict[str, str], usage: dict[str, int] | None = None, finish_reason: str | None = None
) -> bytes:
    """Roughly as long as real servers' chunks."""
    chunk: dict[str, Any] = {
        "id": "cmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "scripted",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}],
    }
    if usage is not None:
        chunk["usage"] = usage
    return json.dumps(chunk, separators=(",", ":")).encode()


def _event(data: bytes) -> bytes:
    """One event as one HTTP chunk."""
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


def _plain(status: int, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Scripted\r\nconnection: close\r\ncontent-length: {len(content)}"
    return head.encode() + b"\r\n\r\n" + content


async def _run(port: int, script: Script) -> None:
    async with ScriptedServer(lambda n, body: script, port) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--first-delay", type=float, default=0.0)
    parser.add_argument("--chunk-delay", type=float, default=0.0)
    flags = parser.parse_args()
    try:
        asyncio.run(
            _run(flags.port, Script(first_delay=flags.first_delay, chunk_delay=flags.chunk_delay))
        )
    except KeyboardInterrupt:
        pass
