"""A client that counts the tokens of streams over HTTP or gRPC, and parses nothing.

    python -m loadtest.rpc_reader http|grpc PORT BOARD STREAMS TOKENS

Prints one JSON object: messages or events, and this process's CPU seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import grpc
import uvloop

from penstock_gateway.rpc.protos.inference_pb2 import GenerateRequest, StoppingCriteria
from testing.board import Board
from testing.null_engine import WORD

PROMPT = "Tell me a story."
_WORD = WORD.encode()


class Counter:
    def __init__(self, board: Board) -> None:
        self._board = board
        self.pieces = 0

    def take(self, piece: bytes) -> None:
        """Every token is the same word."""
        self._board.received += piece.count(_WORD)
        self.pieces += 1


async def over_http(port: int, counter: Counter, seed: int, tokens: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "seed": seed, "stream": True}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    while not (line := await reader.readline()).startswith(b"data: [DONE]"):
        if not line:
            raise RuntimeError("the connection was closed")
        if line.startswith(b"data: "):
            counter.take(line)
    writer.close()


async def over_grpc(channel: grpc.aio.Channel, counter: Counter, seed: int, tokens: int) -> None:
    request = GenerateRequest(
        text=PROMPT, temperature=0, stopping=StoppingCriteria(max_new_tokens=tokens)
    )
    request.sampling.seed = seed
    call = channel.unary_stream("/vllm.Inference/GenerateStream")
    async for message in call(request.SerializeToString()):
        counter.take(message)


async def read(kind: str, port: int, board: Board, streams: int, tokens: int) -> int:
    counter = Counter(board)
    if kind == "http":
        await asyncio.gather(*(over_http(port, counter, n, tokens) for n in range(streams)))
    else:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await asyncio.gather(*(over_grpc(channel, counter, n, tokens) for n in range(streams)))
    return counter.pieces


def main() -> None:
    kind, port, page, streams, tokens = sys.argv[1:]
    board = Board(Path(page))
    # grpcio has threads of its own, and asyncio's own loop.
    loop = uvloop.new_event_loop if kind == "http" else None
    with asyncio.Runner(loop_factory=loop) as runner:
        pieces = runner.run(read(kind, int(port), board, int(streams), int(tokens)))
    board.ended = True
    print(json.dumps({"pieces": pieces, "client_cpu_seconds": time.process_time()}))


if __name__ == "__main__":
    main()
