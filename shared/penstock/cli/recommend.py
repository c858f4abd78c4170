"""`penstock recommend`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.columns import columns, counted, decimal
from penstock.cli.parser import Parser, examples
from penstock.errors import InvalidRequest
from penstock.recommend.cards import DEVICES, parse_device
from penstock.recommend.fits import COMFORTABLE, CONTEXT, GIB, fits

if TYPE_CHECKING:
    from penstock.recommend.beside_fits import CardFit
    from penstock.recommend.cards import Accelerator
    from penstock.recommend.fits import Fit, Machine

MOST_CONTEXT = 1 << 20
MOST_MEMORY = 1 << 16


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Says which well-known models fit this machine's memory, and how fast one answer should "
        "be on its CPU, or on a card and the CPU together. Nothing is downloaded."
    )
    parser.epilog = examples(
        "penstock recommend",
        "penstock recommend --context 32768",
        "penstock recommend --device 4090    # a card, and experts in this machine's memory",
        "penstock recommend --json | jq -r '.models[0].command'",
    )
    parser.add_argument(
        "--context",
        type=int,
        default=CONTEXT,
        metavar="TOKENS",
        help=f"Length of the conversation that is to fit (default: {CONTEXT:,}).",
    )
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        help="A card beside this machine's CPU: " + ", ".join(DEVICES) + ", or figures as in"
        " bandwidth=1008,tflops=165,memory=24,link=32 (GB/s, dense TFLOPS, GB, GB/s).",
    )
    parser.add_argument(
        "--memory",
        type=float,
        metavar="GIB",
        help="Reckon with so much free memory, instead of this machine's.",
    )
    parser.add_argument("--json", action="store_true", help="As JSON, for scripts.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0, or 1 if nothing fits. Raises InvalidRequest."""
    if not 1 <= arguments.context <= MOST_CONTEXT:
        raise InvalidRequest(
            f"--context is {arguments.context}; allowed are 1 to {MOST_CONTEXT:,} tokens"
        )
    card = None if arguments.device is None else parse_device(arguments.device)[1]
    if arguments.memory is not None and not 0 < arguments.memory <= MOST_MEMORY:
        raise InvalidRequest(
            f"--memory is {arguments.memory:g}; allowed are more than 0 and up to {MOST_MEMORY:,}"
            " GiB"
        )
    from penstock.cli.processes import this_machine

    machine = this_machine()
    if arguments.memory is not None:
        size = int(arguments.memory * GIB)
        machine = msgspec.structs.replace(machine, memory=size, free=size)
    if card is not None:
        return _beside(machine, card, arguments)
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
        ("bandwidth", _bandwidth(machine)),
    ]
    rows = [("MODEL", "PARAMETERS", "DOWNLOAD", "MEMORY", "TOKENS/S"), *map(_row, found)]
    said = (
        f"MEMORY: weights, a conversation of {context:,} tokens, and Penstock's processes.\n"
        "TOKENS/S: estimated from the bandwidth, for one answer at half that length.\n"
        f"Models that fit and make {COMFORTABLE:g} tokens a second come first, the largest before"
        " the others."
    )
    return "\n".join([columns(facts), "", columns(rows), "", said, *_last(machine, found)])


def _bandwidth(machine: Machine) -> str:
    """With what others took of the machine meanwhile, if that shows in it: advice changes with
    it."""
    said = f"{machine.bandwidth / 1e9:.1f} GB/s ({machine.measured})"
    if not machine.busy:
        return said
    return (
        f"{said}, while other processes took {machine.others:.0%} of the processors: without them"
        " it is faster, and may serve a larger model"
    )


def _beside(machine: Machine, card: Accelerator, arguments: argparse.Namespace) -> int:
    """As `run`, for a card and its host."""
    from penstock.recommend.beside_fits import card_fits

    found = card_fits(machine, card, arguments.context)
    if arguments.json:
        whole = {
            "machine": machine,
            "card": card,
            "context": arguments.context,
            "models": found,
        }
        print(msgspec.json.encode(whole).decode())
    else:
        print(text_beside(machine, card, found, arguments.context))
    return 1 if found[0].missing else 0


def text_beside(machine: Machine, card: Accelerator, found: list[CardFit], context: int) -> str:
    """Both places, a table, what it assumes, and the command for its first row."""
    from penstock.recommend.beside_card import HOST_SHARE, LINK_SHARE
    from penstock.recommend.beside_fits import PROMPT, STREAMS
    from penstock.recommend.cards import BANDWIDTH_SHARE

    facts = [
        (
            "card",
            f"{card.memory:g} GB, {card.bandwidth:,g} GB/s, {card.tflops:g} TFLOPS, "
            f"{card.link:g} GB/s to the host",
        ),
        ("host", f"{_gib(machine.free)} free, {machine.cores} threads of the {machine.kernels}"),
        ("bandwidth", _bandwidth(machine)),
    ]
    heads = ("MODEL", "CARD", "HOST", "EXPERTS ON THE HOST", "1 ANSWER", str(STREAMS), "PROMPT")
    said = (
        "CARD, HOST: weights there. Experts that the card has no room for are the host's"
        " (--cpu-experts auto).\n"
        f"1 ANSWER, {STREAMS}, PROMPT: tokens per second of one answer, of {STREAMS} together, at"
        f" {context // 2:,} tokens each, and of a prompt of {PROMPT:,}.\n"
        f"Estimated, none of it measured on a card: {BANDWIDTH_SHARE:.0%} of the card's rate, "
        f"{HOST_SHARE:.0%} of the host's, {LINK_SHARE:.0%} of the bus's; experts chosen evenly."
    )
    best = found[0]
    last = "None fits: ask for a smaller --context." if best.missing else f"Serve: {best.command}"
    rows = [heads, *map(_row_beside, found)]
    return "\n".join([columns(facts), "", columns(rows), "", said, last])


def _row_beside(fit: CardFit) -> tuple[str, ...]:
    if fit.missing:
        return fit.model, _gib(fit.card), _gib(fit.host), f"{_gib(fit.missing)} missing", "", "", ""
    where = "-"
    if fit.beside:
        where = f"{fit.on_host} of {fit.layers} layers"
    speeds = (fit.tokens_per_s, fit.streams_tokens_per_s, fit.prompt_tokens_per_s)
    return fit.model, _gib(fit.card), _gib(fit.host), where, *(f"{each:,.0f}" for each in speeds)


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
    if not machine.fast:
        lines.append(f"With the {machine.kernels} kernels, speeds can't be estimated.")
    if found[0].missing:
        return [*lines, "None fits: close other programs, or ask for a smaller --context."]
    best = found[0]
    lines.append(f"Serve the first: {best.command} (in a clone: make serve MODEL={best.model})")
    return lines


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
