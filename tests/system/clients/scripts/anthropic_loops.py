"""Anthropic's SDK: its tool runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
from anthropic import beta_tool
from loop import MODEL, NEXT, QUESTION, URL, Advice, Told, rules
from report import run


def loop(feature: str) -> Callable[[], Any]:
    def looped() -> Any:
        told = Told()
        client = anthropic.Anthropic(base_url=URL, api_key="unused", max_retries=0)
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        common: dict[str, Any] = {"model": MODEL, "max_tokens": 1000, "system": rules(feature)}
        form = {"output_format": Advice} if "structured" in feature else {}
        runner: Any = client.beta.messages.tool_runner(
            messages=[*messages],
            tools=[beta_tool(told.get_weather)],
            stream="streamed" in feature,
            **common,
            **form,
        )
        for turn in runner:
            if "streamed" in feature:
                for event in turn:
                    told.deltas += event.type == "text"
                message = turn.get_final_message()
            else:
                message = turn
            told.thoughts += [each.thinking for each in message.content if each.type == "thinking"]
            messages.append({"role": "assistant", "content": message.content})
            if (results := runner.generate_tool_call_response()) is not None:
                messages.append(results)
        if form:
            return told.with_answers(message.parsed_output, None)
        said = message.content[-1].text
        history = [*messages, {"role": "user", "content": NEXT}]
        after = client.beta.messages.create(messages=history, **common)
        return told.with_answers(said, after.content[-1].text)

    return looped


FEATURES = ("messages", "messages_streamed", "messages_structured")
run({feature: loop(feature) for feature in FEATURES})
