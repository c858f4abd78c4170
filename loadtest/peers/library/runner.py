"""One library's process: `python runner.py LIBRARY MODEL THREADS`, in that library's environment.

Nothing but the standard library is imported before the library asked for.  It writes one line when
the model is loaded, and answers each line with one: `{"prompts": [[ids]], "output_tokens": n}` with
`{"seconds": …, "output_tokens": [counts], "decode_s": … or null}`.  What the library itself prints
goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

Answer = dict[str, Any]


class Engine(Protocol):
    """A loaded model."""

    def run(self, prompts: list[list[int]], output_tokens: int) -> Answer:
        """Greedy, never ended by an end token. Times nothing but the library's own call."""


class LlamaCpp:
    """By llama-cpp-python: one sequence at a time."""

    def __init__(self, model: str, threads: int) -> None:
        from llama_cpp import Llama

        self._llama = Llama(
            model, n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def run(self, prompts: list[list[int]], output_tokens: int) -> Answer:
        arrivals: list[float] = []
        began = time.perf_counter()
        for ids in prompts:
            for count, _ in enumerate(self._llama.generate(ids, temp=0.0), start=1):
                arrivals.append(time.perf_counter())
                if count == output_tokens:
                    break
        counts = [len(arrivals) // len(prompts)] * len(prompts)
        return _answer(began, counts, arrivals[-1] - arrivals[0])


class OpenVINO:
    """OpenVINO GenAI: its continuous batching on the GGUF file."""

    def __init__(self, model: str, threads: int) -> None:
        from openvino_genai import LLMPipeline, SchedulerConfig

        self._pipeline = LLMPipeline(
            model, "CPU", scheduler_config=SchedulerConfig(), INFERENCE_NUM_THREADS=threads
        )

    def run(self, prompts: list[list[int]], output_tokens: int) -> Answer:
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
        ended = time.perf_counter()
        # Microseconds of each token after the first.
        decode = sum(result.perf_metrics.raw_metrics.m_durations) / 1e6
        return _answer(began, [len(tokens) for tokens in result.tokens], decode, ended)


class Penstock:
    """One engine with its own processes, reached through LLM; and through AsyncLLM where the time
    of the first token is wanted."""

    def __init__(self, model: str, threads: int) -> None:
        from penstock import LLM
        from penstock.config.settings import EngineConfig
        from penstock.config.tree import replace_settings
        from penstock.llm.launched_engine import LaunchedEngine

        settings = {"model": model, "threads": threads, "max_model_len": 2048}
        self._engine = LaunchedEngine(replace_settings(EngineConfig(), settings))
        self._engine.wait_ready(120)
        self._llm = LLM(engine_endpoint=self._engine.endpoint)

    def run(self, prompts: list[list[int]], output_tokens: int) -> Answer:
        from penstock import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        if len(prompts) == 1:
            return asyncio.run(self._stream(prompts[0], params))
        given = [{"prompt_token_ids": ids} for ids in prompts]
        began = time.perf_counter()
        outputs = self._llm.generate(given, params, use_tqdm=False)
        ended = time.perf_counter()
        return _answer(began, _token_counts(outputs), None, ended)

    async def _stream(self, ids: list[int], params: Any) -> Answer:
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
        return _answer(began, [count], decode, now)


class Transformers:
    """generate() on one batch, in bfloat16."""

    def __init__(self, model: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        self._model.eval()

    def run(self, prompts: list[list[int]], output_tokens: int) -> Answer:
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
        ended = time.perf_counter()
        counts = [result.shape[1] - ids.shape[1]] * len(prompts)
        return _answer(began, counts, arrivals[-1] - arrivals[0], ended)


class VLLM:
    """vLLM on the CPU, in bfloat16."""

    def __init__(self, model: str, threads: int) -> None:
        from vllm import LLM

        self._llm = LLM(
            model,
            dtype="bfloat16",
            max_model_len=2048,
            max_num_seqs=256,
            disable_log_stats=False,  # which is what keeps the time of the first token
        )

    def run(self, prompts: list[list[int]], output_tokens: int) -> Answer:
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=True
        )
        given = [{"prompt_token_ids": ids} for ids in prompts]
        began = time.perf_counter()
        outputs = self._llm.generate(given, params, use_tqdm=False)
        ended = time.perf_counter()
        metrics = outputs[0].metrics
        decode = metrics.last_token_ts - metrics.first_token_ts
        return _answer(began, _token_counts(outputs), decode, ended)


def _token_counts(outputs: list[Any]) -> list[int]:
    return [len(output.outputs[0].token_ids) for output in outputs]


def _answer(
    began: float, counts: list[int], decode: float | None, ended: float | None = None
) -> Answer:
    """decode: seconds from the first token to the last; told where there is one prompt only."""
    seconds = (time.perf_counter() if ended is None else ended) - began
    only = len(counts) == 1
    return {"seconds": seconds, "output_tokens": counts, "decode_s": decode if only else None}


LIBRARIES: dict[str, Callable[[str, int], Engine]] = {
    "llamacpp": LlamaCpp,
    "openvino": OpenVINO,
    "penstock": Penstock,
    "transformers": Transformers,
    "vllm": VLLM,
}


def serve(load: Callable[[str, int], Engine], model: str, threads: int) -> int:
    """Until the end of the input. Exit status: 0; 1 where the model can't be loaded."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(value: Answer) -> None:
        answers.write(json.dumps(value) + "\n")

    try:
        engine = load(model, threads)
    except Exception as error:
        traceback.print_exc()
        answer({"error": f"can't load: {type(error).__name__}: {error}"})
        return 1
    answer({})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer(engine.run(asked["prompts"], asked["output_tokens"]))
        except Exception as error:
            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {error}"})
    return 0


if __name__ == "__main__":
    # This file's folder must not stand before the library's own modules.
    sys.path.pop(0)
    sys.exit(serve(LIBRARIES[sys.argv[1]], sys.argv[2], int(sys.argv[3])))
