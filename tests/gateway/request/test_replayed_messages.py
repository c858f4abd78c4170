"""Messages and tools as other servers and their clients write them: what is unknown is skipped."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.fake_engine import FakeEngineClient

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
EXTRA = {
    "cache_control": {"type": "ephemeral"},
    "reasoning_details": [{"type": "reasoning.text", "text": "x"}],
    "provider_specific_fields": {"a": 1},
}
MARK = {"extra": "here"}
"""Stands for EXTRA in the bodies below."""
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}, **MARK}
CALL = {"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "s", **MARK}], **MARK},
            {"role": "user", "content": "u", **MARK},
            {"role": "assistant", "content": None, "tool_calls": [{**CALL, **MARK}], **MARK},
            {"role": "tool", "tool_call_id": "c", "content": "t", **MARK},
        ],
        "tools": [{"type": "function", "function": FUNCTION, **MARK}],
    },
    RESPONSES: {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "u", **MARK}], **MARK},
            {"type": "reasoning", "id": "r", "summary": [], **MARK},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **MARK},
            {"type": "function_call_output", "call_id": "c", "output": "t", **MARK},
        ],
        "tools": [{"type": "function", **FUNCTION}],
    },
    "/tokenize": {"messages": [{"role": "user", "content": "u", **MARK}]},
}


def filled(value: Any, extra: dict[str, Any]) -> Any:
    """The body with `extra` in each marked place."""
    if isinstance(value, list):
        return [filled(item, extra) for item in value]
    if not isinstance(value, dict):
        return value
    rest = {key: filled(item, extra) for key, item in value.items() if key not in MARK}
    return rest | (extra if "extra" in value else {})


@pytest.mark.parametrize("url", BODIES)
async def test_extra_fields_change_nothing(
    http: httpx.AsyncClient, engine: FakeEngineClient, url: str
) -> None:
    for extra in ({}, EXTRA):
        response = await http.post(url, json=filled(BODIES[url], extra))
        assert response.status_code == 200, response.text
    one, other = engine.template.calls
    assert one == other
    if engine.submitted:
        (prompt, params, _), (prompt_too, params_too, _) = engine.submitted
        assert (prompt, params) == (prompt_too, params_too)


@pytest.mark.parametrize("url", [CHAT, RESPONSES])
async def test_beside_them_unknown_fields_are_errors(http: httpx.AsyncClient, url: str) -> None:
    response = await http.post(url, json=filled(BODIES[url], {}) | {"cache_control": {}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "cache_control"
