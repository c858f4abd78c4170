"""The reference's page about formats of tool calls and reasoning."""

from __future__ import annotations

from penstock.parsing.format import AnyFormat, CallFormat, ChannelFormat, ThoughtFormat
from penstock.parsing.formats import FORMATS
from tests.reference.pages import WRITTEN

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


def formats_page() -> str:
    """A table of calls, and one of thoughts."""
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
        + "\n"
    )


def _names(form: AnyFormat, *, thoughts: bool) -> tuple[str, ...]:
    if thoughts and isinstance(form, ChannelFormat):
        return form.reasoning_names
    return form.names


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
