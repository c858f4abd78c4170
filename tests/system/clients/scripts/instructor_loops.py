"""Instructor: parallel calls as Pydantic objects, then an answer as one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import instructor
import openai
from loop import MODEL, QUESTION, URL, Advice, Told, rules
from pydantic import BaseModel
from report import run


class get_weather(BaseModel):
    """The weather in a city."""

    city: str


def loop(feature: str) -> Callable[[], Any]:
    def looped() -> Any:
        told = Told()
        plain = openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
        asking = instructor.from_openai(plain, mode=instructor.Mode.PARALLEL_TOOLS)
        messages: list[Any] = [
            {"role": "system", "content": rules(feature)},
            {"role": "user", "content": QUESTION},
        ]
        while len(told.calls) < 3:
            found = asking.chat.completions.create(
                model=MODEL, messages=messages, response_model=Iterable[get_weather], max_retries=0
            )
            cities = [each.city for each in found]
            functions = [
                {"name": "get_weather", "arguments": json.dumps({"city": city})} for city in cities
            ]
            calls = [
                {"id": f"call_{city}", "type": "function", "function": function}
                for city, function in zip(cities, functions, strict=True)
            ]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
            for city in cities:
                result = told.get_weather(city)
                messages.append({"role": "tool", "tool_call_id": f"call_{city}", "content": result})
        mode = instructor.Mode.TOOLS if "by_tool" in feature else instructor.Mode.JSON_SCHEMA
        client = instructor.from_openai(plain, mode=mode)
        common: Any = {"model": MODEL, "messages": messages, "max_retries": 0}
        if "streamed" in feature:
            parts = list(client.chat.completions.create_partial(response_model=Advice, **common))
            said, told.deltas = parts[-1], len(parts)
        else:
            said = client.chat.completions.create(response_model=Advice, **common)
        return told.with_answers(said, None)

    return looped


FEATURES = [f"structured{how}{way}" for how in ("", "_by_tool") for way in ("", "_streamed")]
run({feature: loop(feature) for feature in FEATURES})
