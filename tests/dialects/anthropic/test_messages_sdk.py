"""/v1/messages with Anthropic's own SDK."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import pytest

from penstock.config.settings import GatewayConfig
from tests.dialects.anthropic.asking import ANSWER, HERMES, said, user
from tests.gateway.fake_engine import CONTEXT, MODEL, FakeEngineClient
from tests.gateway.live_gateway import LiveGateway

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    with LiveGateway(FakeEngineClient()) as running:
        yield running


@pytest.fixture
def sdk(gateway: LiveGateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=gateway.url,
        api_key="none",
        max_retries=0,
        _strict_response_validation=True,
    ) as client:
        yield client


def test_the_sdk(sdk: anthropic.Anthropic) -> None:
    reply = sdk.messages.create(model=MODEL, max_tokens=64, messages=[user("Hi")])
    assert reply.content[0].text == ANSWER
    # What came back can be sent back.
    history = [user("Hi"), {"role": "assistant", "content": reply.content}, user("More")]
    assert sdk.messages.create(model=MODEL, max_tokens=64, messages=history).content
    with sdk.messages.stream(model=MODEL, max_tokens=64, messages=[user("Hi")]) as stream:
        assert "".join(stream.text_stream) == ANSWER
        assert stream.get_final_message().usage == reply.usage
    count = sdk.messages.count_tokens(model=MODEL, messages=[user("Hi")])
    assert count.input_tokens == reply.usage.input_tokens
    with pytest.raises(anthropic.NotFoundError) as missing:
        sdk.messages.create(model="claude", max_tokens=64, messages=[user("Hi")])
    assert missing.value.type == "not_found_error"
    assert missing.value.request_id


def test_the_sdks_models(sdk: anthropic.Anthropic) -> None:
    listed = list(sdk.models.list())
    assert [each.id for each in listed] == [MODEL]
    assert (listed[0].type, listed[0].max_input_tokens) == ("model", CONTEXT)
    assert sdk.models.retrieve(MODEL) == listed[0]
    assert list(sdk.models.list(limit=1)) == listed
    with pytest.raises(anthropic.NotFoundError) as missing:
        sdk.models.retrieve("claude")
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError, match="after_id"):
        sdk.models.list(after_id="claude")
    with pytest.raises(anthropic.BadRequestError, match=r"limit is .*\[1, 1000\]"):
        sdk.models.list(limit=0)


def test_the_sdks_loop_over_tools_sends_the_whole_conversation() -> None:
    """It asks for a thread at first, which would answer the second turn without the first one."""
    engine = FakeEngineClient()
    config = GatewayConfig(
        enable_auto_tool_choice=True, tool_call_parser="hermes", unknown_fields="ignore"
    )

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Weather of a city."""
        engine.script = said("It rains.")
        return f"Rain in {city}."

    engine.script = said(HERMES)
    with (
        LiveGateway(engine, config) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as client,
    ):
        runner = client.beta.messages.tool_runner(
            model=MODEL, max_tokens=64, messages=[user("Hi")], tools=[get_weather]
        )
        last = runner.until_done()
    assert [block.text for block in last.content] == ["It rains."]
    seen, _ = engine.template.calls[-1]
    assert [message["role"] for message in seen] == ["user", "assistant", "tool"]
    assert seen[2]["content"] == "Rain in Zürich 👋."
