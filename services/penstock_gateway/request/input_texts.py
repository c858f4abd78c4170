"""Texts that a request brings as a list, and the prompts that an embedder's files name for them."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock.model.pooling_config import PoolingConfig
from penstock_gateway.http.errors import clip

MAX_INPUTS = 2048
"""Texts, or pairs of them, in one request."""


def texts_of(name: str, value: str | list[str]) -> list[str]:
    """One text or many, none empty. Raises InvalidRequest."""
    texts = [value] if isinstance(value, str) else value
    check_count(name, len(texts))
    for position, text in enumerate(texts):
        if not text:
            raise InvalidRequest(f"{name}[{position}] is empty", param=name)
    return texts


def check_count(name: str, count: int) -> None:
    """Raises InvalidRequest for none, or too many."""
    if not 1 <= count <= MAX_INPUTS:
        raise InvalidRequest(
            f"{name} has {count} entries; 1 to {MAX_INPUTS} are allowed", param=name
        )


def named_prompt(name: str, pooling: PoolingConfig | None) -> str:
    """Raises InvalidRequest where the model has none of that name."""
    prompts = dict(() if pooling is None else pooling.prompts)
    if name not in prompts:
        known = ", ".join(prompts) or "none, as the model's files name no prompts"
        raise InvalidRequest(
            f"prompt_name is {clip(name)}; allowed: {known}",
            param="prompt_name",
            code="unsupported_value",
        )
    return prompts[name]
