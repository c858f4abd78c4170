"""Conversations as OpenAI's SDK asks for them."""

from __future__ import annotations

from typing import Any

import httpx
import openai
from openai.types.conversations import ConversationItem
from pydantic import TypeAdapter

from tests.gateway.batches.storing import Storing

URL = "/v1/conversations"
ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)


def client(gateway: Storing, secret: str = "none") -> openai.AsyncOpenAI:
    transport = httpx.ASGITransport(gateway.app)
    return openai.AsyncOpenAI(
        base_url="http://gateway/v1",
        api_key=secret,
        max_retries=0,
        http_client=httpx.AsyncClient(transport=transport),
        _strict_response_validation=True,
    )


def said(text: str, role: str = "user") -> Any:
    return {"role": role, "content": text}


def last_prompt(gateway: Storing) -> str:
    return bytes(gateway.engine.submitted[-1][0]).decode()


async def texts(sdk: openai.AsyncOpenAI, id: str, **asked: Any) -> list[str]:
    """Texts of all items, from the first on."""
    items = [each async for each in sdk.conversations.items.list(id, order="asc", **asked)]
    return [each.content[0].text for each in items if each.type == "message"]
