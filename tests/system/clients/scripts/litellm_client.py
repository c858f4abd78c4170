"""LiteLLM, which other programs use to speak to any provider: `openai/` and `hosted_vllm/`."""

from __future__ import annotations

import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # It would fetch a price list.

import litellm
from report import CAPITAL, MAX_TOKENS, TEXTS, WEATHER, arguments, run

URL, MODEL, POOLING_URL = arguments()
litellm.telemetry = False
COMMON: dict[str, Any] = {
    "api_base": f"{URL}/v1",
    "api_key": "unused",
    "messages": CAPITAL,
    "temperature": 0,
    "max_tokens": MAX_TOKENS,
    "num_retries": 0,
}


def chat() -> Any:
    return litellm.completion(model=f"openai/{MODEL}", **COMMON).choices[0].message.content


def as_vllm() -> Any:
    """An answer by its provider for vLLM servers, with fields that only those know."""
    reply = litellm.completion(model=f"hosted_vllm/{MODEL}", top_k=1, **COMMON)
    return reply.choices[0].message.content


def stream() -> Any:
    chunks = litellm.completion(model=f"openai/{MODEL}", stream=True, **COMMON)
    return {"texts": [chunk.choices[0].delta.content or "" for chunk in chunks]}


def tools() -> Any:
    reply = litellm.completion(
        model=f"openai/{MODEL}",
        tools=[{"type": "function", "function": WEATHER}],
        tool_choice="required",
        **{**COMMON, "max_tokens": 64},
    )
    call = reply.choices[0].message.tool_calls[0]
    return {"name": call.function.name, "arguments": call.function.arguments}


def embeddings() -> Any:
    reply = litellm.embedding(
        model=f"hosted_vllm/{os.environ['POOLING_MODEL']}",
        api_base=f"{POOLING_URL}/v1",
        api_key="unused",
        input=TEXTS,
    )
    return [item["embedding"] for item in reply.data]


run({"chat": chat, "as_vllm": as_vllm, "stream": stream, "tools": tools, "embeddings": embeddings})
