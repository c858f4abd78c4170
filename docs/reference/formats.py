"""The reference's page about formats of tool calls and reasoning."""

from __future__ import annotations

from collections import Counter
from string import ascii_lowercase

from docs.reference.pages import WRITTEN
from penstock.parsing.format import AnyFormat, CallFormat, ChannelFormat, ThoughtFormat
from penstock.parsing.formats import FORMATS
from tests.shared.formats.hands import HANDS, Hand
from tests.shared.formats.rewritten import REWRITES
from tests.shared.formats.turns import TURNS

_INTRODUCTION = """\
The names for `--tool-call-parser` and `--reasoning-parser`; by default they are \
[recognised](../guides/structured-output.md#tools).

| calls | meaning |
|---|---|
| own | `required` and a named function give calls in the model's own format, and with `auto` \
strict tools' calls are held to their schemas |
| JSON | forced calls are JSON, and `strict` has no effect |
| ids | marks are recognised by their ids, where the tokenizer has a token for them |
"""
_ROUND_TRIPS = """\
## Round trips

A client sends a model's answer back, and the template shows it to the model. If the text is the \
same, the prefix cache has all of it. Tests try this with templates of releases and turns of \
texts, thoughts, calls and results; * compares token ids, the others texts. A call's arguments \
are shown as the client sent them; JSON without any space gets the template's spaces. The rest is \
the template's own:

"""


def formats_page() -> str:
    """A table of calls, one of thoughts, and one of the templates' round trips."""
    calls = [form for form in FORMATS if not isinstance(form, ThoughtFormat) and form.names]
    thoughts = [form for form in FORMATS if isinstance(form, ThoughtFormat) or not form.names]
    lines = ["| models | parser | calls |", "|---|---|---|"]
    lines += map(_calls_row, calls)
    others = ["| models | parser |", "|---|---|", *map(_thoughts_row, thoughts)]
    return (
        f"# Formats of tool calls and reasoning\n\n{WRITTEN}\n{_INTRODUCTION}\n"
        + "\n".join(lines)
        + "\n\nThoughts of models that have them in a block before the answer:\n\n"
        + "\n".join(others)
        + f"\n\n{_ROUND_TRIPS}"
        + "\n".join(_trips())
        + "\n"
    )


def _names(form: AnyFormat, *, thoughts: bool) -> tuple[str, ...]:
    if thoughts and isinstance(form, ChannelFormat):
        return form.reasoning_names
    return form.names


def _trips() -> list[str]:
    """A table of templates, and what the letters in it mean."""
    hands = {name: hand for hand in HANDS for name in hand.templates}
    whys = Counter(why for name in hands for why in _whys(name))
    letters = dict(zip((why for why, _ in whys.most_common()), ascii_lowercase, strict=False))
    by_reasons: dict[str, list[str]] = {}
    for name, hand in sorted(hands.items(), key=lambda each: each[0].lower()):
        same, tried = _round_trips(hand, name)
        turns = f"{same}/{tried}{'*' if hand.tokenizer else ''}"
        otherwise = "".join(sorted(letters[why] for why in _whys(name)))
        by_reasons.setdefault(otherwise, []).append(f"{name} {turns}")
    lines = ["| otherwise | templates, and turns that are the same |", "|---|---|"]
    lines += [f"| {why or '–'} | {', '.join(names)} |" for why, names in sorted(by_reasons.items())]
    legend = [f"- {letter}: {why}" for why, letter in letters.items()]
    return [*lines, "", "Not shown, or otherwise than written:", "", *legend]


def _whys(template: str) -> list[str]:
    """The reasons, each once, for which a template shows turns otherwise."""
    return list(dict.fromkeys(rewrite.why for rewrite in REWRITES.get(template, ())))


def _round_trips(hand: Hand, template: str) -> tuple[int, int]:
    """Number of its model's turns that are shown the same again, and number of turns tried."""
    tried = [name for name, turn in TURNS.items() if hand.tries(turn)]
    changed = {turn for rewrite in REWRITES.get(template, ()) for turn in rewrite.turns}
    return sum(name not in changed for name in tried), len(tried)


def _calls_row(form: CallFormat | ChannelFormat) -> str:
    own = isinstance(form, ChannelFormat) or bool(form.written)
    cells = (
        form.models,
        ", ".join(f"`{name}`" for name in form.names),
        ("own" if own else "JSON") + (", ids" if form.tokens else ""),
    )
    return f"| {' | '.join(cells)} |"


def _thoughts_row(form: AnyFormat) -> str:
    names = ", ".join(f"`{name}`" for name in _names(form, thoughts=True))
    return f"| {form.models} | {names} |"
