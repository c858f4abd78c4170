"""`penstock bench steps`: what a step costs, measured on a server. Only what is run is imported."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from penstock.cli.parser import Parser
from penstock.cli.replay import silence
from penstock.cli.sampling_arguments import add_engine
from penstock.config import flags
from penstock.errors import InvalidRequest, PenstockError


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.usage = "penstock bench steps [MODEL] [--flag VALUE ...]"
    parser.description = (
        "Starts a server, loads it with 1 to 64 streams, and fits what a step costs to what the"
        " engine core recorded. Every engine setting of `penstock serve` is a flag here too."
        " Nothing is drafted."
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="Default: smollm2-135m.")
    for name, default in (("--input-len", "uniform:16:512"), ("--output-len", "uniform:16:96")):
        words = "128, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:MAX. Default: %(default)s."
        parser.add_argument(name, default=default, metavar="LENGTH", help=words)
    parser.add_argument(
        "--seconds", type=int, default=60, metavar="N", help="Of load. Default: %(default)s."
    )
    parser.add_argument("--bench-seed", type=int, default=0, metavar="N", help="Of the prompts.")
    parser.add_argument("--output", type=Path, metavar="FILE", help="Write the cost to this file.")
    add_engine(parser)
    parser.set_defaults(run=_steps)


def _steps(arguments: argparse.Namespace) -> int:
    from penstock_bench.load.options import OptionError
    from penstock_bench.load.target import TargetError
    from penstock_planning.simulate.commands import fit_served
    from penstock_planning.simulate.measure import LoadShape, load_and_record

    shape = LoadShape(
        arguments.input_len, arguments.output_len, arguments.seconds, arguments.bench_seed
    )
    with tempfile.TemporaryDirectory(prefix="penstock-steps-") as name:
        folder = Path(name)
        try:
            loaded = load_and_record(flags.resolve(arguments), arguments.model, folder, shape)
        except OptionError as error:
            raise InvalidRequest(str(error)) from None
        except TargetError as error:
            raise PenstockError(str(error)) from None
        found = [folder / "recordings"]
        silence()
        print(fit_served(found, arguments.output, loaded.lone, loaded.lone_ttft, loaded.model))
    return 0
