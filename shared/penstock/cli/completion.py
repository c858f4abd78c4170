"""`penstock completion`: what a shell needs to complete our commands, made from the parsers."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.cli.commands import COMMANDS
from penstock.cli.parser import Parser, examples
from penstock.config.settings import ServeConfig
from penstock.config.tree import Leaf, leaves
from penstock.prepare.resolve import ALIASES

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Flag:
    """words: what may follow it, if they are listed.  takes_value: whether anything follows."""

    name: str
    help: str
    takes_value: bool
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Known:
    """A command, or a subcommand (`bench latency`)."""

    name: str
    help: str
    flags: list[Flag]
    words: list[str] = field(default_factory=list)


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = "Prints a script that teaches a shell to complete penstock's commands."
    parser.epilog = examples(
        "source <(penstock completion bash)        # in ~/.bashrc",
        "source <(penstock completion zsh)         # in ~/.zshrc, after compinit",
        "penstock completion fish | source         # in ~/.config/fish/config.fish",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command. Returns its exit status, 0."""
    makers = {"bash": bash, "zsh": zsh, "fish": fish}
    print(makers[arguments.shell](list(known())), end="")
    return 0


def known() -> Iterator[Known]:
    """Every command, and after one with subcommands these."""
    for command in COMMANDS:
        yield from _walk(command.name, command.summary, command.parser())


def _walk(name: str, summary: str, parser: argparse.ArgumentParser) -> Iterator[Known]:
    settings = {leaf.flag: leaf for leaf in leaves(ServeConfig)}
    flags, words, inner = [], [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            lines = {one.dest: one.help or "" for one in action._choices_actions}
            words = list(action.choices)
            inner = [(f"{name} {one}", lines[one], action.choices[one]) for one in words]
        elif not action.option_strings:
            words += list(action.choices or ())
            words += ALIASES if str(action.metavar).startswith("MODEL") else ()
        elif (flag := _shown(action, settings)) is not None:
            leaf = settings.get(flag)
            listed = tuple(map(str, action.choices or ())) or (leaf.choices if leaf else ())
            if flag == "--model":
                listed = ALIASES
            line = _line(leaf.description if leaf is not None else action.help)
            flags.append(Flag(flag, line, action.nargs not in (0, "?"), listed))
    yield Known(name, summary, flags, words)
    for one in inner:
        yield from _walk(*one)


def _shown(action: argparse.Action, settings: Mapping[str, Leaf]) -> str | None:
    """The flag to offer: engine settings of `run` too, which its help leaves out; None: a hidden
    spelling."""
    flag = next((one for one in action.option_strings if one.startswith("--")), None)
    return flag if action.help != argparse.SUPPRESS or flag in settings else None


def _line(text: str | None) -> str:
    """A help's first sentence, short, and harmless inside quotes."""
    words = re.split(r"(?<=\.)\s", (text or "").replace("%%", "%"))[0].rstrip(".")
    words = re.sub(r"[^\w ,;()/.<>=≥≤’-]", "", words.replace("'", "’"))
    return textwrap.shorten(words, 70, placeholder=" …")


_BASH = """\
# bash completion of penstock; made by `penstock completion bash`
_penstock() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  local command=${COMP_WORDS[1]} words=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "@COMMANDS@ --help --version" -- "$cur"))
    return
  fi
  case "$command ${COMP_WORDS[2]}" in
@SUBCOMMANDS@
  esac
  case "$command $prev" in
@CHOICES@
  esac
  case "$command" in
@WORDS@
  esac
  if [[ $cur == -* ]] || [ "$COMP_CWORD" -eq 2 ]; then
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
  fi
  if [ ${#COMPREPLY[@]} -eq 0 ] && [[ $cur != -* ]]; then
    COMPREPLY=($(compgen -f -- "$cur"))
  fi
}
complete -o filenames -F _penstock penstock
"""


def bash(commands: list[Known]) -> str:
    """A function for bash 3.2 and later."""
    subs = [one.name for one in commands if " " in one.name]
    sub_lines = [f'  "{name}") [ "$COMP_CWORD" -gt 2 ] && command="{name}" ;;' for name in subs]
    choice_lines = [
        f'  "{one.name} {flag.name}") COMPREPLY=($(compgen -W "{" ".join(flag.words)}" -- "$cur"))'
        "; return ;;"
        for one in commands
        for flag in one.flags
        if flag.words
    ]
    word_lines = [
        f'  "{one.name}") words="{" ".join([*one.words, *(flag.name for flag in one.flags)])}" ;;'
        for one in commands
    ]
    return (
        _BASH.replace("@COMMANDS@", " ".join(one.name for one in commands if " " not in one.name))
        .replace("@SUBCOMMANDS@", "\n".join(sub_lines))
        .replace("@CHOICES@", "\n".join(choice_lines))
        .replace("@WORDS@", "\n".join(word_lines))
    )


def zsh(commands: list[Known]) -> str:
    """A function for zsh's completion system."""
    lines = ["#compdef penstock", "_penstock() {", "  local -a items", "  local command=$words[2]"]
    tops = [one for one in commands if " " not in one.name]
    lines += ["  if (( CURRENT == 2 )); then", "    items=("]
    lines += [f"      '{one.name}:{_line(one.help)}'" for one in tops]
    lines += ["    )", "    _describe 'command' items", "    return", "  fi"]
    lines += ['  case "$command $words[3]" in']
    lines += [
        f'    "{one.name}") (( CURRENT > 3 )) && command="{one.name}" ;;'
        for one in commands
        if " " in one.name
    ]
    lines += ["  esac", '  case "$command $words[CURRENT-1]" in']
    lines += [
        f'    "{one.name} {flag.name}") compadd -- {" ".join(flag.words)}; return ;;'
        for one in commands
        for flag in one.flags
        if flag.words
    ]
    lines += ["  esac", '  case "$command" in']
    for one in commands:
        items = [f"'{word}'" for word in one.words]
        items += [f"'{flag.name}:{flag.help}'" for flag in one.flags]
        lines.append(f'    "{one.name}") items=({" ".join(items)}) ;;')
    lines += ["  esac", "  if [[ $PREFIX == -* ]] || (( CURRENT == 3 )); then"]
    lines += ["    _describe -o 'argument' items", "  fi", "  [[ $PREFIX != -* ]] && _files"]
    return "\n".join([*lines, "}", "compdef _penstock penstock"]) + "\n"


def fish(commands: list[Known]) -> str:
    """Rules for fish."""
    lines = ["# fish completion of penstock; made by `penstock completion fish`"]
    for one in commands:
        head, _, sub = one.name.partition(" ")
        if not sub:
            lines.append(
                f"complete -c penstock -n __fish_use_subcommand -f -a {head} -d '{_line(one.help)}'"
            )
        seen = f"__fish_seen_subcommand_from {head}"
        seen = f"{seen}; and __fish_seen_subcommand_from {sub}" if sub else seen
        if one.words:
            lines.append(f"complete -c penstock -n '{seen}' -f -a '{' '.join(one.words)}'")
        for flag in one.flags:
            value = f" -x -a '{' '.join(flag.words)}'" if flag.words else ""
            value = value or (" -r" if flag.takes_value else "")
            long = flag.name.removeprefix("--")
            lines.append(f"complete -c penstock -n '{seen}' -l {long}{value} -d '{flag.help}'")
    return "\n".join(lines) + "\n"
