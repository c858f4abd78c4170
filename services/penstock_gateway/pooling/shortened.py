"""Documents that lose their end, of so many tokens each: Cohere's max_tokens_per_doc."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import InvalidRequest
from penstock_gateway.pooling.endpoint import Call
from penstock_gateway.request.tokenising import off_the_loop


async def shortened(given: Sequence[Any], most: int, call: Call) -> list[Any]:
    """The documents; of those that are texts, the first `most` tokens. Raises InvalidRequest."""
    if most < 1:
        raise InvalidRequest(
            f"max_tokens_per_doc is {most}; it must be a whole number ≥ 1",
            param="max_tokens_per_doc",
        )
    tokenizer = call.engine.text.tokenizer

    def short(text: str) -> str:
        ids = tokenizer.encode(text, add_special=False)
        return text if len(ids) <= most else tokenizer.decode(ids[:most])

    texts = [each for each in given if isinstance(each, str)]
    made = iter(await off_the_loop(lambda: [*map(short, texts)], sum(map(len, texts))))
    return [next(made) if isinstance(each, str) else each for each in given]
