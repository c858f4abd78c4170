"""Twenty plain questions through every entrance of Penstock with its defaults, and through
llama.cpp on the same file: `python -m loadtest.questions --help`.

llama.cpp comes by `bash loadtest/peers/install.sh xllamacpp`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loadtest.peers.children import llamacpp_server
from loadtest.peers.servers import default_model, installed, version_in
from loadtest.questions import entrances
from loadtest.questions.report import LLAMACPP, Question, questions, to_markdown
from loadtest.report import Document, Flags, Measurement, say
from penstock import LLM
from penstock.machine import usable_cores, version_of
from testing.serving import Server

CARD = {"temperature": 0.2, "top_p": 0.9, "top_k": 0, "min_p": 0.0}
"""What the model's card advises, and nothing of llama.cpp's own beside it."""
CORES = max(int(usable_cores()), 1)
STREAMS = 8
"""Questions at once."""
EXAMPLES = (
    Question("What is the capital of Germany?", ["Berlin"]),
    Question("What is the capital of France?", ["Paris"]),
)
"""The README's question comes first; the second was the README's before."""


def measure(flags: Flags) -> Document:
    """Everything that the page says."""
    file, times, seeds = default_model(), flags.times, flags.seeds
    python = installed("xllamacpp", "python")
    words = [each.question for each in questions()]
    with ThreadPoolExecutor(1) as beside:
        theirs = beside.submit(ask_llamacpp, python, file, flags.threads, words, times, seeds)
        answers, prompts, own = ask_penstock(words, seeds)
        answers[LLAMACPP], their_prompts, other = theirs.result()
    version = f"xllamacpp {version_in('xllamacpp', 'xllamacpp').split()[-1]} (llama.cpp)"
    return {
        "model": file.name,
        "versions": f"penstock {version_of('penstock')}, {version}",
        "seeds": f"0 to {times - 1}",
        "max_tokens": entrances.MAX_TOKENS,
        "prompts": _same(prompts, their_prompts, transformers_prompts(file, words)),
        "answers": answers,
        "example": [
            {"question": each.question, "seeds": seeds, "penstock": one, LLAMACPP: two}
            for each, one, two in zip(EXAMPLES, own, other, strict=True)
        ],
    }


Asked = tuple[Any, list[list[int]], list[int]]
"""Answers, the questions as token ids, and how often each of EXAMPLES is answered well."""


def ask_penstock(words: list[str], seeds: int) -> Asked:
    """Each entrance once. The answers are by entrance."""
    answers: dict[str, list[list[str]]] = {}
    with Server(entrances.MODEL) as server:
        prompts = [entrances.prompt_token_ids(server.url, each) for each in words]
        ways = {
            "HTTP, one answer": entrances.http(server.url),
            "OpenAI SDK, stream": entrances.sdk(server.url),
            "the page's request": entrances.page(server.url),
            "`penstock run`": entrances.run(server.url),
        }
        for name, ask in ways.items():
            say(name)
            answers[name] = [[answer] for answer in together(ask, words)]
        say("README's example")
        good = rates(lambda seed: entrances.sdk(server.url, seed), seeds)
    say("LLM.chat")
    with LLM(entrances.MODEL) as llm:
        answers["`LLM.chat`"] = [[answer] for answer in entrances.library(llm, words)]
    return answers, prompts, good


def ask_llamacpp(
    python: Path, file: Path, threads: int, words: list[str], times: int, seeds: int
) -> Asked:
    """Each question with the seeds 0 to times - 1."""
    with llamacpp_server(python, threads, file) as url:
        prompts = [llamacpp_prompt(url, each) for each in words]
        say(LLAMACPP)
        given = [together(entrances.http(url, seed=seed, **CARD), words) for seed in range(times)]
        say(f"README's example, {LLAMACPP}")
        good = rates(lambda seed: entrances.http(url, seed=seed, **CARD), seeds)
    return [list(each) for each in zip(*given, strict=True)], prompts, good


def together(ask: entrances.Ask, words: list[str]) -> list[str]:
    """The answers, asked many at once: that changes none of them."""
    with ThreadPoolExecutor(STREAMS) as pool:
        return list(pool.map(ask, words))


def rates(asking: Callable[[int], entrances.Ask], seeds: int) -> list[int]:
    """How often each of EXAMPLES is answered well with the seeds 0, 1, …"""
    asks = [asking(seed) for seed in range(seeds)]
    with ThreadPoolExecutor(STREAMS) as pool:
        return [
            sum(pool.map(lambda ask, to=each: to.is_right(ask(to.question)), asks))
            for each in EXAMPLES
        ]


def llamacpp_prompt(url: str, question: str) -> list[int]:
    """llama.cpp's reading of the file: its template, then its tokenizer."""
    messages = [{"role": "user", "content": question}]
    text = entrances.post(url, "/apply-template", {"messages": messages})["prompt"]
    asked = {"content": text, "parse_special": True, "add_special": True}
    return list(entrances.post(url, "/tokenize", asked)["tokens"])


def transformers_prompts(file: Path, words: list[str]) -> list[list[int]]:
    """transformers' reading of the same file: its tokenizer, and its template."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    return [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": each}], add_generation_prompt=True, return_dict=False
            )
        )
        for each in words
    ]


def _same(ours: list[list[int]], theirs: list[list[int]], third: list[list[int]]) -> str:
    equal = sum(one == other for one, other in zip(ours, theirs, strict=True))
    also = sum(one == other for one, other in zip(ours, third, strict=True))
    return f"equal to llama.cpp's {equal}, equal to transformers' {also}"


COMMAND = Measurement(
    "questions",
    __doc__,
    measure,
    lambda document: to_markdown(document, questions()),
    {
        "--times": (5, "for llama.cpp"),
        "--seeds": (20, "of README's example"),
        "--threads": (CORES, "of llama.cpp"),
    },
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
