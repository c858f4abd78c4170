"""A client that reads many streams: `python -m loadtest.gpu.sse PORT MODEL FILE`. It parses no
event, so that a thousand streams cost the server's machine little.

FILE holds a JSON list of [prompt's token ids, tokens of the answer]. All come at once. Prints one
JSON object: seconds, tokens as the streams' usage counts them, and the seconds to each stream's
first event.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from pathlib import Path

from loadtest.gpu.workload import TEMPERATURE
from penstock.net.listener import raise_file_limit

END = b"data: [DONE]"
USED = re.compile(rb'"completion_tokens":\s*(\d+)')
TAIL = 4096
"""Bytes of a stream's end that are kept: its last events."""


async def stream(port: int, model: str, prompt: list[int], output: int) -> tuple[int, float]:
    """Returns a stream's tokens, and the seconds to its first event. Raises RuntimeError for one
    that didn't end as it should."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output,
        "temperature": TEMPERATURE,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(sent)}\r\n\r\n"
    )
    begun, first, tail = time.perf_counter(), 0.0, b""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + sent)
        while data := await reader.read(1 << 16):
            tail = (tail + data)[-TAIL:]
            if not first and b"data: {" in tail:
                first = time.perf_counter() - begun
    finally:
        writer.close()
    used = USED.findall(tail)
    if END not in tail or not used or int(used[-1]) != output:
        raise RuntimeError(f"a stream of {output} tokens ended with {tail[-300:]!r}")
    return int(used[-1]), first


async def read(port: int, model: str, asked: list[tuple[list[int], int]]) -> dict[str, object]:
    begun = time.perf_counter()
    found = await asyncio.gather(*(stream(port, model, *each) for each in asked))
    return {
        "seconds": time.perf_counter() - begun,
        "tokens": sum(tokens for tokens, _ in found),
        "first": sorted(first for _, first in found),
    }


def main() -> int:
    port, model, file = sys.argv[1:]
    asked = json.loads(Path(file).read_text())
    raise_file_limit()
    print(json.dumps(asyncio.run(read(int(port), model, asked))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
