"""`penstock status`: whether a system is ready, and what it is doing."""

from __future__ import annotations

import argparse
import json
import sys

from penstock.cli.http_client import (
    DEFAULT_URL,
    HttpClient,
    Unreachable,
    add_server_arguments,
    client,
)
from penstock.cli.parser import Parser, examples
from penstock.cli.system_state import SystemReport, ask
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
    told = style.paint("ready", "green") if state.ready else style.paint("not ready", "red")
    rows = [("state", told + (f": {state.reason}" if state.reason else ""))]
    rows += [("model", state.model), ("address", server.url)]
    if state.engine:
        rows += _engine(state)
    rows += _gateway(state)
    label = max(len(name) for name, _ in rows)
    room = width() + (len(told) if style.enabled else 0)
    return "\n".join(clip(f"{name:<{label}}  {text}", room) for name, text in rows)


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
