"""LangChain's agents over its OpenAI integration: chat completions and responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from loop import MODEL, NEXT, QUESTION, URL, Advice, Told, rules
from report import run


def loop(feature: str) -> Callable[[], Any]:
    def looped() -> Any:
        told = Told()
        thinking: Any = {"reasoning": {"summary": "auto"}} if "responses" in feature else {}
        model = ChatOpenAI(
            base_url=f"{URL}/v1",
            api_key="unused",
            model=MODEL,
            max_retries=0,
            use_responses_api="responses" in feature,
            **thinking,
        )
        agent = create_agent(
            model,
            [tool(told.get_weather)],
            system_prompt=rules(feature),
            response_format=ProviderStrategy(Advice) if "structured" in feature else None,
        )
        asked: Any = {"messages": [{"role": "user", "content": QUESTION}]}
        if "streamed" in feature:
            for kind, part in agent.stream(asked, stream_mode=["messages", "values"]):
                if kind == "values":
                    state = part
                elif isinstance(part[0], AIMessageChunk) and part[0].text:
                    told.deltas += 1
        else:
            state = agent.invoke(asked)
        answers = [each for each in state["messages"] if isinstance(each, AIMessage)]
        told.thoughts = [
            block["reasoning"]
            for each in answers
            for block in each.content_blocks
            if block["type"] == "reasoning"
        ]
        said = state.get("structured_response", answers[-1].text)
        messages = [*state["messages"], {"role": "user", "content": NEXT}]
        if "structured" in feature:
            return told.with_answers(said, None)
        return told.with_answers(said, agent.invoke({"messages": messages})["messages"][-1].text)

    return looped


FEATURES = (
    "chat",
    "chat_streamed",
    "chat_structured",
    "responses",
    "responses_streamed",
    "responses_structured",
)
run({feature: loop(feature) for feature in FEATURES})
