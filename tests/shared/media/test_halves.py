"""Prompts in two halves, of an encoder-decoder model."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.llm.encoder_decoder import joined
from penstock.llm.prompts import with_salt
from penstock.request.terms import Terms

DATA = {"audio": b"a file"}


@pytest.mark.parametrize("salted", [(0,), (1,), (0, 1)])
def test_a_salt_of_either_half_is_the_prompts(salted: tuple[int, ...]) -> None:
    halves: list[dict[str, Any]] = [{"multi_modal_data": DATA}, {"prompt": "a"}]
    for each in salted:
        halves[each]["cache_salt"] = "salt"
    prompt: Any = dict(zip(("encoder_prompt", "decoder_prompt"), halves, strict=True))
    assert joined(prompt) == {"prompt": "a", "multi_modal_data": DATA, "cache_salt": "salt"}
    assert with_salt(prompt, Terms()).cache_salt == "salt"


@pytest.mark.parametrize(
    ("encoder", "decoder", "words"),
    [
        ({"prompt_token_ids": [1]}, "a", "encoder_prompt has no field 'prompt_token_ids'"),
        ({"speed": 2}, {"prompt": "a"}, "no field 'speed'; there are prompt, multi_modal_data"),
        ({"cache_salt": "b"}, {"prompt": "a", "cache_salt": "c"}, "different cache_salts"),
    ],
)
def test_nothing_of_a_half_is_dropped(encoder: Any, decoder: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        joined({"encoder_prompt": {"multi_modal_data": DATA, **encoder}, "decoder_prompt": decoder})
