"""A closed- and open-loop load generator for any OpenAI-compatible server:
`python -m loadtest.generator --help`.  `penstock bench serve` is the same one."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from penstock.bench.load.arguments import add_arguments, options
from penstock.bench.load.options import OptionError
from penstock.bench.load.report import LoadReport, to_markdown
from penstock.bench.load.run import run
from penstock.bench.load.target import TargetError


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 1 where requests failed (what the run's own time cut off is no failure);
    2 for a bad option or a server that can't be used."""
    flags = vars(build_parser().parse_args(arguments))
    output = flags.pop("output")
    progress = not flags.pop("no_progress")
    api_key = os.environ.get(flags.pop("api_key_env"))
    try:
        report = run(options(flags), api_key=api_key, progress=progress)
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
    add_arguments(parser)
    add = parser.add_argument
    add(
        "--api-key-env",
        default="OPENAI_API_KEY",
        metavar="NAME",
        help="environment variable that holds the key (default: %(default)s)",
    )
    add("--output", type=Path, metavar="FILE", help="write the result as JSON")
    add("--no-progress", action="store_true")
    return parser


def _write(path: Path, report: LoadReport) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report.to_dict(), indent=1) + "\n")
    print(f"written: {path}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
