"""Instructor: answers as Pydantic objects, by a JSON schema and by a tool call."""

from __future__ import annotations

from typing import Any

import instructor
import openai
from pydantic import BaseModel, Field
from report import CAPITAL, arguments, run

URL, MODEL, _ = arguments()


class Capital(BaseModel):
    """A capital and its country."""

    city: str = Field(max_length=20)
    country: str = Field(max_length=20)


def ask(mode: instructor.Mode) -> Any:
    plain = openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", timeout=240, max_retries=0)
    client = instructor.from_openai(plain, mode=mode)
    got = client.chat.completions.create(
        model=MODEL,
        messages=list(CAPITAL),
        response_model=Capital,
        temperature=0,
        max_tokens=100,
        max_retries=0,
    )
    return got.model_dump()


run(
    {
        "json_schema": lambda: ask(instructor.Mode.JSON_SCHEMA),
        "tools": lambda: ask(instructor.Mode.TOOLS),
    }
)
