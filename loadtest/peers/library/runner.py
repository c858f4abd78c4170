"""One library's process: `python runner.py LIBRARY MODEL THREADS`, in that library's environment.

Nothing but the standard library is imported before the library asked for.  It writes one line when
the model is loaded, and answers each line with one: `{"prompts": [[ids]], "output_tokens": n}` with
`{"seconds": …, "output_tokens": [counts], "decode_s": … or null}`.  What the library itself prints
goes to stderr.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

Answer = dict[str, Any]
Run = Callable[[list[list[int]], int], Answer]
"""Prompts and how many tokens each gets, greedily, whatever end tokens come. Times nothing but the
library's own call."""


class Sequences(Protocol):
    """llama.cpp's calls on one context of a loaded model, or those of a fork."""

    def open(self, sequences: int, tokens: int) -> None:
        """A new context in the place of the last, for so many sequences and all their tokens."""

    def forget(self, position: int) -> None:
        """What the first sequence has from there on."""

    def decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Computes at most BATCH rows of token, position, sequence and whether its successor is
        asked for. Returns the likeliest successors."""


BATCH = 512
"""Tokens of a call, as llama.cpp's own server has it."""
_SPARE = 2048
"""Tokens that a single prompt's context has room for beyond what is asked for now."""


def _in_batches(context: Sequences) -> Run:
    """One prompt that goes on from the last one, as a chat's does, finds that in the context."""
    kept: list[int] = []
    room = 0

    def prepare(prompts: list[list[int]], output_tokens: int) -> int:
        """Returns how many tokens of each are in the context."""
        nonlocal kept, room
        longest = len(prompts[0]) + output_tokens
        known = 0
        if len(prompts) == 1 and longest <= room:
            pairs = zip(kept, prompts[0][:-1], strict=False)
            known = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            context.forget(known)
        else:
            room = longest + _SPARE if len(prompts) == 1 else 0
            context.open(len(prompts), room or len(prompts) * (longest + 32))
        return known

    def run(prompts: list[list[int]], output_tokens: int) -> Answer:
        nonlocal kept
        known = prepare(prompts, output_tokens)
        began = time.perf_counter()
        rows = [
            (ids[position], position, sequence, position == len(ids) - 1)
            for sequence, ids in enumerate(prompts)
            for position in range(known, len(ids))
        ]
        newest: list[int] = []
        for start in range(0, len(rows), BATCH):
            newest += context.decode(rows[start : start + BATCH])
        first = time.perf_counter()
        found = [newest]
        for place in range(len(prompts[0]), len(prompts[0]) + output_tokens - 1):
            newest = context.decode([(id, place, i, True) for i, id in enumerate(newest)])
            found.append(newest)
        now = time.perf_counter()
        tokens = [list(each) for each in zip(*found, strict=True)]
        kept = prompts[0] + tokens[0][:-1]
        return _answer(now - began, tokens, now - first)

    return run


def llamacpp(model: str, threads: int) -> Run:
    """llama.cpp's own batches, by the functions of llama-cpp-python that mirror its C interface:
    its class `Llama` knows one sequence only."""
    import llama_cpp as c
    import numpy as np

    c.llama_backend_init()
    params = c.llama_model_default_params()
    if "amx_int8" in Path("/proc/cpuinfo").read_text():
        # Its buffers for AMX end in an illegal instruction; without them it has AVX-512.
        params.use_extra_bufts = False
    loaded = c.llama_model_load_from_file(model.encode(), params)
    if not loaded:
        raise RuntimeError(f"llama.cpp can't load {model}")
    vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(loaded))

    class Calls:
        def __init__(self) -> None:
            self._context: Any = None
            self._batch = c.llama_batch_init(BATCH, 0, 1)

        def open(self, sequences: int, tokens: int) -> None:
            if self._context:
                c.llama_free(self._context)
            params = c.llama_context_default_params()
            params.n_ctx, params.n_seq_max, params.n_batch = tokens, sequences, BATCH
            params.n_threads = params.n_threads_batch = threads
            self._context = c.llama_init_from_model(loaded, params)
            if not self._context:
                raise RuntimeError(f"llama.cpp makes no context of {tokens} tokens")

        def forget(self, position: int) -> None:
            c.llama_memory_seq_rm(c.llama_get_memory(self._context), 0, position, -1)

        def decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
            batch = self._batch
            batch.n_tokens = len(rows)
            for i, (token, position, sequence, asked) in enumerate(rows):
                batch.token[i], batch.pos[i] = token, position
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
                batch.logits[i] = asked
            if c.llama_decode(self._context, batch):
                raise RuntimeError("llama_decode failed")
            found = []
            for i, row in enumerate(rows):
                if row[3]:
                    logits = c.llama_get_logits_ith(self._context, i)
                    found.append(int(np.ctypeslib.as_array(logits, (vocabulary,)).argmax()))
            return found

    return _in_batches(Calls())


def ik_llamacpp(model: str, threads: int) -> Run:
    """ik_llama.cpp, by the functions that `ik_calls.cpp` makes of its C interface; IK_CALLS names
    the library that was compiled from it."""
    calls = ctypes.CDLL(os.environ["IK_CALLS"])
    if calls.ik_load(model.encode(), threads):
        raise RuntimeError(f"ik_llama.cpp can't load {model}")

    class Calls:
        def open(self, sequences: int, tokens: int) -> None:
            if calls.ik_open(sequences, tokens, BATCH):
                raise RuntimeError(f"ik_llama.cpp makes no context of {tokens} tokens")

        def forget(self, position: int) -> None:
            calls.ik_forget(position)

        def decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
            flat = (ctypes.c_int32 * (4 * len(rows)))(*itertools.chain.from_iterable(rows))
            found = (ctypes.c_int32 * len(rows))()
            count = calls.ik_decode(len(rows), flat, found)
            if count < 0:
                raise RuntimeError("llama_decode failed")
            return list(found[:count])

    return _in_batches(Calls())


def openvino(model: str, threads: int) -> Run:
    """OpenVINO GenAI: its continuous batching on a GGUF file or a folder of its own format."""
    import numpy as np
    from openvino import Tensor
    from openvino_genai import GenerationConfig, LLMPipeline, SchedulerConfig, TokenizedInputs

    scheduler = SchedulerConfig()
    scheduler.enable_prefix_caching = True  # as the others do, for chats
    pipeline = LLMPipeline(model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads)
    config = GenerationConfig()
    config.ignore_eos = True
    config.do_sample = False

    def run(prompts: list[list[int]], output_tokens: int) -> Answer:
        config.max_new_tokens = output_tokens
        ids = np.array(prompts, dtype=np.int64)
        given = TokenizedInputs(Tensor(ids), Tensor(np.ones_like(ids)))
        began = time.perf_counter()
        result = pipeline.generate(given, config)
        seconds = time.perf_counter() - began
        # Microseconds of each token after the first.
        decode = sum(result.perf_metrics.raw_metrics.m_durations) / 1e6
        return _answer(seconds, [list(tokens) for tokens in result.tokens], decode)

    return run


def penstock(model: str, threads: int, **more: Any) -> Run:
    """One engine with its own processes, reached through LLM; and through AsyncLLM where the time
    of the first token is wanted. more: settings of the engine."""
    from penstock import LLM, AsyncLLM, SamplingParams
    from penstock.config.settings import EngineConfig
    from penstock.config.tree import replace_settings
    from penstock.llm.engine_lifecycle import LaunchedEngine

    settings = {"model": model, "threads": threads, "max_step_slowdown": 0.0, **more}  # as LLM's
    engine = LaunchedEngine(replace_settings(EngineConfig(), settings))
    engine.wait_ready(120)
    llm = LLM(engine_endpoint=engine.endpoint)

    def run(prompts: list[list[int]], output_tokens: int) -> Answer:
        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        if len(prompts) == 1:
            return asyncio.run(stream(prompts[0], params))
        given = [{"prompt_token_ids": ids} for ids in prompts]
        began = time.perf_counter()
        outputs = llm.generate(given, params, use_tqdm=False)
        return _answer(time.perf_counter() - began, _tokens(outputs))

    async def stream(ids: list[int], params: Any) -> Answer:
        found: list[int] = []
        first_count = 0
        first = now = 0.0
        async with AsyncLLM(engine_endpoint=engine.endpoint) as one:
            began = time.perf_counter()
            async for output in one.generate({"prompt_token_ids": ids}, params):
                now = time.perf_counter()
                found = output.outputs[0].token_ids
                if not first_count:
                    first, first_count = now, len(found)
        count, decode = len(found), None
        if count > first_count:  # the first may come with its successor
            decode = (now - first) * (count - 1) / (count - first_count)
        return _answer(now - began, [list(found)], decode)

    return run


def penstock_without_drafts(model: str, threads: int) -> Run:
    """Penstock without speculation."""
    return penstock(model, threads, speculative_config="off")


def transformers(model: str, threads: int) -> Run:
    """generate() on one batch, in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria

    torch.set_num_threads(threads)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    loaded.generation_config.eos_token_id = None

    class Watch(StoppingCriteria):
        """Called after each token; stops nothing."""

        def __init__(self) -> None:
            self.arrivals: list[float] = []

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            self.arrivals.append(time.perf_counter())
            return torch.zeros(len(input_ids), dtype=torch.bool)

    def run(prompts: list[list[int]], output_tokens: int) -> Answer:
        ids = torch.tensor(prompts)
        config = GenerationConfig(
            max_new_tokens=output_tokens, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        watch = Watch()
        began = time.perf_counter()
        result = loaded.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            stopping_criteria=[watch],
        )
        seconds = time.perf_counter() - began
        tokens = result[:, ids.shape[1] :].tolist()
        return _answer(seconds, tokens, watch.arrivals[-1] - watch.arrivals[0])

    return run


def vllm(model: str, threads: int) -> Run:
    """vLLM on the CPU, in bfloat16."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=256,
        disable_log_stats=False,  # which is what keeps the time of the first token
    )

    def run(prompts: list[list[int]], output_tokens: int) -> Answer:
        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        given = [{"prompt_token_ids": ids} for ids in prompts]
        began = time.perf_counter()
        outputs = llm.generate(given, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        metrics = outputs[0].metrics
        decode = metrics.last_token_ts - metrics.first_token_ts
        return _answer(seconds, _tokens(outputs), decode)

    return run


def _tokens(outputs: list[Any]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def _answer(seconds: float, tokens: list[list[int]], decode: float | None = None) -> Answer:
    """decode: seconds from the first token to the last; told where there is one prompt only."""
    only = len(tokens) == 1
    return {"seconds": seconds, "tokens": tokens, "decode_s": decode if only else None}


_LIBRARIES = (
    *(llamacpp, ik_llamacpp, openvino),
    *(penstock, penstock_without_drafts),
    *(transformers, vllm),
)
LIBRARIES = {each.__name__: each for each in _LIBRARIES}


def serve(load: Callable[[str, int], Run], model: str, threads: int) -> int:
    """Answers calls until the end of the input. Returns the exit status: 0; 1 where the model can't
    be loaded."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(value: Answer) -> None:
        answers.write(json.dumps(value) + "\n")

    try:
        run = load(model, threads)
    except Exception as error:
        traceback.print_exc()
        answer({"error": f"can't load: {type(error).__name__}: {error}"})
        return 1
    answer({})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer(run(asked["prompts"], asked["output_tokens"]))
        except Exception as error:
            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {error}"})
    return 0


if __name__ == "__main__":
    # This file's folder must not stand before the library's own modules.
    sys.path.pop(0)
    sys.exit(serve(LIBRARIES[sys.argv[1]], sys.argv[2], int(sys.argv[3])))
