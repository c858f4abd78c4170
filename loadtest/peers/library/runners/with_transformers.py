"""transformers: generate() on one batch, in bfloat16."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[4])

from loadtest.peers.library.runners.loop import serve  # noqa: E402


class Transformers:
    def __init__(self, model: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        self._model.eval()

    def run(self, prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        import torch
        from transformers import GenerationConfig, StoppingCriteria

        arrivals: list[float] = []

        class Watch(StoppingCriteria):
            """Called after each token; stops nothing."""

            def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
                arrivals.append(time.perf_counter())
                return torch.zeros(len(input_ids), dtype=torch.bool)

        ids = torch.tensor(prompts)
        config = GenerationConfig(
            max_new_tokens=output_tokens, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        self._model.generation_config.eos_token_id = None
        began = time.perf_counter()
        result = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            stopping_criteria=[Watch()],
        )
        seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "output_tokens": [result.shape[1] - ids.shape[1]] * len(prompts),
            "decode_s": arrivals[-1] - arrivals[0] if len(prompts) == 1 else None,
        }


if __name__ == "__main__":
    sys.exit(serve(Transformers))
