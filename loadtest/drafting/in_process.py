"""How fast another program answers, with and without its own prompt lookup, one request at a time.

Run by loadtest.speculation_peers in an environment that has the program:
    PYTHON loadtest/drafting/in_process.py llama_cpp MODEL.gguf TOKENS MOST < CHATS.json
On stdout there is a line of JSON for each chat but the first one, which warms up: [tokens, seconds]
without, and with at most so many tokens looked up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Chat = list[dict[str, str]]
Answer = Callable[[Chat, bool], int]
"""Answers a chat, with lookup or without; returns the number of tokens."""


def llama_cpp(model: str, tokens: int, most: int) -> Answer:
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    threads = len(os.sched_getaffinity(0))
    common = {"model_path": model, "n_ctx": 2048, "n_threads": threads, "verbose": False}
    lookup = LlamaPromptLookupDecoding(num_pred_tokens=most)
    models = Llama(**common), Llama(**common, draft_model=lookup)

    def answer(chat: Chat, looks: bool) -> int:
        models[looks].reset()
        said: Any = models[looks].create_chat_completion(
            chat, max_tokens=tokens, temperature=0.0, repeat_penalty=1.0
        )
        return int(said["usage"]["completion_tokens"])

    return answer


def transformers(model: str, tokens: int, most: int) -> Answer:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    path = Path(model)
    place: Any = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**place)
    loaded = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)

    def answer(chat: Chat, looks: bool) -> int:
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        given = tokenizer(text, return_tensors="pt", add_special_tokens=False)
        lookup = {"prompt_lookup_num_tokens": most} if looks else {}
        ids = loaded.generate(**given, do_sample=False, max_new_tokens=tokens, **lookup)
        return int(ids.shape[1] - given["input_ids"].shape[1])

    return answer


def main(program: str, model: str, tokens: str, most: str) -> None:
    make = {"llama_cpp": llama_cpp, "transformers": transformers}[program]
    answer = make(model, int(tokens), int(most))
    for number, chat in enumerate(json.load(sys.stdin)):
        found: dict[bool, tuple[int, float]] = {}
        for looks in (False, True) if number % 2 else (True, False):
            begun = time.perf_counter()
            count = answer(chat, looks)
            found[looks] = count, time.perf_counter() - begun
        if number:
            print(json.dumps([found[False], found[True]]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
