"""What a chat template is given is packed once, and means what it meant."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.errors import InvalidRequest
from penstock.text.as_written import PackedMessages, SentArguments
from penstock.text.template import ChatTemplate
from penstock_gateway.chat.prompt import packed
from tests.gateway.heartbeat.engines import model_text

MESSAGES = [{"role": "user", "content": "Hi \u4e2d"}, {"role": "assistant", "content": "Yes"}]
DOCUMENTS = [{"title": "a", "text": "b"}]


@pytest.mark.parametrize("x", [7, 2**70, "<x>", None], ids=["small", "large", "text", "nothing"])
async def test_it_is_filled_in_as_it_was(x: Any) -> None:
    given = {"messages": MESSAGES, "documents": DOCUMENTS, "x": x}
    sent, size = packed(given, 1000)
    template = model_text().template
    assert template is not None
    assert (await template.rendered(**sent)).text == template.render(**given)
    assert size == sum(map(len, map(written, given.values())))


async def test_calls_keep_what_the_model_wrote() -> None:
    arguments = SentArguments({"x": 1e5}, '{"x":  1e5}')
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    sent, _ = packed({"messages": messages}, 1000)
    shows = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    template = ChatTemplate(shows, model_text().tokenizer)
    assert (await template.rendered(**sent)).text == '{"x":  1e5}'


def written(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:
        return msgspec.json.encode(value)


def test_nothing_is_packed_again_that_was_packed_to_be_measured() -> None:
    sent, _ = packed({"messages": MESSAGES, "documents": DOCUMENTS}, 1000)
    assert isinstance(sent["documents"], msgspec.Raw)
    assert isinstance(sent["messages"], PackedMessages)
    assert msgspec.msgpack.decode(sent["messages"].packed) == MESSAGES


def test_too_much_is_refused_by_the_name_of_the_largest() -> None:
    with pytest.raises(InvalidRequest, match=r"of them in chat_template_kwargs\.x; at most 6400"):
        packed({"messages": MESSAGES, "x": "a" * 10_000}, 100)


def test_what_cannot_be_packed_is_left_to_whoever_sends_it() -> None:
    given = {"messages": [{"role": "user", "content": "\ud800"}], "x": 1}
    sent, _ = packed(given, 1000)
    assert sent == given
