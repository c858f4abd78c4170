"""`penstock plan`: how many engine cores hold an objective. Only what is run is imported."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.parser import Parser, examples
from penstock.cli.replay import silence
from penstock.config import flags
from penstock.errors import InvalidRequest
from penstock_planning.commands.simulate import ROUTING

if TYPE_CHECKING:
    from penstock.prepare.describe import Description
    from penstock.recommend.beside_card import PlacedModel

NONE_HOLDS = 1


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.usage = "penstock plan --slo BOUNDS (--trace FILE | --rate N) [--flag VALUE ...]"
    parser.description = (
        "Finds how many engine cores hold an objective, with step costs that `penstock bench "
        "steps` measured, or estimated for a GPU. Exit status: 0, 1 where no number of engine "
        "cores that was tried holds it, 2 a bad option."
    )
    parser.epilog = examples(
        "penstock bench steps smollm2-135m --output steps.json",
        "penstock plan --slo ttft_p95=1s,itl_p95=50ms --rate 20 --step-cost steps.json",
        "penstock plan --slo ttft_p95=2s --trace trace.csv --step-cost steps.json --chart plan.svg",
        "penstock plan --slo ttft_p95=1s --rate 50 --device h100 --model FOLDER"
        " --what-if apart=0.25 --what-if reuse=0.5",
    )
    _add_traffic(parser)
    _add_steps(parser)
    _add_layout(parser)
    add = parser.add_argument
    add("--json", action="store_true", help="The plan as JSON on stdout.")
    add("--output", type=Path, metavar="FILE", help="Also write the JSON to this file.")
    add("--chart", type=Path, metavar="FILE", help="Draw load against latency there, as SVG.")
    add(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="Tell on stderr what is tried. Default: in a terminal.",
    )
    flags.add_settings(parser, ("engine", "scheduler"), ("engine", "cache"))
    parser.set_defaults(run=run)


def _add_traffic(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--slo",
        required=True,
        metavar="BOUNDS",
        help="What is to hold, as ttft_p95=1s,itl_p95=50ms: percentiles of the time to the first"
        " token, between tokens (itl) and to the last token (e2e).",
    )
    add(
        "--trace",
        metavar="TRACE",
        help="Traffic: a file as for `penstock simulate`, Azure's CSV (TIMESTAMP, ContextTokens,"
        " GeneratedTokens) or Mooncake's JSON lines; or synthetic:…, agents:….",
    )
    add("--rate", type=float, metavar="N", help="Or traffic of so many requests per second.")
    add("--input-tokens", type=int, default=128, metavar="N", help="Median. Default: %(default)s.")
    add("--output-tokens", type=int, default=64, metavar="N", help="Median. Default: %(default)s.")
    add("--sigma", type=float, default=0.8, metavar="S", help="Of both. Default: %(default)s.")
    add(
        "--requests",
        type=int,
        metavar="N",
        help="How many are simulated. Default: the trace's first 1,000; of --rate also more.",
    )
    add(
        "--reuse",
        type=float,
        metavar="SHARE",
        help="Share of each prompt that an eighth of the others begin with, too.",
    )
    add("--seed", type=int, default=0, metavar="N", help="The same seed gives the same plan.")


def _add_steps(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--step-cost",
        metavar="COST",
        help="A file of `penstock bench steps` or `penstock fit-cost`, or milliseconds as in"
        " base=5,token=0.1,sequence=0.05.",
    )
    add(
        "--device",
        metavar="DEVICE",
        help="Estimate the steps instead: 3060, 4090, 5080, a100, h100, h200, l4, l40s, or"
        " figures as in bandwidth=3350,tflops=989,memory=80 (GB/s, dense TFLOPS, GB).",
    )
    add("--model", metavar="MODEL", help="Whose steps are estimated.")
    add(
        "--cpu-experts",
        default="off",
        metavar="LAYERS",
        help="With --device: experts of so many layers in the host's memory, as for `serve`: auto,"
        " all, or a number. Default: %(default)s.",
    )
    add(
        "--host",
        metavar="FIGURES",
        help="Of the host that has them, as in bandwidth=60,threads=16,memory=64 (GB/s, threads,"
        " GB).",
    )
    add(
        "--gateway-ms",
        type=float,
        metavar="MS",
        help="From a request to its first token, outside of the engine core. Default: as measured"
        " by `penstock bench steps`, else 0.",
    )


def _add_layout(parser: Parser) -> None:
    add = parser.add_argument
    add("--cores", type=int, metavar="N", help="Engine cores, instead of the fewest that hold it.")
    add("--max-cores", type=int, default=64, metavar="N", help="To try. Default: %(default)s.")
    add(
        "--what-if",
        action="append",
        default=[],
        metavar="CHANGE",
        help="Also with this: a setting of the scheduler or the cache, reuse, apart, routing,"
        " draft_tokens or acceptance, as in max_num_seqs=16,reuse=0.5; may be repeated.",
    )
    add("--routing", choices=ROUTING, default="least-loaded", help="Default: %(default)s.")
    add(
        "--apart",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="Share of the engine cores that compute prompts for the others. Default: none.",
    )
    add("--apart-tokens", type=int, default=512, metavar="N", help="Of such prompts, at least.")
    add("--transfer-block-ms", type=float, default=0.2, metavar="MS", help="To fetch a block.")
    add("--draft-tokens", type=int, default=0, metavar="N", help="As for `penstock simulate`.")
    add("--acceptance", type=float, default=0.7, metavar="SHARE", help="Default: %(default)s.")


def run(arguments: argparse.Namespace) -> int:
    """0, or NONE_HOLDS. Raises InvalidRequest."""
    from penstock_planning.plan.command import PlanRequest, run_plan

    silence()
    names = set(PlanRequest.__struct_fields__) & set(vars(arguments))
    given = {name: getattr(arguments, name) for name in names}
    model, operations, placed = None, 0.0, None
    if arguments.model:
        model, operations, placed = _model(arguments.model, measured=arguments.cpu_experts != "off")
    gateway = arguments.gateway_ms
    asked = PlanRequest(
        **{
            **given,
            "what_if": tuple(arguments.what_if),
            "model": model,
            "pair_operations": operations,
            "placed": placed,
            "gateway": None if gateway is None else gateway / 1000,
            "transfer_block": arguments.transfer_block_ms / 1000,
        }
    )
    tells = sys.stderr.isatty() if arguments.progress is None else arguments.progress
    text, holds = run_plan(
        asked,
        flags.resolve(arguments).core,
        as_json=arguments.json,
        output=arguments.output,
        chart=arguments.chart,
        tell=_tell if tells else lambda words: None,
    )
    print(text, flush=True)
    return 0 if holds else NONE_HOLDS


def _model(name: str, *, measured: bool = False) -> tuple[Description, float, PlacedModel | None]:
    """A model that is on this machine. Raises ModelNotFound, UnsupportedModel, InvalidRequest.

    `measured`: with what its experts take, for which a worker's code opens the weights.
    """
    from penstock.cli.processes import expert_bytes
    from penstock.prepare import load_manifest, prepare
    from penstock.prepare.describe import describe
    from penstock_planning.plan.beside import placed_model
    from penstock_planning.plan.command import size_of

    if not name:
        raise InvalidRequest("--model is empty")
    folder = prepare(name, fetch="never")
    model = load_manifest(folder)
    known, operations = size_of(describe(folder, model), model)
    held = expert_bytes(model) if measured and known.experts is not None else None
    return known, operations, placed_model(known, model.decoder, held)


def _tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
