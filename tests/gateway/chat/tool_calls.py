"""Chat requests with tools, and the choice of their replies."""

from __future__ import annotations

from typing import Any

import httpx

from tests.gateway import sse

URL = "/v1/chat/completions"
HERMES = "<tool_call>name"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}},
            "required": ["city"],
            "$defs": {"city": {"type": "string"}},
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}], "tools": [WEATHER, NOW], **fields}


def allow(*names: str, mode: str = "auto", type: str = "function") -> dict[str, Any]:
    tools = [{"type": type, "function": {"name": name}} for name in names]
    return {
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
    }


async def choice_of(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post(URL, json=body(**fields))
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


async def streamed_choice(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """A choice put together from its chunks, each part as OpenAI's SDK adds it up."""
    response = await http.post(URL, json=body(stream=True, **fields))
    assert response.status_code == 200, response.text
    message: dict[str, Any] = {"content": None}
    calls: list[dict[str, Any]] = []
    reason = None
    for chunk in sse.parse(response.text):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            reason = choice["finish_reason"] or reason
            for field in ("content", "reasoning", "reasoning_content"):
                if delta.get(field):
                    message[field] = (message.get(field) or "") + delta[field]
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(calls):
                    assert call["type"] == "function"
                    calls.append({"id": call["id"], "name": call["function"]["name"], "text": ""})
                else:
                    assert call["index"] == len(calls) - 1
                    assert "id" not in call
                    assert "name" not in call["function"]
                calls[-1]["text"] += call["function"].get("arguments", "")
    return {"message": message, "calls": calls, "finish_reason": reason}
