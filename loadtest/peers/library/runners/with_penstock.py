"""Penstock: LLM, over the engine core and worker processes that it starts."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[4])

from loadtest.peers.library.runners.loop import serve  # noqa: E402


class Penstock:
    """One engine, dialled by LLM, and by AsyncLLM where the time of the first token is wanted."""

    def __init__(self, model: str, threads: int) -> None:
        from penstock import LLM
        from penstock.config.settings import EngineConfig
        from penstock.config.tree import replace_settings
        from penstock.llm.launched_engine import LaunchedEngine

        settings = {"model": model, "threads": threads, "max_model_len": 2048}
        self._engine = LaunchedEngine(replace_settings(EngineConfig(), settings))
        self._engine.wait_ready(120)
        self._llm = LLM(engine_endpoint=self._engine.endpoint)

    def run(self, prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        from penstock import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        if len(prompts) == 1:
            return asyncio.run(self._stream(prompts[0], params))
        given = [{"prompt_token_ids": ids} for ids in prompts]
        began = time.perf_counter()
        outputs = self._llm.generate(given, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        counts = [len(output.outputs[0].token_ids) for output in outputs]
        return {"seconds": seconds, "output_tokens": counts, "decode_s": None}

    async def _stream(self, ids: list[int], params: Any) -> dict[str, Any]:
        from penstock import AsyncLLM

        count = first_count = 0
        first = now = 0.0
        async with AsyncLLM(engine_endpoint=self._engine.endpoint) as llm:
            began = time.perf_counter()
            async for output in llm.generate({"prompt_token_ids": ids}, params):
                now = time.perf_counter()
                count = len(output.outputs[0].token_ids)
                if not first_count:
                    first, first_count = now, count
        decode = None
        if count > first_count:  # the first may come with its successor
            decode = (now - first) * (count - 1) / (count - first_count)
        return {"seconds": now - began, "output_tokens": [count], "decode_s": decode}


if __name__ == "__main__":
    sys.exit(serve(Penstock))
