"""The command line: flags to Options, the report to a table and a JSON file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from loadtest.generator.options import EndControl, Length, OptionError, Options
from loadtest.generator.report import Report, to_markdown
from loadtest.generator.run import run
from loadtest.generator.target import TargetError

Parsed = TypeVar("Parsed")


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 1 where requests failed (what the run's own time cut off is no failure);
    2 for a bad option or a server that can't be used."""
    flags = vars(build_parser().parse_args(arguments))
    output = flags.pop("output")
    progress = not flags.pop("no_progress")
    api_key = os.environ.get(flags.pop("api_key_env"))
    try:
        report = run(Options(**flags), api_key=api_key, progress=progress)
    except (OptionError, TargetError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(to_markdown(report.summary))
    for kind, example in report.summary.error_examples.items():
        print(f"{kind}: {example}", file=sys.stderr)
    if output is not None:
        _write(output, report)
    return 1 if report.summary.failed else 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.generator",
        description="Load on an OpenAI-compatible server over SSE: closed loop with --concurrency "
        "streams, or open loop with --rate arrivals per second.",
    )
    default = Options()
    add = parser.add_argument
    add("--url", default=default.url, help="the server (default: %(default)s)")
    add("--model", help="model to name; default: the server's first")
    add("--endpoint", choices=["completions", "chat"], default=default.endpoint)
    add("--concurrency", type=int, default=default.concurrency, help="streams of the closed loop")
    add("--rate", type=float, help="open loop: requests per second, whatever becomes of them")
    add("--arrivals", choices=["poisson", "constant"], default=default.arrivals)
    add("--requests", type=int, default=default.requests, help="how many in all")
    add("--duration", type=float, help="send no new request after so many seconds")
    add("--max-time", type=float, help="end everything after so many seconds")
    add("--timeout", type=float, default=default.timeout, help="seconds for one request")
    add(
        "--max-in-flight",
        type=int,
        default=default.max_in_flight,
        help="open loop: beyond this a request counts as an error instead of being sent",
    )
    add("--warmup", type=int, default=default.warmup, help="requests before, not counted")
    add("--warmup-time", type=float, help="seconds that the warm-up may take")
    add(
        "--input-tokens",
        type=_length,
        default=default.input_tokens,
        metavar="LENGTH",
        help="128, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:MAX (default: %(default)s)",
    )
    add(
        "--output-tokens",
        type=_length,
        default=default.output_tokens,
        metavar="LENGTH",
        help="likewise (default: %(default)s)",
    )
    add("--prompt-kind", choices=["text", "token-ids"], default=default.prompt_kind)
    add(
        "--token-id-range",
        type=_range,
        default=default.token_id_range,
        metavar="LOW:HIGH",
        help="token-id prompts draw from [LOW, HIGH)",
    )
    add(
        "--shared-prefix",
        type=int,
        default=default.shared_prefix,
        help="first tokens that all prompts share (default: %(default)s)",
    )
    add(
        "--end-control",
        type=_end_control,
        default=default.end_control,
        metavar="field|logit-bias:ID,ID|none",
        help="how the server is told to go on to max_tokens (default: %(default)s, ignore_eos)",
    )
    add(
        "--no-check-length",
        dest="check_length",
        action="store_false",
        help="an answer of another length than asked is no error",
    )
    add(
        "--usage-per-chunk",
        action="store_true",
        help="ask for continuous_usage_stats: exact token counts of each chunk, some server cost",
    )
    add("--temperature", type=float, default=default.temperature)
    add("--seed", type=int, default=default.seed, help="of prompts, lengths and arrivals")
    add(
        "--extra-body",
        type=_json_object,
        default={},
        metavar="JSON",
        help="fields to add to every request's body",
    )
    add(
        "--api-key-env",
        default="OPENAI_API_KEY",
        metavar="NAME",
        help="environment variable that holds the key (default: %(default)s)",
    )
    add("--output", type=Path, metavar="FILE", help="write the result as JSON")
    add("--no-progress", action="store_true")
    return parser


def _write(path: Path, report: Report) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report.to_dict(), indent=1) + "\n")
    print(f"written: {path}", file=sys.stderr)


def _length(text: str) -> Length:
    return _argument(Length.parse, text)


def _end_control(text: str) -> EndControl:
    return _argument(EndControl.parse, text)


def _argument(parse: Callable[[str], Parsed], text: str) -> Parsed:
    try:
        return parse(text)
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        return int(low), int(high)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not LOW:HIGH") from None


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value
