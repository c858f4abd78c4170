"""A runner that computes nothing: `scripted_runner.py MODEL THREADS BEHAVIOUR`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from loadtest.peers.library.runner import Answer, Run, serve  # noqa: E402

BEHAVIOUR = sys.argv[3]
SECONDS = 0.02


def scripted(model: str, threads: int) -> Run:
    """Behaviours: good, short (a token too few), error, exits, hangs, noisy."""
    if BEHAVIOUR == "unloadable":
        raise OSError("no such model")
    print("what the library prints is no answer")
    return run


def run(prompts: list[list[int]], output_tokens: int) -> Answer:
    real = output_tokens > 4  # the warm-up asks for at most so many
    if BEHAVIOUR == "noisy":
        print("what the library prints is no answer", flush=True)
    if BEHAVIOUR == "error" and real:
        raise ValueError("it went wrong")
    if BEHAVIOUR == "exits" and real:
        sys.exit("gone")
    if BEHAVIOUR == "hangs" and real:
        time.sleep(100)
    count = output_tokens - (BEHAVIOUR == "short" and real)
    return {
        "seconds": SECONDS,
        "tokens": [[7] * count] * len(prompts),
        "decode_s": SECONDS / 2 if len(prompts) == 1 else None,
    }


if __name__ == "__main__":
    sys.exit(serve(scripted, sys.argv[1], int(sys.argv[2])))
