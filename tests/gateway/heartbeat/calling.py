"""A gRPC client in a process of its own, for a test's process must not copy what it sends.

Reads lines of a method's path, a file with the message, and "first" or "all"; and writes the code
of the answer, or OK at its first message, or at its end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc

PATIENCE = 120
"""Seconds for an answer."""
UNBOUNDED = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)


def code_of(channel: grpc.Channel, path: str, message: bytes, awaited: str) -> str:
    answers = channel.stream_stream(path)(iter((message,)), timeout=PATIENCE)
    try:
        next(answers, None)
        if awaited == "all":
            for _ in answers:
                pass
        return "OK"
    except grpc.RpcError as error:
        return str(error.code().name)
    finally:
        answers.cancel()


def main() -> None:
    """The argument is the server's address."""
    with grpc.insecure_channel(sys.argv[1], options=UNBOUNDED) as channel:
        for line in sys.stdin:
            path, file, awaited = line.split()
            print(code_of(channel, path, Path(file).read_bytes(), awaited), flush=True)


if __name__ == "__main__":
    main()
