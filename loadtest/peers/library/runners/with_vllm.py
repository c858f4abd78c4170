"""vLLM on the CPU, in bfloat16."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[4])

from loadtest.peers.library.runners.loop import serve  # noqa: E402


class VLLM:
    def __init__(self, model: str, threads: int) -> None:
        from vllm import LLM

        self._llm = LLM(
            model,
            dtype="bfloat16",
            max_model_len=2048,
            max_num_seqs=256,
            disable_log_stats=False,  # which is what keeps the time of the first token
        )

    def run(self, prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=True
        )
        given = [{"prompt_token_ids": ids} for ids in prompts]
        began = time.perf_counter()
        outputs = self._llm.generate(given, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        decode = None
        if len(prompts) == 1:
            metrics = outputs[0].metrics
            decode = metrics.last_token_ts - metrics.first_token_ts
        counts = [len(output.outputs[0].token_ids) for output in outputs]
        return {"seconds": seconds, "output_tokens": counts, "decode_s": decode}


if __name__ == "__main__":
    sys.exit(serve(VLLM))
