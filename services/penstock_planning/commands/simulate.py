"""`penstock simulate`: a trace in virtual time. Only what is run is imported."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.cli.parser import Parser
from penstock.cli.replay import silence
from penstock.config import flags
from penstock.config.settings import EngineConfig, ServeConfig
from penstock.config.tree import leaves, replace_settings
from penstock.errors import InvalidRequest
from penstock_planning.commands.cells import add_cells, check_alone, simulate_cells

TOLD = ("nothing", "sessions", "hints")
ROUTING = ("round-robin", "least-loaded", "prefix-aware")


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.usage = "penstock simulate TRACE [--flag VALUE ...]"
    parser.description = (
        "Runs a trace under a virtual clock. TRACE is a file of JSON lines, {at, prompt_tokens, "
        "output_tokens, tenant, priority, prefix_group, prefix_tokens, deadline_ms, adapter, "
        "session, pause, resume_within, unnamed}, Azure's CSV or Mooncake's JSON lines; "
        "agents:sessions=40,turns=43,… (sessions of agents, with tools that run between turns); "
        "mixed:seconds=300,rate=1,tenants=40,… (chats and agents of many tenants); "
        "or synthetic:rate=2,requests=1000,prompt=128,… (Poisson arrivals, log-normal lengths; "
        "also seed, prompt_sigma, max_prompt, output, output_sigma, max_output, shared, groups, "
        "prefix, tenants=a:3+b:1, burst, period)."
    )
    parser.add_argument("trace", metavar="TRACE")
    add = parser.add_argument
    add("--policy", metavar="POLICY", help="Scheduling policy; default: the engine's own.")
    add(
        "--blocks",
        dest="setting_num_kv_blocks",
        type=int,
        default=2048,
        metavar="BLOCKS",
        help="KV blocks of each replica. Default: 2048.",
    )
    add(
        "--kv-groups",
        default="full",
        metavar="GROUPS",
        help="What the model's layers keep, as full,window=1024,states=2048:12 (a copy of "
        "recurrent states after each 2,048 tokens, in 12 blocks). Default: %(default)s.",
    )
    add(
        "--step-cost",
        default="base=5,token=0.1,sequence=0.05",
        metavar="COST",
        help="Milliseconds of a step: base, token, sequence, context (each pair of a token and one "
        "that it attends to), overhead, adapter (each that it reads), adapted (each token that has "
        "one), copy (each block to or from the host tier); or a file that fit-cost wrote. Default:"
        " %(default)s.",
    )
    add(
        "--draft-tokens",
        type=int,
        default=0,
        metavar="N",
        help="Tokens that could be drafted for every sequence. Default: %(default)s.",
    )
    add(
        "--acceptance",
        type=float,
        default=0.7,
        metavar="SHARE",
        help="How often a drafted token is right if those before it are. Default: %(default)s.",
    )
    add(
        "--adapter-load-ms",
        type=float,
        default=500.0,
        metavar="MS",
        help="Until a worker has loaded an adapter that a request names. Default: %(default)g.",
    )
    add(
        "--host-blocks",
        type=int,
        default=0,
        metavar="BLOCKS",
        help="Blocks of the host tier of each replica. Default: none.",
    )
    add(
        "--disk-blocks",
        type=int,
        default=0,
        metavar="BLOCKS",
        help="Blocks that each replica keeps on disk. Default: none.",
    )
    add(
        "--disk-block-ms",
        type=float,
        default=0.5,
        metavar="MS",
        help="Until one of them is read. Default: %(default)g.",
    )
    add(
        "--prefill-replicas",
        type=int,
        default=0,
        metavar="N",
        help="Replicas that compute long prompts for the others, which fetch their KV. Default: "
        "none.",
    )
    add(
        "--prefill-tokens",
        type=int,
        default=512,
        metavar="N",
        help="Shorter prompts are computed where they are answered. Default: %(default)s.",
    )
    add(
        "--transfer-blocks",
        type=int,
        default=8192,
        metavar="BLOCKS",
        help="Blocks that each replica keeps for others. Default: %(default)s.",
    )
    add(
        "--transfer-block-ms",
        type=float,
        default=0.2,
        metavar="MS",
        help="Until one of them is fetched. Default: %(default)g.",
    )
    add(
        "--told",
        choices=TOLD,
        default="sessions",
        help="What the engine core learns about a trace's sessions: nothing, their names, or also"
        " when they will be back. Default: %(default)s.",
    )
    add("--replicas", type=int, default=1, metavar="N", help="Engines behind the router.")
    add_cells(add)
    add("--routing", choices=ROUTING, default=ROUTING[0], help="Default: %(default)s.")
    add("--slo-ttft-ms", type=float, default=1000.0, metavar="MS", help="Default: %(default)g.")
    add("--slo-itl-ms", type=float, default=100.0, metavar="MS", help="Default: %(default)g.")
    add("--check-every", type=int, default=0, metavar="N", help="Prove the books every N events.")
    add(
        "--deaths-per-hour",
        type=float,
        default=0.0,
        metavar="N",
        help="Workers that die, of each replica.",
    )
    add("--seed", type=int, default=0, metavar="N", help="Of deaths and drafts.")
    add("--output", type=Path, metavar="FILE", help="Write all figures there, as JSON.")
    add("--chart", type=Path, metavar="FILE", help="Draw latencies and load there, as PNG.")
    add(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="Tell on stderr how far it is. Default: in a terminal.",
    )
    add(
        "--max-model-len",
        dest="setting_max_model_len",
        type=int,
        default=argparse.SUPPRESS,
        metavar="LEN",
        help="Longest prompt plus output, tokens.",
    )
    places = ("engine", "lora", "max_loras")
    flags.add_settings(parser, ("engine", "scheduler"), ("engine", "cache"), places)
    parser.set_defaults(run=lambda arguments: _simulate(arguments, parser))


def _simulate(arguments: argparse.Namespace, parser: Parser) -> int:
    silence()
    if arguments.cells is not None:
        print(simulate_cells(arguments, parser, _config(arguments)), flush=True)
        return 0
    check_alone(arguments, parser)
    from penstock_planning.simulate.commands import run_simulation
    from penstock_planning.simulate.cost import parse
    from penstock_planning.simulate.groups import parse_groups
    from penstock_planning.simulate.simulation import SimulationOptions

    options = SimulationOptions(
        cost=parse(arguments.step_cost),
        replicas=arguments.replicas,
        routing=arguments.routing,
        slo_ttft=arguments.slo_ttft_ms / 1000,
        slo_itl=arguments.slo_itl_ms / 1000,
        check_every=arguments.check_every,
        deaths_per_hour=arguments.deaths_per_hour,
        seed=arguments.seed,
        kv_groups=parse_groups(arguments.kv_groups),
        draft_tokens=arguments.draft_tokens,
        acceptance=arguments.acceptance,
        adapter_load=arguments.adapter_load_ms / 1000,
        host_blocks=arguments.host_blocks,
        told=arguments.told,
        disk_blocks=arguments.disk_blocks,
        disk_block=arguments.disk_block_ms / 1000,
        prefill_replicas=arguments.prefill_replicas,
        prefill_tokens=arguments.prefill_tokens,
        transfer_blocks=arguments.transfer_blocks,
        transfer_block=arguments.transfer_block_ms / 1000,
    )
    text = run_simulation(
        arguments.trace,
        _config(arguments),
        options,
        output=arguments.output,
        chart=arguments.chart,
        progress=_progress(arguments),
    )
    print(text, flush=True)
    return 0


def _config(arguments: argparse.Namespace) -> EngineConfig:
    config = flags.resolve(arguments)
    if arguments.policy is not None:
        policies = [leaf for leaf in leaves(ServeConfig) if leaf.name == "scheduling_policy"]
        if policies:
            config = replace_settings(config, {"scheduling_policy": arguments.policy})
        elif arguments.policy != "fcfs":
            raise InvalidRequest(f"no policy is called {arguments.policy!r}; there is fcfs")
    return config.core


def _progress(arguments: argparse.Namespace) -> Callable[[float, Any], None] | None:
    if arguments.progress is not None:
        return _tell if arguments.progress else None
    return _tell_in_place if sys.stderr.isatty() else None


def _tell_in_place(now: float, metrics: Any) -> None:
    """Over what it said before; the report's first line comes over it."""
    words = f"{now / 3600:,.2f} h, {metrics.submitted:,} requests"
    print(f"\r\x1b[K{words}\r", end="", file=sys.stderr, flush=True)


def _tell(now: float, metrics: Any) -> None:
    print(f"{now / 3600:,.2f} h, {metrics.submitted:,} requests", file=sys.stderr, flush=True)
