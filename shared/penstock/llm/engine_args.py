"""EngineArgs, AsyncEngineArgs and FlexibleArgumentParser: for scripts that are written around
vLLM's. `LLM(**dataclasses.asdict(EngineArgs(...)))` is `LLM(...)`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from penstock.config.foreign_names import FOREIGN, RENAMED, SHORT, VALUES
from penstock.config.settings import EngineConfig
from penstock.config.tree import Leaf, leaves

_LEAVES = {leaf.name: leaf for leaf in leaves(EngineConfig)}


def _fields() -> list[tuple[str, Any, Any]]:
    own = [(leaf.name, Any, dataclasses.field(default=leaf.default)) for leaf in _LEAVES.values()]
    foreign = [
        (name, Any, dataclasses.field(default=one.default))
        for name, one in FOREIGN.items()
        if name not in _LEAVES
    ]
    return own + foreign


def _add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Gives the parser a flag for each keyword of LLM: --max-model-len, --tensor-parallel-size…"""
    from penstock.config.flags import help_text

    for leaf in _LEAVES.values():
        names = [SHORT[leaf.name], leaf.flag] if leaf.name in SHORT else [leaf.flag]
        names += [_flag(vllms) for vllms, ours in RENAMED.items() if ours == leaf.name]
        _add_flag(parser, names, leaf.name, leaf.default, help_text(leaf), leaf)
    for name, one in FOREIGN.items():
        if name not in _LEAVES:
            words = f"Known for scripts that give it; {one.note or 'changes nothing here'}."
            _add_flag(parser, [_flag(name)], name, one.default, words, None)
    return parser


def _from_cli_args(cls: type, arguments: argparse.Namespace) -> Any:
    """The EngineArgs that such a parser's arguments describe; others are left aside."""
    given = vars(arguments)
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: given[name] for name in names if name in given})


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _add_flag(
    parser: argparse.ArgumentParser,
    names: list[str],
    dest: str,
    default: Any,
    words: str,
    leaf: Leaf | None,
) -> None:
    words = words.replace("%", "%%")
    if isinstance(default, bool):
        parser.add_argument(
            *names, dest=dest, action=argparse.BooleanOptionalAction, default=default, help=words
        )
        return
    kind = type(default) if default is not None else str
    parse = _parser(leaf) if leaf is not None else kind
    parser.add_argument(*names, dest=dest, type=parse, default=default, help=words)


def _parser(leaf: Leaf) -> Callable[[str], Any]:
    return lambda text: leaf.parse(VALUES.get((leaf.name, text)) or text)


EngineArgs: Any = dataclasses.make_dataclass(
    "EngineArgs",
    _fields(),
    namespace={
        "__module__": __name__,
        "__doc__": "Keywords of LLM, with their defaults. Checked when an LLM is made of them.",
        "add_cli_args": staticmethod(_add_cli_args),
        "from_cli_args": classmethod(_from_cli_args),
    },
)

AsyncEngineArgs: Any = dataclasses.make_dataclass(
    "AsyncEngineArgs",
    [],
    bases=(EngineArgs,),
    namespace={"__module__": __name__, "__doc__": "The same, for AsyncLLM."},
)


class FlexibleArgumentParser(argparse.ArgumentParser):
    """Takes `--max_model_len` for `--max-model-len`, as vLLM's parser does."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        import sys

        given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args([_with_dashes(text) for text in given], namespace)


def _with_dashes(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value
