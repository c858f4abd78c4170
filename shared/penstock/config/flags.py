"""Flags made of the configuration tree, and the tree made of flags and a file."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any

from penstock.config.foreign_names import (
    FOREIGN,
    RENAMED,
    SERVER_FOREIGN,
    SHORT,
    VALUES,
    check_foreign,
    read_value,
)
from penstock.config.settings import ServeConfig
from penstock.config.tree import Leaf, leaves, load_file, replace_settings
from penstock.errors import InvalidRequest

_PREFIX = "setting_"
_FOREIGN_PREFIX = "vllm_"

ENGINE = ("engine",)
GATEWAY = ("gateway",)
STORAGE = ("storage",)
MODELS = ("models", "models")
TRANSPORT = ("engine", "transport")
MEDIA = ("engine", "media")
ADAPTERS = (("engine", "lora", "lora_allowed_folder"), ("engine", "model", "cache_dir"))
WORKER_METRICS = (
    ("engine", "metrics", "worker_metrics_port"),
    ("engine", "metrics", "metrics_host"),
)
LOG = ("log",)
SHUTDOWN = ("gateway", "shutdown_timeout")
GATEWAYS = ("gateways",)
SERVE: tuple[str, ...] = ()


def add_settings(parser: argparse.ArgumentParser, *parts: tuple[str, ...]) -> None:
    """Gives `parser` --config, and a flag for every setting that lies under one of `parts`."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML or JSON file that holds the configuration tree or a part of it; flags override.",
    )
    found = [leaf for leaf in leaves(ServeConfig) if any(_lies_under(leaf, part) for part in parts)]
    if any(leaf.advanced for leaf in found):
        words = "Show this help with the flags that few people change."
        parser.add_argument("--help-all", action=_HelpAll, help=words)
    groups: dict[str, Any] = {}
    for leaf in found:
        group = groups.get(leaf.section)
        if group is None:
            group = groups[leaf.section] = parser.add_argument_group(leaf.section)
        _add_flag(group, leaf)
        for name in (vllms for vllms, ours in RENAMED.items() if ours == leaf.name):
            _add_hidden(group, flag_of(name), leaf)


def _lies_under(leaf: Leaf, part: tuple[str, ...]) -> bool:
    return leaf.path[: len(part)] == part


def add_foreign(parser: argparse.ArgumentParser) -> None:
    """Gives `parser` the flags of `vllm serve` that ask for what happens here anyway."""
    taken = parser._option_string_actions
    for name, one in {**FOREIGN, **SERVER_FOREIGN}.items():
        if flag_of(name) not in taken:
            # A switch takes no word: the next one may be MODEL.
            kind: dict[str, Any] = (
                {"action": argparse.BooleanOptionalAction} if one.switch else {"type": read_value}
            )
            parser.add_argument(
                flag_of(name),
                dest=_FOREIGN_PREFIX + name,
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
                **kind,
            )


def check_foreign_flags(arguments: argparse.Namespace) -> None:
    """Raises InvalidRequest for a flag of vLLM's that asks for what is not done here."""
    known = {**FOREIGN, **SERVER_FOREIGN}
    for dest, value in vars(arguments).items():
        if dest.startswith(_FOREIGN_PREFIX):
            name = dest.removeprefix(_FOREIGN_PREFIX)
            check_foreign(name, known[name], value)


def flag_of(name: str) -> str:
    """A setting's name as a flag."""
    return "--" + name.replace("_", "-")


class _HelpAll(argparse.Action):
    """Shows the help with the flags of advanced settings, which `--help` leaves out."""

    def __init__(self, option_strings: Sequence[str], dest: str, **known: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **known)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        by_flag = {leaf.flag: leaf for leaf in leaves(ServeConfig) if leaf.advanced}
        for action in parser._actions:
            leaf = by_flag.get(action.option_strings[0]) if action.option_strings else None
            if leaf is not None:
                action.help = _help_of(leaf)
        parser.print_help()
        parser.exit()


class _Joined(argparse.Action):
    """Several words as one setting, with its separator between them. The flag may be repeated."""

    def __init__(self, *, separator: str, **known: Any) -> None:
        super().__init__(nargs="+", **known)
        self._separator = separator

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        words = [*([] if before is None else [before]), *values]
        setattr(namespace, self.dest, None if None in words else self._separator.join(words))


def _add_hidden(group: Any, flag: str, leaf: Leaf) -> None:
    """vLLM's word for a setting: taken, and left out of the help."""
    group.add_argument(
        flag,
        dest=_PREFIX + leaf.name,
        type=_parser(leaf),
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )


def _add_flag(group: Any, leaf: Leaf) -> None:
    if leaf.kind is bool:
        _add_switch(group, leaf)
        return
    more: dict[str, Any] = {}
    if leaf.separator:
        more = {"action": _Joined, "separator": leaf.separator}
    group.add_argument(
        *([SHORT[leaf.name]] if leaf.name in SHORT else []),
        leaf.flag,
        dest=_PREFIX + leaf.name,
        metavar=leaf.name.rsplit("_", 1)[-1].upper(),
        type=_parser(leaf),
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS if leaf.advanced else _help_of(leaf),
        **more,
    )


def _add_switch(group: Any, leaf: Leaf) -> None:
    """--name, --name=true, --name=false, and --no-name."""
    group.add_argument(
        leaf.flag,
        dest=_PREFIX + leaf.name,
        nargs="?",
        const=True,
        metavar="BOOL",
        type=_parser(leaf),
        default=argparse.SUPPRESS,
        help=_help_of(leaf),
    )
    group.add_argument(
        "--no-" + leaf.flag.removeprefix("--"),
        dest=_PREFIX + leaf.name,
        action="store_false",
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )


def _parser(leaf: Leaf) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return leaf.parse(VALUES.get((leaf.name, text), text))
        except InvalidRequest:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not allowed; expected {leaf.allowed}"
            ) from None

    return parse


def _help_of(leaf: Leaf) -> str:
    return help_text(leaf).replace("%", "%%")


def help_text(leaf: Leaf) -> str:
    """Description, range and default, as --help shows them."""
    words = leaf.description
    if leaf.allowed not in ("text", "text, or none"):
        words += f" {leaf.allowed[0].upper()}{leaf.allowed[1:]}."
    if leaf.default not in (None, "") and "default:" not in words.lower():
        words += f" Default: {leaf.default}."
    return words


def resolve(arguments: argparse.Namespace) -> ServeConfig:
    """The configuration: defaults, then --config, then flags. Raises InvalidRequest."""
    config = load_file(ServeConfig, arguments.config) if arguments.config else ServeConfig()
    given = {
        name.removeprefix(_PREFIX): value
        for name, value in vars(arguments).items()
        if name.startswith(_PREFIX)
    }
    return replace_settings(config, given)


def as_table() -> str:
    """Every flag of `penstock serve`, as a Markdown table."""
    lines = ["| flag | default | what it sets |", "|---|---|---|"]
    section = ""
    for leaf in leaves(ServeConfig):
        if leaf.section != section:
            section = leaf.section
            lines.append(f"| **{section}** | | |")
        lines.append(f"| `{leaf.flag}` | {_default_of(leaf)} | {_words_of(leaf)} |")
    return "\n".join(lines) + "\n"


def as_list() -> str:
    """The reference of settings: the flags as Markdown lists under headings, each with an anchor of
    its name."""
    lines: list[str] = []
    section = ""
    for leaf in leaves(ServeConfig):
        if leaf.section != section:
            section = leaf.section
            lines += ["", f"## {section}", ""]
        anchor = f'<a id="{leaf.flag.removeprefix("--")}"></a>'
        default = f" ({shown})" if (shown := _default_of(leaf)) else ""
        lines.append(f"- {anchor}`{leaf.flag}`{default}: {_words_of(leaf)}")
    return "\n".join(lines[1:]) + "\n"


def _default_of(leaf: Leaf) -> str:
    return "" if leaf.default in (None, "") else f"`{leaf.default}`"


def _words_of(leaf: Leaf) -> str:
    words = leaf.description.replace("; default: none.", ".")
    return f"{words} {_range_of(leaf)}".rstrip()


def _range_of(leaf: Leaf) -> str:
    """The values that a setting may have, in the reference's short form.

    Empty for texts and switches, and where the description or the default names each value.
    """
    if leaf.choices:
        unnamed = [
            f"`{each}`"
            for each in leaf.choices
            if each != leaf.default and not re.search(rf"\b{each}\b", leaf.description)
        ]
        return f"Also {', '.join(unnamed)}." if unnamed else ""
    if leaf.kind not in (int, float):
        return ""
    limits = re.sub(r"^a (whole )?number( in)?|, or none$", "", leaf.allowed).strip()
    real = "real " if leaf.kind is float and leaf.default is None else ""
    return f"{real}{limits.replace(', ', '–')}".strip()
