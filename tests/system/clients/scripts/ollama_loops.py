"""Ollama's SDK: a loop over its chat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ollama
from loop import MODEL, NEXT, QUESTION, URL, Advice, Told, rules
from report import run


def loop(feature: str) -> Callable[[], Any]:
    def looped() -> Any:
        told = Told()
        client = ollama.Client(host=URL)
        form = Advice.model_json_schema() if "structured" in feature else None
        messages: list[Any] = [
            {"role": "system", "content": rules(feature)},
            {"role": "user", "content": QUESTION},
        ]

        def ask() -> Any:
            common: Any = {"model": MODEL, "messages": messages, "tools": [told.get_weather]}
            if "streamed" not in feature:
                return client.chat(**common, format=form).message
            whole = ollama.Message(role="assistant", content="", thinking="", tool_calls=[])
            for part in client.chat(**common, stream=True):
                whole.content += part.message.content or ""
                whole.thinking += part.message.thinking or ""
                whole.tool_calls += part.message.tool_calls or []
                told.deltas += bool(part.message.content)
            return whole

        while (message := ask()).tool_calls:
            told.thoughts.append(message.thinking)
            messages.append(message)
            for call in message.tool_calls:
                result = told.get_weather(**call.function.arguments)
                name = call.function.name
                messages.append({"role": "tool", "content": result, "tool_name": name})
        told.thoughts.append(message.thinking)
        if form:
            return told.with_answers(Advice.model_validate_json(message.content), None)
        messages += [message, {"role": "user", "content": NEXT}]
        return told.with_answers(message.content, ask().content)

    return looped


FEATURES = ("chat", "chat_streamed", "chat_structured")
run({feature: loop(feature) for feature in FEATURES})
