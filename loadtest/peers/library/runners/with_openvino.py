"""OpenVINO GenAI: its continuous batching on the GGUF file."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[4])

from loadtest.peers.library.runners.loop import serve  # noqa: E402


class OpenVINO:
    def __init__(self, model: str, threads: int) -> None:
        from openvino_genai import LLMPipeline, SchedulerConfig

        self._pipeline = LLMPipeline(
            model, "CPU", scheduler_config=SchedulerConfig(), INFERENCE_NUM_THREADS=threads
        )

    def run(self, prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        import numpy as np
        from openvino import Tensor
        from openvino_genai import GenerationConfig, TokenizedInputs

        config = GenerationConfig()
        config.max_new_tokens = output_tokens
        config.ignore_eos = True
        config.do_sample = False
        ids = np.array(prompts, dtype=np.int64)
        given = TokenizedInputs(Tensor(ids), Tensor(np.ones_like(ids)))
        began = time.perf_counter()
        result = self._pipeline.generate(given, config)
        seconds = time.perf_counter() - began
        decode = None
        if len(prompts) == 1:
            # Microseconds of each token after the first.
            decode = sum(result.perf_metrics.raw_metrics.m_durations) / 1e6
        counts = [len(tokens) for tokens in result.tokens]
        return {"seconds": seconds, "output_tokens": counts, "decode_s": decode}


if __name__ == "__main__":
    sys.exit(serve(OpenVINO))
