"""`penstock simulate --cells`: many engine cores in cells. Only what is run is imported."""

from __future__ import annotations

import argparse
from typing import Any, Protocol

from penstock.config.settings import EngineConfig
from penstock.errors import InvalidRequest

ACROSS = ("hashed", "hashed-coarsely", "one-router", "round-robin")
WITHOUT = (
    "kv_groups",
    "draft_tokens",
    "acceptance",
    "adapter_load_ms",
    "host_blocks",
    "disk_blocks",
    "disk_block_ms",
    "prefill_replicas",
    "prefill_tokens",
    "transfer_blocks",
    "transfer_block_ms",
    "told",
    "routing",
    "slo_ttft_ms",
    "slo_itl_ms",
    "check_every",
    "deaths_per_hour",
    "seed",
    "chart",
)
"""Flags that a simulation of cells has no use for."""
ALONE = ("across", "steps_at_once", "happens", "windows")
"""Flags that nothing but a simulation of cells has a use for."""


class Add(Protocol):
    """An argparse parser's add_argument."""

    def __call__(self, *names: str, **keywords: Any) -> Any: ...


def add_cells(add: Add) -> None:
    """The flags."""
    add(
        "--cells",
        type=int,
        metavar="N",
        help="Cells, each of --replicas engine cores, behind a load balancer. Default: no cells.",
    )
    add(
        "--across",
        choices=ACROSS,
        default=ACROSS[0],
        help="How a cell is chosen: hashed by session or tenant, as deploy/haproxy/cells.cfg does "
        "with 1,024 points of each cell on its circle; hashed-coarsely: with 16; one router that "
        "knows every engine core; or round-robin. Default: %(default)s.",
    )
    add(
        "--steps-at-once",
        action="store_true",
        help="Of cells: model each engine core, with all steps between two changes in one event. "
        "Default: the production engine core, step by step.",
    )
    add(
        "--happens",
        action="append",
        default=[],
        metavar="WHAT",
        help="To cells: upgrade:at=S,away=S,abreast=N, lost:at=S,away=S,noticed=S,cell=N, or "
        "scaling:start=N,each=N,polling=S,lag=S. May be given several times.",
    )
    add(
        "--windows",
        default="all:0",
        metavar="NAME:S,...",
        help="Of cells: figures of requests from each time on. Default: %(default)s.",
    )


def check_alone(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Raises InvalidRequest for flags of cells where there are none."""
    for name in ALONE:
        if getattr(arguments, name) != parser.get_default(name):
            raise InvalidRequest(f"{_flag(name)} needs --cells")


def simulate_cells(
    arguments: argparse.Namespace, parser: argparse.ArgumentParser, config: EngineConfig
) -> str:
    """Runs it, and returns the report. Raises InvalidRequest."""
    from penstock_planning.cells.command import run_cells
    from penstock_planning.simulate.cost import parse

    for name in WITHOUT:
        if getattr(arguments, name) != parser.get_default(name):
            raise InvalidRequest(f"{_flag(name)} is not for a simulation of cells")
    return run_cells(
        arguments.trace,
        config,
        parse(arguments.step_cost),
        cells=arguments.cells,
        replicas=arguments.replicas,
        across=arguments.across,
        steps_at_once=arguments.steps_at_once,
        happens=arguments.happens,
        windows=arguments.windows,
        output=arguments.output,
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
