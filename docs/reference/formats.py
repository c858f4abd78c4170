"""The reference's page about formats of tool calls and reasoning: what of each is tested."""

from __future__ import annotations

from docs.reference.pages import WRITTEN
from penstock.parsing.format import AnyFormat, CallFormat, ChannelFormat, ThoughtFormat
from penstock.parsing.formats import FORMATS
from tests.shared.formats.all_cases import ALL
from tests.shared.formats.case import FormatCases
from tests.shared.formats.rewritten import REWRITES
from tests.shared.formats.turns import HANDS, TURNS, Hand

_INTRODUCTION = """\
Each format is a description in `shared/penstock/parsing/formats`. The counts are of the tests' own
lists of cases (`tests/shared/formats`); those of `llama3_json` and `json` are in
`tests/shared/test_parsing.py`.

| column | meaning |
|---|---|
| tools, reasoning | texts with calls, and with thoughts; calls, thoughts and content are \
compared |
| splits | texts, each cut in two at every place, letter by letter, and with its marks as tokens; \
and any number of their pieces in any order |
| forced | `own`: `required` and a named function give calls in the model's own format \
(`tests/worker/grammar/test_forced_formats.py`); with `auto`, calls of strict tools are held to \
their schemas (`test_held_calls.py`); `JSON`: forced calls are JSON, `strict` has no effect |
| tokens | the marks are told by their ids, where the tokenizer has a token for them |
| round trip | templates of releases: a call that the template writes is read back, the same; and \
of how many turns that the model writes, the template shows the text again, sent back as it was \
answered, where that is tried |
"""
_ROUND_TRIPS = """\
## Round trips

A model writes an answer, a client sends it back as a part of the conversation, and the template \
shows it to the model. If the text is the one that the model wrote, the prefix cache has all of \
it. `tests/gateway/chat/test_round_trip.py` tries these turns with templates of releases, and with \
their tokenizers where it has them (then the ids are compared, else the texts):

| turn | |
|---|---|
| text | an answer of text |
| thoughts | thoughts and a text, after which the user goes on |
| call; thoughts, call; text, call; two calls | after which the tools' results come |
| values | a call with true, null, letters beyond ASCII, quotes, a line break, lists and objects |
| spelling | a call with 1e5, 1.0, an escaped letter, keys out of order, and spaces where \
json.dumps has none |

Penstock keeps what it can: a call's arguments are shown as the client sent them. If they are JSON \
without any space, as JavaScript writes it, they get the template's spaces. A line break in a \
string, which models may write as it is, becomes `\\n` in the answer, and stays so. The rest is \
the template's own:

"""


def formats_page() -> str:
    """A table of calls, and one of thoughts."""
    calls = [form for form in FORMATS if not isinstance(form, ThoughtFormat) and form.names]
    thoughts = [form for form in FORMATS if isinstance(form, ThoughtFormat) or not form.names]
    head = "| models | parser | tools | reasoning | splits | forced | tokens | round trip |"
    lines = [head, "|---|---|---:|---:|---:|---|---|---|", *map(_calls_row, calls)]
    others = ["| models | parser | reasoning | splits |", "|---|---|---:|---:|"]
    others += map(_thoughts_row, thoughts)
    return (
        f"# Formats of tool calls and reasoning\n\n{WRITTEN}\n{_INTRODUCTION}\n"
        + "\n".join(lines)
        + "\n\nThoughts of models that have them in a block before the answer:\n\n"
        + "\n".join(others)
        + f"\n\n{_ROUND_TRIPS}"
        + "\n".join(_rewritten())
        + "\n"
    )


def _names(form: AnyFormat, *, thoughts: bool) -> tuple[str, ...]:
    if thoughts and isinstance(form, ChannelFormat):
        return form.reasoning_names
    return form.names


def _rewritten() -> list[str]:
    """A table of what templates write otherwise."""
    lines = ["| template | same turns | compared | not shown, or otherwise |", "|---|---:|---|---|"]
    for hand in sorted(HANDS, key=lambda each: each.name.lower()):
        for name in hand.templates:
            same, tried = _round_trips(hand, name)
            reasons = dict.fromkeys(rewrite.why for rewrite in REWRITES.get(name, ()))
            compared = "ids" if hand.tokenizer else "texts"
            told = "; ".join(reasons) or "–"
            lines.append(f"| {name} | {same} of {tried} | {compared} | {told} |")
    return lines


def _round_trips(hand: Hand, template: str) -> tuple[int, int]:
    """Number of its model's turns that are shown the same again, and number of turns tried."""
    tried = [name for name, turn in TURNS.items() if hand.tries(turn)]
    changed = {turn for rewrite in REWRITES.get(template, ()) for turn in rewrite.turns}
    return sum(name not in changed for name in tried), len(tried)


def _of(form: AnyFormat, *, thoughts: bool) -> list[FormatCases]:
    names = _names(form, thoughts=thoughts)
    return [each for each in ALL if (each.thoughts if thoughts else each.tools) in names]


def _calls_row(form: CallFormat | ChannelFormat) -> str:
    families = _of(form, thoughts=False)
    cases = [case for family in families for case in family.cases]
    own = isinstance(form, ChannelFormat) or bool(form.written)
    templates = sorted(
        {name for family in families for name in (*family.templates, *family.called)}
    )
    trips = {name: _round_trips(hand, name) for hand in HANDS for name in hand.templates}
    shown = [
        "{} ({} of {})".format(name, *trips[name]) if name in trips else name for name in templates
    ]
    columns = (
        form.models,
        ", ".join(f"`{name}`" for name in form.names),
        sum(bool(case.calls) for case in cases) or "–",
        sum(bool(case.thought) for case in cases) or "–",
        len(cases) or "–",
        "own" if own else "JSON",
        "yes" if form.tokens else "–",
        ", ".join(shown) or "–",
    )
    return "| " + " | ".join(map(str, columns)) + " |"


def _thoughts_row(form: AnyFormat) -> str:
    cases = [case for family in _of(form, thoughts=True) for case in family.cases]
    names = ", ".join(f"`{name}`" for name in _names(form, thoughts=True))
    thought = sum(bool(case.thought) for case in cases)
    return f"| {form.models} | {names} | {thought or '–'} | {len(cases) or '–'} |"
