"""LlamaIndex's agents over its client of servers like OpenAI's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from loop import MODEL, NEXT, QUESTION, URL, Advice, Told, rules
from report import run


def loop(feature: str) -> Callable[[], Any]:
    return lambda: asyncio.run(looped(feature))


async def looped(feature: str) -> Any:
    told = Told()
    llm = OpenAILike(
        model=MODEL,
        api_base=f"{URL}/v1",
        api_key="unused",
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
    )
    agent = FunctionAgent(
        tools=[FunctionTool.from_defaults(told.get_weather)],
        llm=llm,
        system_prompt=rules(feature),
        streaming="streamed" in feature,
        output_cls=Advice if "structured" in feature else None,
    )
    memory = ChatMemoryBuffer.from_defaults(token_limit=100_000)
    running = agent.run(QUESTION, memory=memory)
    async for event in running.stream_events():
        if isinstance(event, AgentStream):
            told.deltas += bool(event.delta)
    result = await running
    if "structured" in feature:
        return told.with_answers(result.get_pydantic_model(Advice), None)
    after = await agent.run(NEXT, memory=memory)
    return told.with_answers(result.response.content, after.response.content)


FEATURES = ("chat", "chat_streamed", "chat_structured")
run({feature: loop(feature) for feature in FEATURES})
