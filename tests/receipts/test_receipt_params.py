"""A receipt tells every parameter that a token hangs on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.request.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
)
from penstock.request.structured_outputs import StructuredOutputs
from penstock_receipts.statement import PromptClaim, Statement, told_params
from tests.receipts.test_verify import STATEMENT

NOT_TOLD: dict[str, tuple[Any, str]] = {
    "output_kind": (RequestOutputKind.DELTA, "how an answer is handed out"),
    "logprobs": (3, "what is said beside the tokens"),
    "prompt_logprobs": (3, "what is said beside the tokens"),
    "seed": (8, "each prompt has its own, beside it"),
    "max_tokens": (9, "each prompt has its own, beside it"),
    "min_indentation": (2, "of an endpoint whose answers have no receipts"),
}
"""Each with a value that isn't the default, and why `params` lacks it."""
TOLD: dict[str, Any] = {
    "n": 2,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 4,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.2,
    "logit_bias": {3: 1.5, 40: -2.0},
    "allowed_token_ids": [1, 2],
    "bad_words": ["no"],
    "stop": ["end", "stop"],
    "stop_token_ids": [7],
    "min_tokens": 1,
    "ignore_eos": True,
    "repetition_detection": RepetitionDetectionParams(max_pattern_size=3, min_count=4),
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "structured_outputs": StructuredOutputs(regex="[a-z]+"),
    "thinking_token_budget": 5,
    "logprob_token_ids": [4, 5],
}


def read_back(params: SamplingParams) -> SamplingParams:
    """As somebody reads it who has the receipt alone."""
    claim = PromptClaim(tokens=1, sha256="", seed=params.seed or 0, max_tokens=16)
    said = {**STATEMENT, "params": told_params(params), "prompts": [msgspec.to_builtins(claim)]}
    written = msgspec.json.encode(said)
    (found,) = msgspec.json.decode(written, type=Statement).sampling()
    return found


def test_every_parameter_is_in_one_of_the_lists() -> None:
    assert TOLD.keys() | NOT_TOLD.keys() == {*SamplingParams.__struct_fields__}
    assert not TOLD.keys() & NOT_TOLD.keys()


@pytest.mark.parametrize("name", TOLD)
def test_what_is_told_is_read_back(name: str) -> None:
    params = SamplingParams(**{name: TOLD[name]})
    assert getattr(params, name) != getattr(SamplingParams(), name)
    assert getattr(read_back(params), name) == getattr(params, name)


@pytest.mark.parametrize("name", NOT_TOLD)
def test_what_is_not_told_stands_elsewhere_or_changes_no_token(name: str) -> None:
    params = SamplingParams(**{name: NOT_TOLD[name][0]})
    assert getattr(params, name) != getattr(SamplingParams(), name)
    assert name not in told_params(params)
