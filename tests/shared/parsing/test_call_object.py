"""Tool calls as JSON objects, one by one."""

from __future__ import annotations

import pytest

from penstock.parsing.call_object import CallEntry, CallObject
from penstock.parsing.interface import CallArguments, CallBegin


@pytest.mark.parametrize("length", [1, 256, 257, 400])
@pytest.mark.parametrize("kind", ["object", "entry"])
def test_a_name_has_so_many_characters_at_most(kind: str, length: int) -> None:
    """Where any name may be called. What is longer is text."""
    name = "f" * length
    reader: CallObject | CallEntry
    if kind == "object":
        reader, text = CallObject(None, needs_arguments=True), f'{{"name": "{name}", "arguments": '
    else:
        reader, text = CallEntry(None), f'{{"{name}": '
    reader.push(text + "{}}")
    called = length <= 256
    assert (reader.begun, reader.broken) == (called, not called)
    events = reader.take()
    assert events[:1] == ([CallBegin(name)] if called else [])
    assert "".join(e.text for e in events if isinstance(e, CallArguments)) == "{}" * called
