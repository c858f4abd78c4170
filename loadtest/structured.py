"""What structured output costs: `python -m loadtest.structured --help`.

The same prompts with and without a JSON schema, as many tokens each: processor time of all
processes for each token, and its difference.  Beside it the grammar alone, in this process:
compiling it, and one step of its matcher (a token taken, the next mask computed).  Every completed
answer is judged by the jsonschema package.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

import jsonschema

from loadtest.report import Document, Flags, Measurement, machine_line, markdown_table, percentile
from penstock import LLM, CompletionOutput, SamplingParams, StructuredOutputs
from penstock.prepare import load_manifest, prepare
from penstock.protocol.common import Grammar
from penstock_worker.grammar_text.compile import Library
from testing import random_schemas
from testing.processes import processor_seconds

MODEL = "smollm2-135m"


def measure(flags: Flags) -> Document:
    """Milliseconds of the processor for each token, masked and not; microseconds of the grammar."""
    schemas = [random_schemas.schema(seed) for seed in range(flags.schemas)]
    prompts = [f"A JSON value for {json.dumps(schema)}: " for schema in schemas]
    masks = [{"structured_outputs": StructuredOutputs(json=schema)} for schema in schemas]
    with LLM(MODEL, max_model_len=4096) as llm:
        # Once to compile: what is measured is what a token costs.
        timed(llm, prompts, [{**mask, "max_tokens": 1} for mask in masks])
        masked, answers = timed(llm, prompts, [{**mask, "max_tokens": 300} for mask in masks])
        lengths = [len(answer.token_ids) for answer in answers]
        free = [{"max_tokens": length, "ignore_eos": True} for length in lengths]
        plain, _ = timed(llm, prompts, free)
    completed = [
        is_valid(schema, answer.text)
        for schema, answer in zip(schemas, answers, strict=True)
        if answer.finish_reason == "stop"
    ]
    tokens = sum(lengths)
    figures = {
        "requests": len(schemas),
        "completed": len(completed),
        "valid": sum(completed),
        "tokens": tokens,
        "masked_ms": 1000 * masked / tokens,
        "unmasked_ms": 1000 * plain / tokens,
        **grammar_alone(schemas, [list(answer.token_ids) for answer in answers]),
    }
    return {"figures": figures}


def timed(
    llm: LLM, prompts: list[str], fields: list[dict[str, Any]]
) -> tuple[float, list[CompletionOutput]]:
    """Seconds of the processor that all processes took, and the answers.

    fields: of each prompt's sampling parameters.
    """
    params = [SamplingParams(temperature=1.0, seed=i, **each) for i, each in enumerate(fields)]
    before = processor_seconds(os.getpid())
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return processor_seconds(os.getpid()) - before, [output.outputs[0] for output in outputs]


def is_valid(schema: dict[str, Any], text: str) -> bool:
    try:
        return bool(jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)))
    except ValueError:
        return False


def grammar_alone(schemas: list[dict[str, Any]], answers: list[list[int]]) -> dict[str, float]:
    """Compiling each schema, and following each answer."""
    folder = prepare(MODEL)
    about = load_manifest(folder)
    eos = about.generation.eos_token_ids
    library = Library(folder / "tokenizer.json", about.config.vocab_size, eos)
    compiles, steps = [], []
    for schema, tokens in zip(schemas, answers, strict=True):
        begun = time.process_time()
        matcher = library.matcher(library.source(Grammar("json_schema", json.dumps(schema))))
        matcher.compute_bitmask()
        compiles.append(time.process_time() - begun)
        for token in tokens:
            begun = time.perf_counter()
            matcher.consume_token(token)
            matcher.compute_bitmask()
            steps.append(time.perf_counter() - begun)
    return {
        "compile_ms": 1000 * statistics.median(compiles),
        "step_us": 1e6 * statistics.median(steps),
        "step_p99_us": 1e6 * percentile(steps, 0.99),
    }


def markdown(document: Document) -> str:
    figures = document["figures"]
    added = figures["masked_ms"] - figures["unmasked_ms"]
    rows = [
        ["answers completed, of all", f"{figures['completed']:.0f} of {figures['requests']:.0f}"],
        ["of these valid by jsonschema", f"{figures['valid']:.0f}"],
        ["processor time a token, with a schema", f"{figures['masked_ms']:.3f} ms"],
        ["… without", f"{figures['unmasked_ms']:.3f} ms"],
        ["… added", f"{added:.3f} ms ({100 * added / figures['unmasked_ms']:.1f} %)"],
        ["compiling a schema, median", f"{figures['compile_ms']:.2f} ms"],
        ["the matcher's step, median", f"{figures['step_us']:.0f} µs"],
        ["the matcher's step, p99", f"{figures['step_p99_us']:.0f} µs"],
    ]
    head = ["random JSON schemas, temperature 1", ""]
    return f"{markdown_table(head, rows)}\n\n{machine_line(document)}\n"


FLAGS = {"--schemas": (200, "random ones, a request each")}
COMMAND = Measurement("structured", __doc__, measure, markdown, FLAGS, section="structured")

if __name__ == "__main__":
    sys.exit(COMMAND.main())
