"""`penstock recommend`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.models import columns, counted, decimal
from penstock.cli.parser import Parser, examples
from penstock.errors import InvalidRequest
from penstock.recommend.fits import COMFORTABLE, CONTEXT, GIB, fits

if TYPE_CHECKING:
    from penstock.recommend.fits import Fit, Machine

MOST_CONTEXT = 1 << 20


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Says which well-known models fit this machine's memory, and how fast one answer should "
        "be on its CPU. Nothing is downloaded."
    )
    parser.epilog = examples(
        "penstock recommend",
        "penstock recommend --context 32768",
        "penstock recommend --json | jq -r '.models[0].command'",
    )
    parser.add_argument(
        "--context",
        type=int,
        default=CONTEXT,
        metavar="TOKENS",
        help=f"Length of the conversation that is to fit (default: {CONTEXT:,}).",
    )
    parser.add_argument("--json", action="store_true", help="As JSON, for scripts.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0, or 1 if nothing fits. Raises InvalidRequest."""
    if not 1 <= arguments.context <= MOST_CONTEXT:
        raise InvalidRequest(
            f"--context is {arguments.context}; allowed are 1 to {MOST_CONTEXT:,} tokens"
        )
    from penstock.cli.processes import this_machine

    machine = this_machine()
    found = fits(machine, arguments.context)
    if arguments.json:
        whole = {"machine": machine, "context": arguments.context, "models": found}
        print(msgspec.json.encode(whole).decode())
    else:
        print(text(machine, found, arguments.context))
    return 1 if found[0].missing else 0


def text(machine: Machine, found: list[Fit], context: int) -> str:
    """The machine, a table, and the command for its first row."""
    facts = [
        ("memory", f"{_gib(machine.memory)}, {_gib(machine.free)} of it free"),
        ("processor", f"{machine.processor}, {machine.cores} cores, {machine.kernels} kernels"),
        ("bandwidth", f"{machine.bandwidth / 1e9:.1f} GB/s ({machine.measured})"),
    ]
    rows = [("MODEL", "PARAMETERS", "DOWNLOAD", "MEMORY", "TOKENS/S"), *map(_row, found)]
    said = (
        f"MEMORY: weights, a conversation of {context:,} tokens, and Penstock's processes.\n"
        "TOKENS/S: estimated from the bandwidth, for one answer at half that length.\n"
        f"Models that fit and make {COMFORTABLE:g} tokens a second come first, the largest before"
        " the others."
    )
    return "\n".join([columns(facts), "", columns(rows), "", said, *_last(machine, found)])


def _row(fit: Fit) -> tuple[str, ...]:
    speed = "?" if fit.tokens_per_s is None else f"{fit.tokens_per_s:.2g}"
    if fit.tokens_per_s is not None and fit.tokens_per_s >= 100:
        speed = f"{fit.tokens_per_s:.0f}"
    needed = _gib(fit.memory)
    if fit.missing:
        needed += f", {_gib(fit.missing)} missing"
    return fit.model, counted(fit.parameters), decimal(fit.download), needed, speed


def _last(machine: Machine, found: list[Fit]) -> list[str]:
    lines = []
    if machine.busy:
        lines.append(
            f"Other processes took {machine.others:.0%} of the processors meanwhile: without them"
            " it is faster than this says."
        )
    if not machine.fast:
        lines.append(f"With the {machine.kernels} kernels, speeds can't be estimated.")
    if found[0].missing:
        return [*lines, "None fits: close other programs, or ask for a smaller --context."]
    best = found[0]
    lines.append(f"Serve the first: {best.command} (in a clone: make serve MODEL={best.model})")
    return lines


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
