"""A message that a preparer makes a request of is answered as one that the gateway reads itself."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from penstock.client.ready_params import ready_params, without_ready
from penstock_rpc.protos.inference_pb2 import (
    CandidateTokens,
    DecodingParameters,
    GenerateRequest,
    GenerateResponse,
    KVCacheParameters,
    RandomSampling,
    RepetitionDetection,
    ResponseOptions,
    StoppingCriteria,
    TokenIds,
)
from penstock_rpc.vllm import generate
from tests.rpc.conftest import Serving

STREAM = "/vllm.Inference/GenerateStream"
SEED = RandomSampling(seed=5)
SHOWN = ResponseOptions(
    output_token_ids=True,
    output_logprobs=True,
    output_candidates=CandidateTokens(top_n=3),
    prompt_token_ids=True,
    prompt_logprobs=True,
    prompt_candidates=CandidateTokens(top_n=2),
)
ALL = GenerateRequest(
    text="Hi there",
    temperature=0.7,
    sampling=RandomSampling(top_k=5, top_p=0.9, min_p=0.05, seed=-1, num_sequences=2),
    decoding=DecodingParameters(
        presence_penalty=0.1, logit_bias={7: 1.5}, allowed_token_ids=[1, 2, 7], regex="a+"
    ),
    stopping=StoppingCriteria(
        max_new_tokens=7,
        stop_token_ids=[9],
        stop_strings=["x"],
        repetition_detection=RepetitionDetection(max_pattern_size=64, min_count=5),
    ),
    kv=KVCacheParameters(cache_salt="salt"),
    truncate_prompt_tokens=2,
    priority=3,
)
MESSAGES = {
    "text": GenerateRequest(text="Hi", sampling=SEED),
    "ids": GenerateRequest(token_ids=TokenIds(ids=b"Hi"), response=SHOWN, sampling=SEED),
    "all": ALL,
    "choices": GenerateRequest(
        text="x", decoding=DecodingParameters(choice={"choices": ["a", "b"]}), sampling=SEED
    ),
}


def _joined(replies: list[GenerateResponse]) -> list[GenerateResponse]:
    """The prompt's, and each sequence's as one: how they are divided depends on when they came."""
    prompt, whole = GenerateResponse(), dict[int, GenerateResponse]()
    for each in replies:
        prompt.prompt_info.MergeFrom(each.prompt_info)
        one, more = whole.setdefault(each.outputs.index, GenerateResponse()).outputs, each.outputs
        text, tokens = one.text + more.text, one.num_tokens + more.num_tokens
        one.MergeFrom(more)
        one.text, one.num_tokens = text, tokens
    return [prompt, *(whole[index] for index in sorted(whole))]


async def _answered(serving: Serving, message: GenerateRequest) -> tuple[list[Any], Any, Any, Any]:
    """What is replied and submitted: ids, sampling parameters and what was made of them, terms."""
    replies = [each async for each in serving.stream(STREAM, message, GenerateResponse)]
    (ids, params, _), ready = serving.engine.submitted[-1], serving.engine.ready[-1]
    if ready is None:
        engine = serving.engine
        ready = ready_params(params, engine.text.tokenizer, engine.welcome.limits)
        params = without_ready(params)
    return _joined(replies), (ids, params), ready, (serving.engine.terms[-1].priority, ids)


@pytest.mark.parametrize("name", MESSAGES)
async def test_the_same_is_submitted_and_replied(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    here = await _answered(serving, MESSAGES[name])
    assert serving.service.preparers.outcomes["done"] == 0
    monkeypatch.setattr(generate, "SMALL", -1)
    elsewhere = await _answered(serving, MESSAGES[name])
    assert serving.service.preparers.outcomes["done"] == 1
    assert elsewhere == here


async def test_a_long_prompt_goes_to_a_preparer(serving: Serving) -> None:
    message = GenerateRequest(text="x" * 3000)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in serving.stream(STREAM, message, GenerateResponse):
            pass
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "context" in refused.value.details()
    assert serving.service.preparers.outcomes["done"] == 1


async def test_what_is_wrong_is_named_as_before(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = GenerateRequest(text="Hi", stopping=StoppingCriteria(stop_strings=[""]))
    found = []
    for small in (generate.SMALL, -1):
        monkeypatch.setattr(generate, "SMALL", small)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in serving.stream(STREAM, message, GenerateResponse):
                pass
        found.append((refused.value.code(), refused.value.details()))
    assert found[0] == found[1]
