"""llama.cpp, by llama-cpp-python: one sequence at a time."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[4])

from loadtest.peers.library.runners.loop import serve  # noqa: E402


class LlamaCpp:
    def __init__(self, model: str, threads: int) -> None:
        from llama_cpp import Llama

        self._llama = Llama(
            model, n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def run(self, prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        arrivals: list[float] = []
        began = time.perf_counter()
        for ids in prompts:
            for count, _ in enumerate(self._llama.generate(ids, temp=0.0), start=1):
                arrivals.append(time.perf_counter())
                if count == output_tokens:
                    break
        seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "output_tokens": [len(arrivals) // len(prompts)] * len(prompts),
            "decode_s": arrivals[-1] - arrivals[0] if len(prompts) == 1 else None,
        }


if __name__ == "__main__":
    sys.exit(serve(LlamaCpp))
