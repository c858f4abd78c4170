"""Prompt lookup beside other libraries': one stream, greedily, with drafts and without.

    bash loadtest/peers/install.sh llamacpp
    python -m loadtest.lookup_peers                   # some minutes

Penstock with `suffix` and with `ngram`, llama.cpp (`LlamaPromptLookupDecoding` of
llama-cpp-python) and transformers (`prompt_lookup_num_tokens`) get the same token ids and answer in
the same number of tokens. Each library has one compute thread unless `--threads` says otherwise, so
that processor time can be compared on a machine that does other things meanwhile, too. In each,
every prompt is answered with drafts and without, one after the other.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from loadtest.drafting.requests import WORKLOADS
from loadtest.peers.children import answer_of
from loadtest.peers.servers import installed, packaged_file, version_in
from loadtest.report import Document, Flags, Measurement, SetupError, machine_line, say, table
from penstock.process.machine import version_of
from testing.serving import Server

RUNNER = Path(__file__).parent / "drafting" / "lookup_runner.py"
LIMIT = 900.0
"""Seconds for a library's answers."""
REQUESTS = "copy,code,chat,random"
OWN = ("suffix", "ngram")
COLUMNS = {
    "library": "{library}",
    "requests": "{name}",
    "tok/s without": "{without:.0f}",
    "tok/s with": "{with_drafts:.0f}",
    "times as fast": "{ratio:.2f}",
    "by processor time": "{by_work:.2f}",
    "same answers": "{same} of {answers}",
}

Answers = list[dict[str, Any]]
"""`seconds`, `processor` seconds, and `ids` of each."""


def measure(flags: Flags) -> Document:
    model = packaged_file(flags.model)
    rows: list[dict[str, Any]] = []
    most = {"num_speculative_tokens": flags.drafts}
    with ExitStack() as running:
        off = running.enter_context(_server(flags, "off"))
        own = {
            method: running.enter_context(_server(flags, json.dumps({"method": method, **most})))
            for method in OWN
        }
        for name in flags.requests.split(","):
            prompts = list(_prompts(off, name, flags.answers))
            for method, drafts in own.items():
                say(f"penstock, {method}, {name}")
                found = _ours(off, drafts, prompts, flags.tokens)
                rows.append(_row(f"penstock, `{method}`", name, flags.tokens, found))
            for library in ("llamacpp", "transformers"):
                say(f"{library}, {name}")
                found = _theirs(library, model, prompts, flags)
                rows.append(_row(library, name, flags.tokens, found))
    return {
        "model": flags.model,
        "drafts": flags.drafts,
        "threads": flags.threads,
        "tokens": flags.tokens,
        "versions": [version_in("llamacpp", "llama-cpp-python"), _transformers()],
        "rows": rows,
    }


def _transformers() -> str:
    return f"transformers {version_of('transformers')}"


def _server(flags: Flags, config: str) -> Server:
    own = ("--model", flags.model, "--max-model-len", "2048", "--threads", str(flags.threads))
    return Server(*own, "--speculative-config", config)


def _prompts(server: Server, name: str, count: int) -> Iterator[list[int]]:
    """Token ids of requests, as our chat template has them."""
    for number in range(count):
        body = WORKLOADS[name](random.Random(f"lookup {name} {number}"))
        status, reply = server.post("/tokenize", {"messages": body["messages"]})
        if status != 200:
            raise SetupError(f"a prompt can't be tokenised: {reply}")
        yield reply["tokens"]


def _ours(off: Server, drafts: Server, prompts: list[list[int]], tokens: int) -> dict[str, Answers]:
    servers = {"off": off, "drafts": drafts}
    found: dict[str, Answers] = {name: [] for name in servers}
    for number, prompt in enumerate(prompts):
        for name in list(servers) if number % 2 else list(servers)[::-1]:
            found[name].append(_answer(servers[name], prompt, tokens))
    return found


def _answer(server: Server, prompt: list[int], tokens: int) -> dict[str, Any]:
    """A salt of its own, so that no prompt or output has been seen before."""
    begun, busy = time.perf_counter(), server.processor_time()
    salt = f"{begun}"
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    status, reply = server.post("/v1/completions", {**body, "cache_salt": salt})
    worked, seconds = server.processor_time() - busy, time.perf_counter() - begun
    if status != 200:
        raise RuntimeError(f"no answer: {reply}")
    return {"seconds": seconds, "processor": worked, "ids": reply["choices"][0]["text"]}


def _theirs(
    library: str, model: Path, prompts: list[list[int]], flags: Flags
) -> dict[str, Answers]:
    python = sys.executable if library == "transformers" else installed(library, "python")
    asked = {"prompts": prompts, "tokens": flags.tokens}
    asked |= {"drafts": flags.drafts, "threads": flags.threads}
    found: dict[str, Answers] = answer_of(library, [python, RUNNER, library, model], asked, LIMIT)
    return found


def _row(library: str, name: str, tokens: int, found: dict[str, Answers]) -> dict[str, Any]:
    def ratio(of: str) -> float:
        each: dict[str, float] = {
            way: statistics.median(answer[of] for answer in found[way]) for way in found
        }
        return each["off"] / each["drafts"]

    def rate(way: str) -> float:
        return tokens / statistics.median(each["seconds"] for each in found[way])

    pairs = zip(found["off"], found["drafts"], strict=True)
    return {
        "library": library,
        "name": name,
        "without": rate("off"),
        "with_drafts": rate("drafts"),
        "ratio": ratio("seconds"),
        "by_work": ratio("processor"),
        "same": sum(off["ids"] == drafts["ids"] for off, drafts in pairs),
        "answers": len(found["off"]),
    }


def markdown(document: Document) -> str:
    return (
        f"{machine_line(document)}\n\nModel {document['model']}; {', '.join(document['versions'])};"
        f" at most {document['drafts']} drafts, {document['threads']} compute threads, one stream,"
        f" answers of {document['tokens']} tokens, prompts included. transformers has the same"
        " weights as float32. Times as fast: answers with drafts to those without, of medians; by"
        " processor time: the same of what the processes worked. Same answers: how many"
        f" came out the same with drafts as without.\n\n{table(COLUMNS, document['rows'])}\n"
    )


FLAGS = {
    "--model": ("smollm2-135m", "a GGUF file"),
    "--drafts": (8, "of a step, at most"),
    "--threads": (1, ""),
    "--tokens": (96, "of an answer"),
    "--requests": {"default": REQUESTS, "help": f"kinds of {', '.join(WORKLOADS)}"},
    "--answers": (5, "of each kind of request"),
}
COMMAND = Measurement("lookup_peers", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
