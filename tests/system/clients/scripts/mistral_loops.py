"""Mistral's SDK: a loop over its chat."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from loop import MODEL, NEXT, QUESTION, TOOL, URL, Advice, Told, rules
from mistralai.client import Mistral
from report import run


def loop(feature: str) -> Callable[[], Any]:
    def looped() -> Any:
        told = Told()
        client = Mistral(api_key="unused", server_url=URL)
        structured = "structured" in feature
        schema = {"name": "advice", "schema": Advice.model_json_schema(), "strict": True}
        form = {"type": "json_schema", "json_schema": schema} if structured else None
        messages: list[Any] = [
            {"role": "system", "content": rules(feature)},
            {"role": "user", "content": QUESTION},
        ]

        def ask() -> tuple[str, list[Any]]:
            common: Any = {"model": MODEL, "messages": messages, "tools": [TOOL]}
            if "streamed" not in feature:
                message = client.chat.complete(**common, response_format=form).choices[0].message
                return message.content or "", message.tool_calls or []
            words, calls = "", []
            for event in client.chat.stream(**common):
                delta = event.data.choices[0].delta
                words += delta.content or ""
                calls += delta.tool_calls or []
                told.deltas += bool(delta.content)
            return words, calls

        words, calls = ask()
        while calls:
            messages.append({"role": "assistant", "content": words, "tool_calls": calls})
            for call in calls:
                name, arguments = call.function.name, json.loads(call.function.arguments)
                result = {"content": told.get_weather(**arguments), "tool_call_id": call.id}
                messages.append({"role": "tool", "name": name, **result})
            words, calls = ask()
        if form:
            return told.with_answers(Advice.model_validate_json(words), None)
        messages.extend(
            [{"role": "assistant", "content": words}, {"role": "user", "content": NEXT}]
        )
        return told.with_answers(words, ask()[0])

    return looped


FEATURES = ("chat", "chat_streamed", "chat_structured")
run({feature: loop(feature) for feature in FEATURES})
