"""`penstock bench`: latency, throughput, serve, steps."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from penstock.cli.commands import BENCH_KINDS, function_at
from penstock.cli.parser import Parser, examples
from penstock.cli.sampling_arguments import add_engine, engine_settings
from penstock.errors import InvalidRequest, PenstockError
from penstock.net.trust import add_trust_arguments, trusted_context


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Measures. latency: one batch; throughput: many prompts (both start their own engine, "
        "without HTTP); serve: load on a running server that speaks OpenAI's API; steps: what a "
        "step costs, for `penstock plan`."
    )
    parser.epilog = examples(
        "penstock bench latency smollm2-135m --batch-size 8 --input-len 32 --output-len 64",
        "penstock bench throughput smollm2-135m --num-prompts 100 --json",
        "penstock bench serve --concurrency 8 --requests 64",
        "penstock bench serve --rate 20 --duration 30 --requests 10000 --output run.json",
        "penstock bench steps smollm2-135m --output steps.json",
    )
    kinds = parser.add_subparsers(title="what to measure", metavar="KIND", required=True)
    _add_latency(kinds.add_parser("latency", help="seconds for one batch of prompts"))
    _add_throughput(kinds.add_parser("throughput", help="requests and tokens per second"))
    _add_serve(kinds.add_parser("serve", help="latencies of a running server under load"))
    for name, (summary, place) in BENCH_KINDS.items():
        function_at(place)(kinds.add_parser(name, help=summary))


def _add_latency(parser: Parser) -> None:
    parser.usage = "penstock bench latency [MODEL] [--flag VALUE ...]"
    parser.description = (
        "Seconds that one batch takes from the first prompt to the last token. Every engine "
        "setting of `penstock serve` is a flag here too."
    )
    _add_shape(parser, input_len=32, output_len=128)
    add_number = parser.add_argument
    add_number("--batch-size", type=int, default=8, metavar="N", help="Default: %(default)s.")
    add_number("--warmup", type=int, default=1, metavar="N", help="Not counted. Default: 1.")
    add_number("--iterations", type=int, default=5, metavar="N", help="Counted. Default: 5.")
    _add_output(parser)
    add_engine(parser)
    parser.set_defaults(run=_latency)


def _add_throughput(parser: Parser) -> None:
    parser.usage = "penstock bench throughput [MODEL] [--flag VALUE ...]"
    parser.description = (
        "Requests and tokens per second when all prompts are given at once. Every engine setting "
        "of `penstock serve` is a flag here too."
    )
    _add_shape(parser, input_len=128, output_len=128)
    parser.add_argument(
        "--num-prompts", type=int, default=100, metavar="N", help="Default: %(default)s."
    )
    _add_output(parser)
    add_engine(parser)
    parser.set_defaults(run=_throughput)


def _add_serve(parser: Parser) -> None:
    from penstock_bench.load.flags import add_arguments

    parser.description = (
        "Load on a server over SSE: closed loop with --concurrency streams, or open loop with "
        "--rate arrivals per second. Exit codes: 0, 1 where requests failed, 2 a bad option or a "
        "server that can't be used."
    )
    parser.usage = "penstock bench serve [--flag VALUE ...]"
    add_arguments(parser)
    parser.add_argument(
        "--api-key-env",
        default="PENSTOCK_API_KEY",
        metavar="NAME",
        help="Environment variable that holds the API key. Default: %(default)s.",
    )
    add_trust_arguments(parser)
    parser.add_argument("--no-progress", action="store_true", help="No bar on stderr.")
    _add_output(parser)
    parser.set_defaults(run=_serve)


def _add_shape(parser: Parser, *, input_len: int, output_len: int) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="Default: smollm2-135m.")
    for name, default in (("--input-len", input_len), ("--output-len", output_len)):
        words = f"Tokens of each {'prompt' if 'in' in name else 'answer'}. Default: {default}."
        parser.add_argument(name, type=int, default=default, metavar="N", help=words)
    parser.add_argument("--bench-seed", type=int, default=0, metavar="N", help="Of the prompts.")
    parser.add_argument("--verbose", action="store_true", help="Show the engine's log.")


def _add_output(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="The result as JSON on stdout.")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="Also write the result to this file."
    )


def _latency(arguments: argparse.Namespace) -> int:
    from penstock_bench.offline import BatchShape, measure_latency

    shape = BatchShape(arguments.input_len, arguments.output_len, arguments.bench_seed)
    with _engine(arguments) as llm:
        result = measure_latency(
            llm,
            shape,
            batch_size=arguments.batch_size,
            warmup=arguments.warmup,
            iterations=arguments.iterations,
            tick=_dot if sys.stderr.isatty() and not arguments.json else lambda: None,
        )
    return _show(result, arguments)


def _throughput(arguments: argparse.Namespace) -> int:
    from penstock_bench.offline import BatchShape, measure_throughput

    shape = BatchShape(arguments.input_len, arguments.output_len, arguments.bench_seed)
    with _engine(arguments) as llm:
        result = measure_throughput(llm, shape, num_prompts=arguments.num_prompts)
    return _show(result, arguments)


def _engine(arguments: argparse.Namespace) -> Any:
    from penstock.llm import LLM

    log = sys.stderr if arguments.verbose else None
    return LLM(arguments.model, engine_log=log, **engine_settings(arguments))


def _serve(arguments: argparse.Namespace) -> int:
    from penstock_bench.load.flags import options
    from penstock_bench.load.options import OptionError
    from penstock_bench.load.report import to_markdown
    from penstock_bench.load.run import run
    from penstock_bench.load.target import TargetError

    try:
        report = run(
            options(vars(arguments)),
            api_key=os.environ.get(arguments.api_key_env) or None,
            tls=trusted_context(arguments),
            progress=not arguments.no_progress and sys.stderr.isatty(),
        )
    except OptionError as error:
        raise InvalidRequest(str(error)) from None
    except TargetError as error:
        raise PenstockError(str(error)) from None
    print(json.dumps(report.to_dict()) if arguments.json else to_markdown(report.summary), end="")
    if arguments.json:
        print()
    for kind, example in report.summary.error_examples.items():
        print(f"{kind}: {example}", file=sys.stderr)
    _write(report.to_dict(), arguments)
    return 1 if report.summary.failed else 0


def _show(result: dict[str, Any], arguments: argparse.Namespace) -> int:
    from penstock.process.machine import describe_machine

    result = {**result, "machine": describe_machine()}
    if arguments.json:
        print(json.dumps(result))
    else:
        rows = [(name.replace("_", " "), value) for name, value in result.items()]
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            if not isinstance(value, dict):
                print(f"{name:<{width}}  {_figure(value):>12}")
    _write(result, arguments)
    return 0


def _figure(value: float) -> str:
    return f"{value:,.4f}" if isinstance(value, float) and value < 10 else f"{value:,.6g}"


def _write(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _dot() -> None:
    print(".", end="", file=sys.stderr, flush=True)
