"""The reference's pages as text: from the configuration tree, the command line, and what a running
system says of itself."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock.cli.commands import COMMANDS, Command
from penstock.cli.process_arguments import BY_SUPERVISOR
from penstock.cli.table import BEGIN, END
from penstock.config.flags import as_list
from penstock_gateway.metrics.endpoint import SHARED as STORED
from penstock_gateway.metrics.engines import OURS
from tests.reference.optional_metrics import (
    rate_limit_metrics,
    residence_metrics,
    storage_metrics,
)

WRITTEN = "<!-- Made by `python -m tests.reference.generate`; edits are lost. -->\n"
OWN_PROCESS = ("process_", "python_")
"""Families of prometheus_client itself, the same for every program."""
SHARED_BY = 2
"""An argument that as many commands have, in the same words, is explained once."""
FLAGS_TOO = re.compile(
    r" (?:With a MODEL, e|E)very engine setting of `penstock serve` is a flag here too[^.]*\.?"
)
"""What the page says once of all commands that start an engine."""
BY_SUPERVISOR_ALONE = ("fork-server", "ray-workers")
"""Commands that nobody types."""
COUNTERS = {OURS: "†", STORED: "§"}
"""A mark for each sentence about who counts, which many descriptions end with."""


def settings_page() -> str:
    """Every flag of `penstock serve`."""
    return (
        f"# Settings\n\n{WRITTEN}\n"
        "Each setting is a flag of `penstock serve`, a field of the file that `--config` names, "
        "and (the engine's) a keyword of `LLM` with underscores. Flags override the file.\n\n"
        "The default stands in parentheses; where there are none, there is no default, unless the "
        "sentence says otherwise. Settings whose default is True or False are switches. Each "
        "sentence ends with what is allowed: `[0–1]` is 0 to 1 with both ends, `(0–1]` is above 0 "
        "up to and including 1, `≥ 1` any number from 1. A number is whole unless its default "
        "has a decimal point or the sentence says that it is real.\n\n"
        "Flags can be linked to, as in `settings.md#max-model-len`.\n\n" + BEGIN + as_list() + END
    )


# ---- commands


def commands_page() -> str:
    """All commands, and each one's own arguments; settings have their own page."""
    arguments = {command.name: dict(_all_arguments(command)) for command in COMMANDS}
    shared = _shared(arguments.values())
    text = (
        f"# Commands\n\n{WRITTEN}\n"
        "`penstock COMMAND --help` shows the same, with examples and what only a supervisor "
        "passes. Commands that start processes also take the "
        "[settings](settings.md) of those processes as flags.\n"
    )
    text += f"\n## Shared arguments\n\n{_listed(shared)}"
    return text + "".join(
        _command(each, arguments[each.name], shared)
        for each in COMMANDS
        if each.name not in BY_SUPERVISOR_ALONE
    )


def _shared(arguments: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The arguments that several commands have, each in its most frequent words."""
    uses = Counter(row for rows in arguments for row in rows.items())
    shared: dict[str, str] = {}
    for (flag, words), count in uses.items():
        most = uses[flag, shared.get(flag, "")]
        if words and count >= SHARED_BY and count > most:
            shared[flag] = words
    return shared


def _command(command: Command, arguments: Mapping[str, str], shared: Mapping[str, str]) -> str:
    """A command's section. shared: arguments that have a table of their own."""
    about = _one_line(command.parser().description or "")
    text = f"\n## penstock {command.name}\n\n{FLAGS_TOO.sub('', about)}\n"
    also = [
        flag for flag, words in arguments.items() if shared.get(flag.rpartition(": ")[2]) == words
    ]
    own = {flag: words for flag, words in arguments.items() if flag not in also}
    if also:
        names = ", ".join(f"`{flag}`" for flag in also)
        text += f"\nTakes [the shared](#shared-arguments) {names}{', and:' if own else '.'}\n"
    if own:
        text += f"\n{_listed(own)}"
    return text


def _listed(arguments: Mapping[str, str]) -> str:
    """A list of arguments, each with what it sets where that is said; those of a command's kinds
    in lists of their own."""
    lists: dict[str, str] = {}
    for named, words in arguments.items():
        kinds, _, flag = named.rpartition(": ")
        lists.setdefault(kinds, f"For {kinds}:\n\n" if kinds else "")
        lists[kinds] += f"- `{flag}`{': ' if words else ''}{words}\n"
    return "\n".join(lists.values())


def _all_arguments(command: Command) -> Iterable[tuple[str, str]]:
    """A command's arguments and those of its kinds, each with what it sets."""
    parser = command.parser()
    yield from _arguments(parser)
    kinds = {name: dict(_arguments(kind)) for name, kind in _kinds(parser)}
    rows = dict.fromkeys(row for own in kinds.values() for row in own.items())
    for flag, words in rows:
        having = [name for name, own in kinds.items() if own.get(flag) == words]
        yield f"{', '.join(having)}: {flag}", words


def _arguments(parser: argparse.ArgumentParser) -> Iterable[tuple[str, str]]:
    """The arguments that people give, and what each sets."""
    given = [group for group in parser._action_groups if group.title == BY_SUPERVISOR]
    left_out = [action for group in given for action in group._group_actions]
    for action in parser._actions:
        if action in left_out:
            continue
        own = not action.dest.startswith("setting_") and action.dest not in ("help", "config")
        if own and action.help != argparse.SUPPRESS and not _is_kinds(action):
            flags = [flag for flag in action.option_strings if flag.startswith("--")]
            words = (action.help or "") % {"default": action.default}
            yield "`, `".join(flags) or str(action.metavar or action.dest), _one_line(words)


def _kinds(parser: argparse.ArgumentParser) -> Iterable[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if _is_kinds(action):
            yield from (action.choices or {}).items()  # type: ignore[union-attr,misc]


def _is_kinds(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


def _one_line(words: str) -> str:
    return " ".join(words.split())


# ---- metrics


def metrics_page(plain: str, gateway: str, engine: str, worker: str) -> str:
    """Each argument is the text of a /metrics: of a gateway whose engine core has no metrics port,
    and of the three kinds of processes where all have one."""
    own = _families(gateway)
    known = {family.name for family in own}
    more = {_named(each) for each in _families(plain) if each.name not in known}
    labelled = {name.partition("{")[0].strip("`") for name in more if "engine" in name}
    counted = ", ".join(sorted(name for name in more if "engine" not in name))
    sections = {
        "Gateway": (
            own,
            "On a gateway's main port or, with API keys, on its `--admin-port`. For an engine core "
            f"without a metrics port, a gateway also counts {counted}, and has "
            "[those](#engine-core) marked ‡, with the label `engine` and the same value at every "
            "gateway.",
        ),
        "Engine core": (_families(engine), "On `--engine-metrics-port`."),
        "Gateway, with `--data-dir`": (
            _families(storage_metrics()),
            "In addition, if [files and batches](../guides/batches.md) are stored. "
            "`penstock:batch_lines_total` and `penstock:batch_open_lines` come from the process "
            "that runs batches.",
        ),
        "Gateway, with `--rate-limit-storage`": (
            _families(rate_limit_metrics()),
            "In addition, if [limits of keys](../guides/keys.md#limits) are counted in Redis.",
        ),
        "Gateway, with models on demand": (
            _families(residence_metrics()),
            "In addition, for each of [several models](../guides/several-models.md).",
        ),
        "Worker": (_families(worker), "On `--worker-metrics-port`."),
    }
    marks = "\n".join(f"- {mark} {sentence}" for sentence, mark in COUNTERS.items())
    text = (
        f"# Metrics\n\n{WRITTEN}\n"
        "All families have the label `model_name`. Each process also reports its own memory, CPU "
        "time and open files (`process_…`). [Observability](../guides/observability.md) says how "
        "to collect and read them. Braces have the other labels. Families marked (h) are "
        f"histograms; of the others, those in `_total` are counters, the rest gauges.\n\n{marks}\n"
    )
    for title, (families, words) in sections.items():
        text += f"\n## {title}\n\n{words}\n\n"
        marked = labelled if title == "Engine core" else set()
        text += "".join(_family(each, marked) for each in families)
    return text


def _families(page: str) -> list[Metric]:
    families = text_string_to_metric_families(page)
    return [each for each in families if not each.name.startswith(OWN_PROCESS)]


def _named(family: Metric) -> str:
    """A family's name with its labels."""
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = dict.fromkeys(label for sample in family.samples for label in sample.labels)
    shown = ", ".join(label for label in labels if label not in ("model_name", "le"))
    return f"`{name}{{{shown}}}`" if shown else f"`{name}`"


def _family(family: Metric, marked: set[str]) -> str:
    """A family's line. marked: names of those that gateways show as well."""
    words = _one_line(family.documentation)
    named = _named(family)
    marks = "‡" if named.partition("{")[0].strip("`") in marked else ""
    for sentence, mark in COUNTERS.items():
        if words.endswith(f". {sentence}"):
            words, marks = words.removesuffix(sentence).rstrip(), f"{marks}{mark}"
    if family.type == "histogram":
        marks += " (h)"
    return f"- {named}{marks}: {words}\n"
