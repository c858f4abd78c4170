"""OpenAI's SDK, in the version that the other clients here build upon."""

from __future__ import annotations

from typing import Any

import openai
from pydantic import BaseModel
from report import CAPITAL, MAX_TOKENS, TEXTS, WEATHER, arguments, run

URL, MODEL, POOLING_URL = arguments()
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", timeout=240, max_retries=0)
TOOLS: Any = [{"type": "function", "function": WEATHER}]


def chat() -> Any:
    reply = client.chat.completions.create(
        model=MODEL, messages=CAPITAL, temperature=0, max_tokens=MAX_TOKENS
    )
    return reply.choices[0].message.content


def stream() -> Any:
    texts = []
    usage = None
    for chunk in client.chat.completions.create(
        model=MODEL,
        messages=CAPITAL,
        temperature=0,
        max_tokens=MAX_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    ):
        texts += [choice.delta.content or "" for choice in chunk.choices]
        usage = chunk.usage or usage
    return {"texts": texts, "completion_tokens": usage.completion_tokens}


def tools() -> Any:
    """One call that must be made, then its result is told."""
    reply = client.chat.completions.create(
        model=MODEL,
        messages=CAPITAL,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        temperature=0,
        max_tokens=64,
    )
    call = reply.choices[0].message.tool_calls[0]
    after = client.chat.completions.create(
        model=MODEL,
        messages=[
            *CAPITAL,
            reply.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "Sunny."},
        ],
        tools=TOOLS,
        tool_choice="none",
        temperature=0,
        max_tokens=4,
    )
    return {
        "name": call.function.name,
        "arguments": call.function.arguments,
        "id": call.id,
        "after": after.choices[0].message.content,
    }


def streamed_tools() -> Any:
    parts, ids = "", []
    for chunk in client.chat.completions.create(
        model=MODEL,
        messages=CAPITAL,
        tools=TOOLS,
        tool_choice="required",
        temperature=0,
        max_tokens=64,
        stream=True,
    ):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or ():
                ids += [call.id] if call.id else []
                parts += call.function.arguments or "" if call.index == 0 else ""
    return {"arguments": parts, "ids": ids}


class Capital(BaseModel):
    city: str
    population: int


def parse() -> Any:
    reply = client.chat.completions.parse(
        model=MODEL,
        messages=CAPITAL,
        response_format=Capital,
        temperature=0,
        max_tokens=200,
        extra_body={"stop": ["\n\n\n"]},
    )
    message = reply.choices[0].message
    finish = reply.choices[0].finish_reason
    return {"parsed": message.parsed.model_dump() if message.parsed else None, "finish": finish}


def embeddings() -> Any:
    pooling = openai.OpenAI(base_url=f"{POOLING_URL}/v1", api_key="unused", max_retries=0)
    name = pooling.models.list().data[0].id
    reply = pooling.embeddings.create(model=name, input=TEXTS)
    return [item.embedding for item in reply.data]


def models() -> Any:
    return [model.id for model in client.models.list()]


run(
    {
        "chat": chat,
        "stream": stream,
        "models": models,
        "tools": tools,
        "streamed_tools": streamed_tools,
        "parse": parse,
        "embeddings": embeddings,
    }
)
