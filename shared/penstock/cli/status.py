"""`penstock status`: whether a system is ready, and what it is doing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping

from penstock.cli.http_client import (
    DEFAULT_URL,
    HttpClient,
    Unreachable,
    add_server_arguments,
    client,
)
from penstock.cli.parser import Parser, examples
from penstock.cli.system_report import ModelNumbers, SystemReport, ask
from penstock.cli.terminal import Style, clip, counted, duration, width

TIMEOUT = 10.0
NOT_READY = 1


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Asks a running system once. Exit codes: 0 ready, 1 not ready or no answer, 2 wrong usage."
    )
    parser.epilog = examples(
        "penstock status",
        "until penstock status --url http://127.0.0.1:8001 >/dev/null; do sleep 1; done",
        "penstock status --json | jq .engine.running",
    )
    add_server_arguments(parser, default=DEFAULT_URL)
    parser.add_argument("--json", action="store_true", help="The server's reply as JSON.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns one of the exit codes above."""
    server = client(arguments, TIMEOUT)
    try:
        state = ask(server)
    except Unreachable as error:
        if not arguments.json:
            raise
        print(json.dumps({"ready": False, "reason": str(error)}))
        return NOT_READY
    print(json.dumps(state.raw) if arguments.json else _table(server, state))
    return 0 if state.ready else NOT_READY


def _table(server: HttpClient, state: SystemReport) -> str:
    style = Style(sys.stdout)
    readiness = style.paint("ready", "green") if state.ready else style.paint("not ready", "red")
    rows = [("state", readiness + (f": {state.reason}" if state.reason else ""))]
    if not state.models:
        rows.append(("model", state.model))
    rows.append(("address", server.url))
    if state.engine:
        rows += _engine(state)
    rows += _gateway(state)
    label = max(len(name) for name, _ in rows)
    room = width() + (len(readiness) if style.enabled else 0)
    lines = [clip(f"{name:<{label}}  {text}", room) for name, text in rows]
    if state.models:
        lines += ["", *models_table(state, style)]
    return "\n".join(lines)


def models_table(
    state: SystemReport, style: Style, rates: Mapping[str, float] | None = None
) -> list[str]:
    """A line for each of several models, and the heads. rates: tokens per second, in place of the
    tokens generated so far."""
    heads = (
        "MODEL",
        "STATE",
        "RUNNING",
        "WAITING",
        "KV BLOCKS",
        "TOKENS" if rates is None else "TOKENS/S",
    )
    cells = [heads]
    for model in state.models:
        numbers = ModelNumbers.of(state, model)
        tokens = f"{numbers.tokens:,}" if rates is None else f"{rates.get(numbers.name, 0.0):,.1f}"
        used = f"{numbers.blocks_used:,} of {numbers.blocks_total:,}"
        cells.append(
            (
                numbers.name,
                numbers.state,
                f"{numbers.running:,}",
                f"{numbers.waiting:,}",
                used if numbers.blocks_total else "-",
                tokens,
            )
        )
    widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
    lines = [
        clip("  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)), width())
        for row in cells
    ]
    return [style.paint(lines[0].rstrip(), "dim"), *(line.rstrip() for line in lines[1:])]


def _engine(state: SystemReport) -> list[tuple[str, str]]:
    count = state.count
    total = int(count("blocks_total"))
    share = f" ({100 * state.blocks_used / total:.0f} %)" if total else ""
    return [
        ("running", f"{count('running'):,.0f}"),
        ("waiting", f"{count('waiting'):,.0f}"),
        (
            "KV blocks",
            f"{state.blocks_used:,} of {total:,}{share} of {count('block_size'):.0f} tokens, "
            f"{count('blocks_cached'):,.0f} cached",
        ),
        ("tokens", f"{count('tokens_generated'):,.0f} generated, in {count('steps'):,.0f} steps"),
        ("preemptions", f"{count('preemptions'):,.0f}"),
        (
            "processes",
            state.processes,
        ),
    ]


def _gateway(state: SystemReport) -> list[tuple[str, str]]:
    gateway = state.gateway
    if not gateway:
        return []
    requests = counted(int(gateway.get("open_requests") or 0), "open request")
    words = f"pid {gateway.get('pid')}, {requests}, up "
    return [("gateway", words + duration(float(gateway.get("uptime") or 0)))]
