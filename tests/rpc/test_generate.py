"""vllm.Inference over a fake engine core, whose tokens are bytes."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from penstock.errors import Overloaded
from penstock.request.sampling_params import RepetitionDetectionParams
from penstock_rpc.protos.control_pb2 import AbortRequest, AbortResponse
from penstock_rpc.protos.inference_pb2 import (
    CandidateTokens,
    DecodingParameters,
    FinishInfo,
    GenerateRequest,
    GenerateResponse,
    KVCacheParameters,
    MediaItem,
    RandomSampling,
    RepetitionDetection,
    ResponseOptions,
    StoppingCriteria,
    TokenIds,
)
from tests.gateway.byte_tokenizer import END
from tests.gateway.fake_engine import HELLO, FakeEngineClient, say
from tests.rpc.conftest import Serve, Serving

GENERATE = "/vllm.Inference/Generate"
STREAM = "/vllm.Inference/GenerateStream"
SAID = f"{HELLO}0"


async def test_the_whole_output(serving: Serving) -> None:
    reply = await serving.unary(GENERATE, GenerateRequest(text="Hi"), GenerateResponse)
    assert reply.outputs.text == SAID
    assert reply.outputs.num_tokens == len(SAID.encode()) + 1
    assert not reply.outputs.token_ids
    assert reply.prompt_info.num_prompt_tokens == 2
    info = reply.outputs.finish_info
    assert info.finish_reason == FinishInfo.STOP
    assert info.WhichOneof("stop_reason") == "eos_token_id"
    assert info.eos_token_id == END
    assert info.num_output_tokens == reply.outputs.num_tokens
    _, params, _ = serving.engine.submitted[0]
    assert (params.temperature, params.max_tokens) == (0.0, 20)


async def test_a_stream_says_the_same(serving: Serving) -> None:
    asked = ResponseOptions(output_token_ids=True, prompt_token_ids=True)
    message = GenerateRequest(token_ids=TokenIds(ids=b"Hi"), response=asked)
    replies = [each async for each in serving.stream(STREAM, message, GenerateResponse)]
    assert "".join(each.outputs.text for each in replies) == SAID
    ids = [token for each in replies for token in each.outputs.token_ids]
    assert ids == [*SAID.encode(), END]
    assert sum(each.outputs.num_tokens for each in replies) == len(ids)
    assert [each.HasField("prompt_info") for each in replies] == [True] + [False] * (
        len(replies) - 1
    )
    assert list(replies[0].prompt_info.token_ids) == list(b"Hi")
    assert [each.outputs.HasField("finish_info") for each in replies][-1]
    assert replies[-1].outputs.finish_info.num_output_tokens == len(ids)


async def test_several_sequences(serving: Serving) -> None:
    message = GenerateRequest(text="Hi", sampling=RandomSampling(num_sequences=3))
    texts = dict.fromkeys(range(3), "")
    async for each in serving.stream(STREAM, message, GenerateResponse):
        texts[each.outputs.index] += each.outputs.text
    assert texts == {index: f"{HELLO}{index}" for index in range(3)}
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await serving.unary(GENERATE, message, GenerateResponse)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "num_sequences is 3" in refused.value.details()


async def test_every_field_arrives(serving: Serving) -> None:
    message = GenerateRequest(
        request_id="mine",
        text="Hi there",
        temperature=0.7,
        sampling=RandomSampling(top_k=5, top_p=0.9, min_p=0.05, seed=-1),
        decoding=DecodingParameters(
            presence_penalty=0.1,
            frequency_penalty=0.2,
            repetition_penalty=1.3,
            logit_bias={7: 1.5},
            allowed_token_ids=[1, 2, 7],
        ),
        stopping=StoppingCriteria(
            max_new_tokens=7,
            min_new_tokens=2,
            stop_token_ids=[9],
            stop_strings=["x"],
            include_stop_strings=True,
            ignore_eos=True,
            repetition_detection=RepetitionDetection(max_pattern_size=64, min_count=5),
        ),
        response=ResponseOptions(skip_special_tokens=False),
        kv=KVCacheParameters(cache_salt="salt"),
        truncate_prompt_tokens=2,
        priority=3,
    )
    await serving.unary(GENERATE, message, GenerateResponse)
    ids, params, name = serving.engine.submitted[0]
    assert ids == list(b"re")
    assert name == "mine"
    # The decimals that were meant, not the nearest float32.
    assert (params.temperature, params.top_p, params.min_p) == (0.7, 0.9, 0.05)
    assert (params.presence_penalty, params.frequency_penalty) == (0.1, 0.2)
    assert (params.repetition_penalty, params.top_k, params.seed) == (1.3, 5, 2**64 - 1)
    assert params.logit_bias == {7: 1.5}
    assert params.allowed_token_ids == [1, 2, 7]
    assert (params.max_tokens, params.min_tokens, params.ignore_eos) == (7, 2, True)
    assert (params.stop_token_ids, params.include_stop_str_in_output) == ([9], True)
    assert params.skip_special_tokens is False
    detection = RepetitionDetectionParams(max_pattern_size=64, min_count=5)
    assert params.repetition_detection == detection
    terms = serving.engine.terms[0]
    assert (terms.priority, terms.cache_salt) == (3, "salt")


async def test_a_loop_may_end_the_output(serving: Serving) -> None:
    serving.engine.script = say("again again", finish="repetition")
    detection = RepetitionDetection(max_pattern_size=64, min_count=1)
    message = GenerateRequest(text="Hi", stopping=StoppingCriteria(repetition_detection=detection))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await serving.unary(GENERATE, message, GenerateResponse)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "repetition_detection.min_count" in refused.value.details()
    message.stopping.repetition_detection.min_count = 5
    info = (await serving.unary(GENERATE, message, GenerateResponse)).outputs.finish_info
    assert info.finish_reason == FinishInfo.STOP
    assert info.WhichOneof("stop_reason") is None


@pytest.mark.parametrize(
    ("decoding", "kind", "value"),
    [
        (DecodingParameters(json='{"type": "object"}'), "json", '{"type": "object"}'),
        (DecodingParameters(regex="a+"), "regex", "a+"),
        (DecodingParameters(choice={"choices": ["a", "b"]}), "choice", ["a", "b"]),
        (DecodingParameters(json_object=True), "json_object", True),
        (DecodingParameters(grammar='start: "a"'), "grammar", 'start: "a"'),
    ],
)
async def test_structured_output(
    serving: Serving, decoding: DecodingParameters, kind: str, value: object
) -> None:
    await serving.unary(GENERATE, GenerateRequest(text="x", decoding=decoding), GenerateResponse)
    asked = serving.engine.submitted[0][1].structured_outputs
    assert asked is not None
    assert getattr(asked, kind) == value


async def test_log_probabilities(serving: Serving) -> None:
    asked = ResponseOptions(
        output_logprobs=True, output_candidates=CandidateTokens(top_n=2), output_text=False
    )
    message = GenerateRequest(text="Hi", response=asked)
    output = (await serving.unary(GENERATE, message, GenerateResponse)).outputs
    assert not output.text
    assert set(output.logprobs) == {-0.5}
    assert output.ranks[0] == 1
    first = output.candidate_tokens[0].tokens
    assert [(each.id, each.rank) for each in first] == [(ord("H"), 1), (ord("H") + 1, 2)]
    assert [each.logprob for each in first] == [-0.5, -9999.0]


@pytest.mark.parametrize(
    ("message", "part"),
    [
        (GenerateRequest(), "prompt is missing"),
        (GenerateRequest(text=""), "prompt is empty"),
        (GenerateRequest(token_ids=TokenIds(ids=[9999])), "token id 9999"),
        (GenerateRequest(text="x", media=[MediaItem(url="http://x")]), "media"),
        (GenerateRequest(text="x", model="nobody"), "nobody"),
        (
            GenerateRequest(
                text="x", response=ResponseOptions(output_candidates=CandidateTokens(all=True))
            ),
            "output_candidates.all",
        ),
        (GenerateRequest(text="x", temperature=-1), "temperature"),
        (GenerateRequest(text="x" * 600), "context"),
    ],
)
async def test_a_wrong_generation_is_refused_by_grpc(
    serving: Serving, message: GenerateRequest, part: str
) -> None:
    for path in (GENERATE, STREAM):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await serving.last(path, message, GenerateResponse)
        assert part in refused.value.details()
        expected = "NOT_FOUND" if message.model else "INVALID_ARGUMENT"
        assert refused.value.code().name == expected
        told = dict(refused.value.trailing_metadata())
        assert {"penstock-error-bin", "x-request-id"} <= told.keys()


async def test_a_failure_in_the_middle_of_a_stream(serve: Serve) -> None:
    def script(prompt, params):
        yield from list(say("ab")(prompt, params))[:2]
        yield Overloaded("full", retry_after=2.0)

    serving = await serve(FakeEngineClient(script))
    stream = serving.stream(STREAM, GenerateRequest(text="x"), GenerateResponse)
    text = ""
    while len(text) < 2:
        text += (await stream.read()).outputs.text
    assert text == "ab"
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stream.read()
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


def _slow(prompt, params):
    """Two tokens, then nothing for a long time."""
    yield from list(say("abc")(prompt, params))[:2]
    yield 600.0


async def test_a_dropped_stream_aborts_its_request(serve: Serve) -> None:
    serving = await serve(FakeEngineClient(_slow))
    stream = serving.stream(STREAM, GenerateRequest(text="x"), GenerateResponse)
    async for _ in stream:
        break
    stream.cancel()
    async with asyncio.timeout(60):
        await serving.engine.generations[0].aborted.wait()
    while serving.service.open_requests:
        await asyncio.sleep(0)


async def test_a_call_whose_deadline_passes(serve: Serve) -> None:
    serving = await serve(FakeEngineClient(_slow))
    for seconds in (0.3, 3.0, 30.0):
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await serving.unary(
                GENERATE, GenerateRequest(text="x"), GenerateResponse, timeout=seconds
            )
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if serving.engine.generations:
            break  # Else the machine was so slow that nothing had been begun.
    assert serving.engine.terms[0].deadline is not None
    async with asyncio.timeout(60):
        await serving.engine.generations[0].aborted.wait()


async def test_abort_ends_what_has_the_id(serve: Serve) -> None:
    serving = await serve(FakeEngineClient(_slow))
    stream = serving.stream(STREAM, GenerateRequest(text="x", request_id="a"), GenerateResponse)
    await stream.read()
    other = serving.stream(STREAM, GenerateRequest(text="x", request_id="b"), GenerateResponse)
    await other.read()
    request = AbortRequest(request_ids=["a", "unknown"])
    await serving.unary("/vllm.Control/Abort", request, AbortResponse)
    assert await stream.code() is grpc.StatusCode.CANCELLED
    assert "aborted" in await stream.details()
    async with asyncio.timeout(60):
        await serving.engine.generations[0].aborted.wait()
    assert not serving.engine.generations[1].aborted.is_set()


async def test_a_slow_reader_gets_few_large_messages_and_then_the_end(serve: Serve) -> None:
    def long(prompt, params):
        return say("x" * 400)(prompt, params)

    serving = await serve(FakeEngineClient(long))
    message = GenerateRequest(text="x", stopping=StoppingCriteria(max_new_tokens=500))
    stream = serving.stream(STREAM, message, GenerateResponse)
    while serving.service.open_requests or not serving.engine.generations:
        await asyncio.sleep(0.01)
    replies = [each async for each in stream]
    assert "".join(each.outputs.text for each in replies) == "x" * 400 + "0"
    assert replies[-1].outputs.finish_info.num_output_tokens == 402
