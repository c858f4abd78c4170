"""Whatever a client sends: 200, or 4xx with the error object. Never a 5xx."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from penstock_gateway.http.operations import OperationRoute
from tests.gateway.fake_engine import FakeEngineClient
from tests.met import met
from tests.thinning import part

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
OPERATIONS = [
    route.operation
    for route in create_app(FakeEngineClient(), GatewayConfig()).routes  # type: ignore[arg-type]
    if isinstance(route, OperationRoute) and route.operation.body is not None
]
BODIES = {operation.path: operation.body for operation in OPERATIONS}
SHAPES = {operation.path: operation.errors_as.reply for operation in OPERATIONS}
"""Shapes of errors, by path."""
ANY_FIELDS = ("messages", "prompt", "model")
"""Some fields of a path whose bodies are those of others."""
FIELDS = {path: getattr(body, "__struct_fields__", ANY_FIELDS) for path, body in BODIES.items()}
VALID: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    TEXT: {"prompt": "Hi"},
    "/invocations": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
    "/api/chat": {"messages": [{"role": "user", "content": "Hi"}]},
    "/api/generate": {"prompt": "Hi"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2]},
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64, -(2**63), 10**400])
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["\ud800", "\udc00x", "\x00", "user", "none", "auto", "text"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.fixed_dictionaries({"role": inner, "content": inner})
        | st.fixed_dictionaries({"type": inner, "text": inner})
    ),
    max_leaves=8,
)


def post(url: str, body: bytes) -> httpx.Response:
    async def go() -> httpx.Response:
        app = create_app(FakeEngineClient(), GatewayConfig())  # type: ignore[arg-type]
        # Errors of the application are errors of the test.
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://g") as client:
            return await client.post(url, content=body)

    return asyncio.run(go())


def check(response: httpx.Response) -> None:
    assert response.headers["x-request-id"]
    if response.status_code == 200:
        return
    assert 400 <= response.status_code < 500, response.text
    told = response.json()
    again = msgspec.convert(told, SHAPES[response.request.url.path])
    assert msgspec.to_builtins(again) == told
    error = told["error"]
    message = error if isinstance(error, str) else error["message"]
    assert 0 < len(message) < 4000


quick = settings(
    max_examples=part(100, 1 / 3), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@quick
@given(url=st.sampled_from(sorted(BODIES)), data=st.data())
def test_any_values(url: str, data: st.DataObject) -> None:
    names = st.sampled_from(FIELDS[url]) | st.text(max_size=6)
    fields = data.draw(st.dictionaries(names, values, max_size=4))
    response = post(url, json.dumps({**VALID.get(url, {}), **fields}).encode())
    met("refused", response.status_code >= 400)
    check(response)


@quick
@given(url=st.sampled_from([CHAT, TEXT]), body=st.binary(max_size=200))
@example(url=CHAT, body=b"")
@example(url=CHAT, body=b"null")
@example(url=CHAT, body=b"[" * 100_000)
@example(url=CHAT, body=b'{"tools":' * 50_000)
@example(url=TEXT, body=b'{"prompt":' + b"[" * 100_000)
@example(url=CHAT, body=b'{"metadata":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001)
@example(url=CHAT, body=b'{"tools":' + b"[" * 900 + b"]" * 900 + b',"messages":[]}')
@example(url=TEXT, body=b'{"prompt":"x","temperature":NaN}')
@example(url=TEXT, body=b'{"prompt":"x","seed":' + b"9" * 20_000 + b"}")
@example(url=TEXT, body=b'{"prompt":"x","temperature":1' + b"0" * 400 + b"}")
@example(url=TEXT, body=b'{"prompt":"\\ud800"}')
@example(url=TEXT, body=b'{"prompt":"\\udc00\\ud800"}')
@example(url=TEXT, body=b'{"prompt":"\xff\xfe"}')
@example(url=TEXT, body='{"prompt":"x"}'.encode("utf-16"))
@example(url=TEXT, body=b'\xef\xbb\xbf{"prompt":"x"}')
@example(url=TEXT, body=b'{"prompt":"x"} trailing')
@example(url=TEXT, body=b'{"prompt":"x","' + b"y" * 100_000 + b'":1}')
@example(url=TEXT, body=b'{"prompt":"x","logit_bias":{"' + b"y" * 100_000 + b'":1}}')
@example(url=CHAT, body=b'{"messages":[{"role":"' + b"r" * 100_000 + b'","content":"x"}]}')
@example(url=CHAT, body=b'{"messages":[{"role":"user","content":"x"}],"model":"\\u0000"}')
@example(
    url=CHAT,
    body=b'{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"self":1}}',
)
def test_any_bytes(url: str, body: bytes) -> None:
    response = post(url, body)
    met("answered", response.status_code == 200)
    met("refused", response.status_code >= 400)
    check(response)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b"{", "truncated"),
        (b'{"prompt":"\\ud800x"}', "matching surrogate"),
        (b'{"prompt":"x","temperature":NaN}', "invalid character"),
        (b'{"prompt":"\xff"}', "UTF-8"),
        (b'{"moderation":' + b"[" * 50_000, "nested too deeply"),
        (b'"x"', "expected object, got str"),
        (b'{"prompt":[' + b"1," * 600_000 + b"1]}", "at most 524288 are allowed"),
    ],
)
def test_a_body_that_is_no_json_object_is_an_error_that_says_why(body: bytes, says: str) -> None:
    response = post(TEXT, body)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]


async def test_a_byte_order_mark_is_skipped() -> None:
    """Files of Windows' editors begin with one, and curl sends files as they are."""
    app = create_app(FakeEngineClient(), GatewayConfig())  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        for path in (CHAT, TEXT, "/v1/responses", "/v1/messages", "/api/chat", "/tokenize"):
            body = b"\xef\xbb\xbf" + json.dumps(VALID[path]).encode()
            answer = await http.post(path, content=body)
            assert answer.status_code == 200, answer.text
            refused = await http.post(path, content=b"\xef\xbb\xbf" + body)
            assert refused.status_code == 400
