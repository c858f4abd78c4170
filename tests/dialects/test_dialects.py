"""Errors of each API name its own fields, by its table: nothing is replaced in what clients say."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from penstock_dialects.anthropic.request import ANTHROPIC, MessagesRequest
from penstock_dialects.llamacpp.completion import LlamaCompletionRequest
from penstock_dialects.llamacpp.request import LLAMA
from penstock_dialects.ollama.request import (
    CHAT_NAMES,
    GENERATE_NAMES,
    OllamaChatRequest,
    OllamaGenerateRequest,
)
from penstock_gateway.request.dialect import NamedField
from penstock_gateway.responses.chat_translation import RESPONSES
from penstock_gateway.responses.request import ResponsesRequest
from tests.gateway.request.spoken import (
    Spoken,
    cases,
    check_sentences,
    id_of,
    names_fields_that_there_are,
    refusal,
    refuses_a_wrong_value,
    refuses_what_is_not_supported,
    says_its_names,
)

pytestmark = pytest.mark.timeout(300)

USER = [{"role": "user", "content": "hello"}]
SPOKEN = (
    Spoken("/v1/messages", {"messages": USER, "max_tokens": 4}, ANTHROPIC, MessagesRequest),
    Spoken("/api/chat", {"messages": USER, "stream": False}, CHAT_NAMES, OllamaChatRequest),
    Spoken(
        "/api/generate", {"prompt": "a", "stream": False}, GENERATE_NAMES, OllamaGenerateRequest
    ),
    Spoken("/v1/responses", {"input": "hello"}, RESPONSES, ResponsesRequest),
    Spoken("/completion", {"prompt": "a", "n_predict": 4}, LLAMA, LlamaCompletionRequest),
)


@pytest.mark.parametrize(("api", "field"), cases(SPOKEN, copied=True), ids=id_of)
async def test_a_wrong_value_is_told_by_the_name_that_the_body_has(
    http: httpx.AsyncClient, api: Spoken, field: NamedField
) -> None:
    await refuses_a_wrong_value(http, api, field)


@pytest.mark.parametrize(("api", "field"), cases(SPOKEN, copied=False), ids=id_of)
def test_each_name_of_the_table_is_said_and_values_stay(api: Spoken, field: NamedField) -> None:
    says_its_names(api, field)


def test_sentences_have_no_bare_name_that_an_api_renames() -> None:
    check_sentences(SPOKEN)


@pytest.mark.parametrize("api", SPOKEN, ids=id_of)
def test_tables_name_fields_that_there_are(api: Spoken) -> None:
    names_fields_that_there_are(api)


@pytest.mark.parametrize("api", SPOKEN, ids=id_of)
async def test_what_is_not_supported_is_refused_by_its_name(
    http: httpx.AsyncClient, api: Spoken
) -> None:
    await refuses_what_is_not_supported(http, api)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (
            "/v1/messages",
            {"messages": USER, "max_tokens": 4, "stop_sequences": [""]},
            "each stop_sequences string must have 1 to 1024 characters",
        ),
        (
            "/api/chat",
            {"messages": USER, "options": {"stop": [""]}},
            "each options.stop string must have 1 to 1024 characters",
        ),
        (
            "/v1/messages",
            {"messages": USER, "max_tokens": 4, "output_config": {"effort": "reasoning_effort"}},
            'output_config.effort is "reasoning_effort"; allowed: ',
        ),
        ("/api/chat", {"messages": USER, "think": "think"}, 'think is "think"; allowed: '),
        (
            "/v1/responses",
            {"input": "a", "reasoning": {"effort": "reasoning_effort, max_tokens"}},
            'reasoning.effort is "reasoning_effort, max_tokens"; allowed: ',
        ),
        (
            "/api/generate",
            {"prompt": "a", "images": ["", "%"]},
            "images[0]",
        ),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "messages[0].content", "images": ["%"]}]},
            "messages[0].images[0]",
        ),
    ],
)  # fmt: skip
async def test_sentences(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], said: str
) -> None:
    error = await refusal(http, path, body)
    assert error["message"].startswith(said), error["message"]
