"""Another library's prompt lookup, in its own environment:

    PEERS_DIR/llamacpp/bin/python loadtest/drafting/lookup_runner.py llamacpp MODEL.gguf
    python loadtest/drafting/lookup_runner.py transformers MODEL.gguf

Reads one JSON object from stdin: `prompts` (token ids), `tokens` of an answer, `drafts` (the most
of a step), and `threads`. Answers each prompt without drafts and with them, in turn. Writes an
object to stdout: `off` and `drafts`, a list each of `seconds`, `processor` seconds and `ids`.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# This file's folder must not stand before the libraries' own modules.
sys.path.pop(0)

Answer = Callable[[list[int], int], list[int]]
"""Ids of an answer of so many tokens, greedily."""


def main(library: str, model: Path) -> None:
    asked = json.load(sys.stdin)
    ways = LIBRARIES[library](model, asked["threads"], asked["drafts"])
    for way in ways.values():
        way(asked["prompts"][0], 4)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for number, prompt in enumerate(asked["prompts"]):
        names = list(ways) if number % 2 else list(ways)[::-1]
        for name in names:
            found[name].append(timed(ways[name], prompt, asked["tokens"]))
    print(json.dumps(found))


def timed(way: Answer, prompt: list[int], tokens: int) -> dict[str, Any]:
    begun, busy = time.perf_counter(), time.process_time()
    ids = way(prompt, tokens)
    worked, seconds = time.process_time() - busy, time.perf_counter() - begun
    return {"seconds": seconds, "processor": worked, "ids": ids}


def llamacpp(model: Path, threads: int, drafts: int) -> dict[str, Answer]:
    """The library's own settings for prompt lookup on processors are two drafts; more are asked for
    as it says of other machines."""
    from llama_cpp import Llama  # type: ignore[import-not-found]  # in the peer's environment only
    from llama_cpp.llama_speculative import (  # type: ignore[import-not-found]
        LlamaPromptLookupDecoding,
    )

    def made(**more: Any) -> Answer:
        own = Llama(
            str(model),
            n_ctx=2048,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
            **more,
        )

        def answer(prompt: list[int], tokens: int) -> list[int]:
            own.reset()
            return list(itertools.islice(own.generate(prompt, temp=0.0), tokens))

        return answer

    lookup = LlamaPromptLookupDecoding(num_pred_tokens=drafts)
    return {"off": made(), "drafts": made(draft_model=lookup)}


def transformers(model: Path, threads: int, drafts: int) -> dict[str, Answer]:
    """In float32, which is the faster dtype for it on processors without AMX."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    own: Any = AutoModelForCausalLM.from_pretrained(
        str(model.parent), gguf_file=model.name, dtype=torch.float32
    ).eval()
    own.generation_config.eos_token_id = None

    def made(**more: Any) -> Answer:
        def answer(prompt: list[int], tokens: int) -> list[int]:
            given = torch.tensor([prompt])
            with torch.inference_mode():
                ids = own.generate(
                    given,
                    attention_mask=torch.ones_like(given),
                    max_new_tokens=tokens,
                    do_sample=False,
                    pad_token_id=0,
                    **more,
                )
            made_ids: list[int] = ids[0, len(prompt) :].tolist()
            return made_ids

        return answer

    return {"off": made(), "drafts": made(prompt_lookup_num_tokens=drafts)}


LIBRARIES: dict[str, Callable[[Path, int, int], dict[str, Answer]]] = {
    "llamacpp": llamacpp,
    "transformers": transformers,
}

if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
