"""OpenAI's Agents SDK over chat completions and responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agents import (
    Agent,
    AsyncOpenAI,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from loop import MODEL, NEXT, QUESTION, URL, Advice, Told, rules
from openai.types.shared import Reasoning
from report import run

set_tracing_disabled(True)


def loop(feature: str) -> Callable[[], Any]:
    return lambda: asyncio.run(looped(feature))


async def looped(feature: str) -> Any:
    told = Told()
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
    kind = OpenAIResponsesModel if "responses" in feature else OpenAIChatCompletionsModel
    agent = Agent(
        name="dresser",
        instructions=rules(feature),
        model=kind(model=MODEL, openai_client=client),
        model_settings=ModelSettings(reasoning=Reasoning(summary="auto")),
        tools=[function_tool(told.get_weather)],
        output_type=Advice if "structured" in feature else None,
    )
    if "streamed" in feature:
        result: Any = Runner.run_streamed(agent, QUESTION)
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                told.deltas += event.data.type == "response.output_text.delta"
    else:
        result = await Runner.run(agent, QUESTION)
    for item in result.new_items:
        if item.type == "reasoning_item":
            told.thoughts.append("".join(part.text for part in item.raw_item.summary))
    if "structured" in feature:
        return told.with_answers(result.final_output, None)
    history = [*result.to_input_list(), {"role": "user", "content": NEXT}]
    after = await Runner.run(agent, history)
    return told.with_answers(result.final_output, after.final_output)


FEATURES = (
    "chat",
    "chat_streamed",
    "chat_structured",
    "responses",
    "responses_streamed",
    "responses_structured",
)
run({feature: loop(feature) for feature in FEATURES})
