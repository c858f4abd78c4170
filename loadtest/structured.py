"""What structured output costs: `python loadtest/structured.py --help`.

The same prompts with and without a JSON schema, as many tokens each: processor time of all
processes for each token, and its difference.  Beside it the grammar alone, in this process:
compiling it, and one step of its matcher (a token taken, the next mask computed).  Every completed
answer is judged by the jsonschema package.  Results go to results/structured.json and .md.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import jsonschema
import psutil

from loadtest.report.facts import machine_line
from loadtest.report.figures import percentile
from loadtest.report.files import Facts, Report, parser
from penstock import LLM, SamplingParams, StructuredOutputs
from penstock.bench.load.report import markdown_table
from penstock.prepare import load_manifest, prepare
from penstock.protocol.common import Grammar
from penstock_worker.grammar_text.compile import Library
from testing import random_schemas

PROGRAM = "loadtest/structured.py"


def main() -> None:
    command = parser(PROGRAM, __doc__, section=True)
    command.add_argument("--model", default="smollm2-135m")
    command.add_argument("--schemas", type=int, default=200, help="random ones, a request each")
    command.add_argument("--max-tokens", type=int, default=300)
    flags = command.parse_args()
    report = Report("structured", PROGRAM, flags)
    schemas = [random_schemas.schema(seed) for seed in range(flags.schemas)]
    figures = measure(flags.model, schemas, flags.max_tokens)
    report.finish({"figures": figures}, lambda facts: table(facts, figures), section="structured")


def measure(model: str, schemas: list[dict[str, Any]], most: int) -> dict[str, float]:
    """Milliseconds of the processor for each token, masked and not; microseconds of the grammar."""
    prompts = [f"A JSON value for {json.dumps(schema)}: " for schema in schemas]
    with LLM(model, max_model_len=4096) as llm:
        llm.generate(prompts[:2], SamplingParams(max_tokens=8), use_tqdm=False)
        masked_params = [
            SamplingParams(
                temperature=1.0,
                seed=seed,
                max_tokens=most,
                structured_outputs=StructuredOutputs(json=schema),
            )
            for seed, schema in enumerate(schemas)
        ]
        # Once to compile: what is measured is what a token costs.
        llm.generate(prompts, [shorter(p) for p in masked_params], use_tqdm=False)
        masked, outputs = timed(llm, prompts, masked_params)
        answers = [output.outputs[0] for output in outputs]
        lengths = [len(answer.token_ids) for answer in answers]
        plain_params = [
            SamplingParams(temperature=1.0, seed=seed, max_tokens=length, ignore_eos=True)
            for seed, length in enumerate(lengths)
        ]
        plain, _ = timed(llm, prompts, plain_params)
    ended = [a.finish_reason == "stop" for a in answers]
    valid = sum(
        is_valid(schema, answer.text)
        for schema, answer, done in zip(schemas, answers, ended, strict=True)
        if done
    )
    tokens = sum(lengths)
    return {
        "requests": len(schemas),
        "completed": sum(ended),
        "valid": valid,
        "tokens": tokens,
        "masked_ms": 1000 * masked / tokens,
        "unmasked_ms": 1000 * plain / tokens,
        **grammar_alone(model, schemas, [list(answer.token_ids) for answer in answers]),
    }


def shorter(params: SamplingParams) -> SamplingParams:
    return SamplingParams(max_tokens=1, structured_outputs=params.structured_outputs)


def timed(llm: LLM, prompts: list[str], params: list[SamplingParams]) -> tuple[float, list[Any]]:
    """Seconds of the processor that all processes took, and the outputs."""
    before = processor_seconds()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return processor_seconds() - before, outputs


def processor_seconds() -> float:
    """Of this process and its descendants."""
    me = psutil.Process()
    times = [p.cpu_times() for p in (me, *me.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def is_valid(schema: dict[str, Any], text: str) -> bool:
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def grammar_alone(
    model: str, schemas: list[dict[str, Any]], answers: list[list[int]]
) -> dict[str, float]:
    """Compiling each schema, and following each answer."""
    folder = prepare(model)
    manifest = load_manifest(folder)
    eos = manifest.generation.eos_token_ids
    library = Library(folder / "tokenizer.json", manifest.config.vocab_size, eos)
    compiles, steps = [], []
    for schema, tokens in zip(schemas, answers, strict=True):
        begun = time.process_time()
        source = library.source(Grammar("json_schema", json.dumps(schema)))
        matcher = library.matcher(source)
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


def table(facts: Facts, figures: dict[str, float]) -> str:
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
    return f"{markdown_table(head, rows)}\n\n{machine_line(facts)}\n"


if __name__ == "__main__":
    main()
