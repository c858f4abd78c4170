"""`penstock status`: whether a system is ready, and what it is doing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.cli.http_client import (
    DEFAULT_URL,
    HttpClient,
    Refused,
    Unreachable,
    add_server_arguments,
    client,
)
from penstock.cli.parser import Parser, examples
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


# What `status` and `top` know of a running system: the answer of GET /status.


@dataclass(frozen=True)
class SystemReport:
    """raw: the answer.  engine, gateway: its parts, empty without."""

    raw: dict[str, Any]

    @property
    def ready(self) -> bool:
        return bool(self.raw.get("ready"))

    @property
    def reason(self) -> str:
        return str(self.raw.get("reason") or "")

    @property
    def model(self) -> str:
        return str(self.raw.get("model") or "no model yet")

    @property
    def engine(self) -> dict[str, Any]:
        return self.raw.get("engine") or {}

    @property
    def engines(self) -> list[dict[str, Any]]:
        """Each engine core, where there are several; what an older gateway doesn't say is none."""
        engines = self.raw.get("engines")
        return engines if isinstance(engines, list) else []

    @property
    def models(self) -> list[dict[str, Any]]:
        """Each model, where there are several or some on demand."""
        models = self.raw.get("models")
        return models if isinstance(models, list) else []

    @property
    def gateway(self) -> dict[str, Any]:
        return self.raw.get("gateway") or {}

    def count(self, name: str) -> float:
        """A number of the engine's; 0 where it says none."""
        value = self.engine.get(name, 0)
        return value if isinstance(value, (int, float)) else 0

    @property
    def processes(self) -> str:
        """Engine cores, workers and front ends, for a person."""
        workers = counted(self.count("workers"), "worker")
        processes = f"{workers}, {counted(self.count('frontends'), 'front end')}"
        if len(self.engines) < 2:
            return processes
        ready = sum(bool(each.get("ready")) for each in self.engines)
        return f"{len(self.engines)} engine cores ({ready} ready), {processes}"

    @property
    def blocks_used(self) -> int:
        return int(self.count("blocks_total") - self.count("blocks_free"))


@dataclass(frozen=True)
class ModelNumbers:
    """What the engine cores of one model add up to. tokens: generated so far."""

    name: str
    state: str
    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    tokens: int

    @classmethod
    def of(cls, state: SystemReport, model: dict[str, Any]) -> ModelNumbers:
        name = model.get("model")
        engines = [each for each in state.engines if each.get("model") == name]

        def total(field: str) -> int:
            return sum(int(each.get(field) or 0) for each in engines)

        return cls(
            name=str(name or "-"),
            state=str(model.get("state") or "-"),
            running=total("running"),
            # Those that wait for the model itself are in no engine core yet.
            waiting=total("waiting") + int(model.get("waiting") or 0),
            blocks_used=total("blocks_used"),
            blocks_total=total("blocks_total"),
            tokens=total("tokens_generated"),
        )


def ask(server: HttpClient) -> SystemReport:
    """The state now. Raises Unreachable and Refused."""
    status, answer = server.get("/status")
    if status != 200 or not isinstance(answer, dict):
        error = answer.get("error") if isinstance(answer, dict) else None
        message = error.get("message") if isinstance(error, dict) else "it has no /status"
        raise Refused(status, str(message))
    return SystemReport(answer)


def bar(share: float, columns: int) -> str:
    """`[####....]`, so many columns wide."""
    inner = max(1, columns - 2)
    filled = round(min(max(share, 0.0), 1.0) * inner)
    return "[" + "#" * filled + "." * (inner - filled) + "]"
