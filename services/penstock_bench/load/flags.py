"""The flags of a load run, and the LoadOptions that they make."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, TypeVar

from penstock_bench.load.options import EndControl, Length, LoadOptions, OptionError

Parsed = TypeVar("Parsed")


def add_arguments(parser: argparse._ActionsContainer) -> None:
    """A flag for each field of LoadOptions. Where `bench latency` and `bench throughput`, or vLLM's
    benchmark, call the same otherwise, both names are taken."""
    default = LoadOptions()
    add = parser.add_argument
    add("--url", default=default.url, help="the server (default: %(default)s)")
    add("--model", help="model to request; default: the server's first")
    add("--endpoint", choices=["completions", "chat"], default=default.endpoint)
    add(
        "--concurrency",
        "--max-concurrency",
        dest="concurrency",
        type=int,
        default=default.concurrency,
        help="streams of the closed loop",
    )
    add(
        "--rate",
        "--request-rate",
        dest="rate",
        type=float,
        help="open loop: requests per second, whether or not earlier ones have ended",
    )
    add("--arrivals", choices=["poisson", "constant"], default=default.arrivals)
    add(
        "--requests",
        "--num-prompts",
        dest="requests",
        type=int,
        default=default.requests,
        help="total number of requests",
    )
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
        "--input-len",
        "--input-tokens",
        dest="input_tokens",
        type=_length,
        default=default.input_tokens,
        metavar="LENGTH",
        help="128, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:MAX (default: %(default)s)",
    )
    add(
        "--output-len",
        "--output-tokens",
        dest="output_tokens",
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
        help="how the server is told to continue to max_tokens (default: %(default)s, ignore_eos)",
    )
    add(
        "--no-check-length",
        dest="check_length",
        action="store_false",
        help="an answer of the wrong length is not an error",
    )
    add(
        "--usage-per-chunk",
        action="store_true",
        help="ask for continuous_usage_stats: exact token counts of each chunk",
    )
    add("--temperature", type=float, default=default.temperature)
    add(
        "--seed",
        "--bench-seed",
        dest="seed",
        type=int,
        default=default.seed,
        help="of prompts, lengths and arrivals",
    )
    add(
        "--extra-body",
        type=_json_object,
        default={},
        metavar="JSON",
        help="fields to add to every request's body",
    )


def options(flags: dict[str, Any]) -> LoadOptions:
    """The LoadOptions of parsed flags; others are left aside. Raises OptionError."""
    names = LoadOptions.__dataclass_fields__
    return LoadOptions(**{name: flags[name] for name in names if name in flags})


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
