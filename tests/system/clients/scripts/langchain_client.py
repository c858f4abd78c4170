"""LangChain by its OpenAI integration."""

from __future__ import annotations

import os
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field
from report import CAPITAL, MAX_TOKENS, TEXTS, arguments, run

URL, MODEL, POOLING_URL = arguments()


def model(max_tokens: int = MAX_TOKENS) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{URL}/v1",
        api_key="unused",
        model=MODEL,
        temperature=0,
        max_tokens=max_tokens,
        max_retries=0,
    )


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}."


class Capital(BaseModel):
    """A capital and its country."""

    city: str = Field(max_length=20)
    country: str = Field(max_length=20)


def chat() -> Any:
    return model().invoke(CAPITAL).content


def stream() -> Any:
    return {"texts": [chunk.content for chunk in model().stream(CAPITAL)]}


def tools() -> Any:
    bound = model(64).bind_tools([get_weather], tool_choice="get_weather")
    asked = bound.invoke(CAPITAL)
    call = asked.tool_calls[0]
    answer = get_weather.invoke(call)
    after = model(4).invoke([*CAPITAL, asked, answer])
    return {"name": call["name"], "arguments": call["args"], "after": after.content}


def structured() -> Any:
    chain = model(100).with_structured_output(Capital, method="json_schema")
    return chain.invoke(CAPITAL).model_dump()


def embeddings() -> Any:
    embedder = OpenAIEmbeddings(
        base_url=f"{POOLING_URL}/v1",
        api_key="unused",
        model=os.environ["POOLING_MODEL"],
        check_embedding_ctx_length=False,  # Else it sends ids of OpenAI's own tokenizer.
    )
    return embedder.embed_documents(TEXTS)


run(
    {
        "chat": chat,
        "stream": stream,
        "tools": tools,
        "structured": structured,
        "embeddings": embeddings,
    }
)
