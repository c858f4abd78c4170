"""Prompts that an embedding model's files name, in front of texts: by sentence-transformers' and
TEI's `prompt_name`, Jina's `task`, and the `input_type` of NIM and Cohere."""

from __future__ import annotations

from typing import Protocol

from penstock.errors import InvalidRequest
from penstock.model.pooling_config import PoolingConfig
from penstock_gateway.pooling.endpoint import Call
from penstock_gateway.pooling.fields import InputField
from penstock_gateway.request.input_texts import named_prompt

ALIKE = (
    ("query", "search_query", "retrieval.query", "s2p_query"),
    ("document", "passage", "search_document", "retrieval.passage", "s2p_passage"),
    ("classification", "text-classification"),
    ("clustering", "separation"),
    ("text-matching", "similarity", "sts", "s2s"),
)
"""Names of the same purpose, of different APIs and models."""


class PromptFields(Protocol):
    """Fields that name a prompt."""

    @property
    def prompt_name(self) -> str | None: ...
    @property
    def task(self) -> str | None: ...
    @property
    def input_type(self) -> str | None: ...


def prompt_of(fields: PromptFields, call: Call) -> str:
    """The text that the request has put in front of its own; empty for none. A purpose for which
    the model has no prompt changes nothing. Raises InvalidRequest for a prompt_name that it lacks,
    and for two that differ."""
    pooling = call.engine.welcome.pooling
    if fields.prompt_name is not None:
        return named_prompt(fields.prompt_name, pooling)
    said = [each for each in (fields.task, fields.input_type) if each]
    found = {_of_purpose(each, pooling) for each in said}
    if len(found) > 1:
        raise InvalidRequest(
            "task and input_type ask for different prompts; send one of them", param="input_type"
        )
    return found.pop() if found else ""


def _of_purpose(name: str, pooling: PoolingConfig | None) -> str:
    prompts = dict(() if pooling is None else pooling.prompts)
    if name in prompts:
        return prompts[name]
    alike = next((names for names in ALIKE if name in names), ())
    return next((prompts[each] for each in alike if each in prompts), "")


def with_prompt(prompt: str, value: InputField) -> InputField:
    """The input with the prompt in front of its texts; lists of token ids stay as they are."""
    if not prompt or value is None:
        return value
    if isinstance(value, str):
        return prompt + value if value else value
    return [prompt + each if isinstance(each, str) and each else each for each in value]
