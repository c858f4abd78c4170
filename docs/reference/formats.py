"""The reference's page about formats of tool calls and reasoning: what of each is tested."""

from __future__ import annotations

from docs.reference.pages import WRITTEN
from penstock.parsing.format import AnyFormat, CallFormat, ChannelFormat, ThoughtFormat
from penstock.parsing.formats import FORMATS
from tests.shared.formats.all_cases import ALL
from tests.shared.formats.case import FormatCases

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
| round trip | templates of releases: a call that the template writes is read back, the same |
"""


def formats_page() -> str:
    """A table of calls, and one of thoughts."""
    calls = [form for form in FORMATS if not isinstance(form, ThoughtFormat)]
    thoughts = [form for form in FORMATS if isinstance(form, ThoughtFormat)]
    head = "| models | parser | tools | reasoning | splits | forced | tokens | round trip |"
    lines = [head, "|---|---|---:|---:|---:|---|---|---|", *map(_calls_row, calls)]
    others = ["| models | parser | reasoning | splits |", "|---|---|---:|---:|"]
    others += map(_thoughts_row, thoughts)
    return (
        f"# Formats of tool calls and reasoning\n\n{WRITTEN}\n{_INTRODUCTION}\n"
        + "\n".join(lines)
        + "\n\nThoughts of models that have them in a block before the answer:\n\n"
        + "\n".join(others)
        + "\n"
    )


def _of(form: AnyFormat, *, thoughts: bool) -> list[FormatCases]:
    names = form.names
    return [each for each in ALL if (each.thoughts if thoughts else each.tools) in names]


def _calls_row(form: CallFormat | ChannelFormat) -> str:
    families = _of(form, thoughts=False)
    cases = [case for family in families for case in family.cases]
    own = isinstance(form, ChannelFormat) or bool(form.written)
    templates = sorted({name for family in families for name in family.templates})
    columns = (
        form.models,
        ", ".join(f"`{name}`" for name in form.names),
        sum(bool(case.calls) for case in cases) or "–",
        sum(bool(case.thought) for case in cases) or "–",
        len(cases) or "–",
        "own" if own else "JSON",
        "yes" if form.tokens else "–",
        ", ".join(templates) or "–",
    )
    return "| " + " | ".join(map(str, columns)) + " |"


def _thoughts_row(form: ThoughtFormat) -> str:
    cases = [case for family in _of(form, thoughts=True) for case in family.cases]
    names = ", ".join(f"`{name}`" for name in form.names)
    thought = sum(bool(case.thought) for case in cases)
    return f"| {form.models} | {names} | {thought or '–'} | {len(cases) or '–'} |"
