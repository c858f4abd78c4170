"""Pydantic AI over chat completions, responses and messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from loop import MODEL, NEXT, QUESTION, URL, Advice, Told, rules
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.messages import (
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from report import run


def model(feature: str) -> Model:
    if "messages" in feature:
        provider = AnthropicProvider(base_url=URL, api_key="unused")
        return AnthropicModel(MODEL, provider=provider)
    kind = OpenAIResponsesModel if "responses" in feature else OpenAIChatModel
    return kind(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="unused"))


def form(feature: str) -> Any:
    if "structured_by_tool" in feature:
        return ToolOutput(Advice)
    return NativeOutput(Advice) if "structured" in feature else str


def loop(feature: str) -> Callable[[], Any]:
    return lambda: asyncio.run(looped(feature))


async def looped(feature: str) -> Any:
    told = Told()
    agent: Agent[None, Any] = Agent(
        model(feature),
        instructions=rules(feature),
        tools=[told.get_weather],
        output_type=form(feature),
        model_settings={"openai_reasoning_summary": "auto"} if "responses" in feature else None,
    )

    async def see(_: Any, events: Any) -> None:
        async for event in events:
            match event:
                case PartDeltaEvent(delta=TextPartDelta()) | PartStartEvent(part=TextPart()):
                    told.deltas += 1

    streaming = see if "streamed" in feature else None
    result = await agent.run(QUESTION, event_stream_handler=streaming)
    told.thoughts = [
        part.content
        for message in result.all_messages()
        for part in message.parts
        if isinstance(part, ThinkingPart)
    ]
    if "structured" in feature:
        return told.with_answers(result.output, None)
    after = await agent.run(NEXT, message_history=result.all_messages())
    return told.with_answers(result.output, after.output)


FEATURES = [
    f"{api}{how}"
    for api in ("chat", "responses", "messages")
    for how in ("", "_streamed", "_structured", "_structured_by_tool")
]
# Of Anthropic's models it knows by their names which have it.
FEATURES.remove("messages_structured")
run({feature: loop(feature) for feature in FEATURES})
