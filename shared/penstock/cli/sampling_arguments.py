"""Flags of `run` and `chat`: how an answer is chosen, and by which engine."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.config import flags
from penstock.config.settings import EngineConfig
from penstock.config.tree import leaves
from penstock.errors import InvalidRequest

CONTEXT = -1
"""The value of --max-tokens that means all that the context leaves."""

_NUMBERS: dict[str, tuple[type, str]] = {
    "max_tokens": (int, "Longest answer, tokens; -1: as long as the context allows."),
    "temperature": (float, "0 is greedy. Default: the model's own."),
    "top_p": (float, "Draw from the likeliest tokens that together have this probability."),
    "top_k": (int, "Draw from this many of the likeliest tokens."),
    "min_p": (float, "Leave out tokens below this share of the likeliest one's probability."),
    "seed": (int, "The same seed gives the same answer."),
}


def add_sampling(parser: argparse.ArgumentParser, *, longest: str = "-1") -> None:
    """--temperature and the like. longest: what --max-tokens is by default, in words."""
    group = parser.add_argument_group("How the answer is chosen")
    for name, (kind, words) in _NUMBERS.items():
        group.add_argument(
            "--" + name.replace("_", "-"),
            dest=f"sampling_{name}",
            type=kind,
            metavar="N",
            help=f"{words} Default: {longest}." if name == "max_tokens" else words,
        )
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="End before this text; may be repeated."
    )


def sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was given, as fields of SamplingParams. Raises InvalidRequest."""
    from penstock.request.sampling_params import SamplingParams

    given = {
        name: getattr(arguments, f"sampling_{name}")
        for name in _NUMBERS
        if getattr(arguments, f"sampling_{name}") is not None
    }
    if given.get("max_tokens") == CONTEXT:
        del given["max_tokens"]
    if arguments.stop:
        given["stop"] = arguments.stop
    SamplingParams(**{"max_tokens": None, **given})
    return given


def add_engine(parser: argparse.ArgumentParser) -> None:
    """The engine's settings: taken, and left out of the help, which would be three screens."""
    hidden = argparse.ArgumentParser(add_help=False)
    flags.add_settings(hidden, flags.ENGINE)
    own = parser._option_string_actions
    for action in hidden._actions:
        if action.dest != "setting_model" and not any(one in own for one in action.option_strings):
            action.help = argparse.SUPPRESS
            parser._add_action(action)


def engine_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Keywords of AsyncLLM: what differs from the defaults."""
    config = flags.resolve(arguments).engine
    found = {}
    for leaf in leaves(EngineConfig):
        value: Any = config
        for name in leaf.path:
            value = getattr(value, name)
        if value != leaf.default and leaf.name != "model":
            found[leaf.name] = value
    return found


def refuse_settings(arguments: argparse.Namespace) -> None:
    """Raises InvalidRequest for settings of an engine together with --url, which starts none."""
    given = [name for name in vars(arguments) if name.startswith("setting_")]
    if given or arguments.config:
        name = given[0].removeprefix("setting_").replace("_", "-") if given else "config"
        raise InvalidRequest(f"--{name} is for an engine that is started; --url uses a running one")
