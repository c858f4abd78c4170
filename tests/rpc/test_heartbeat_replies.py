"""However much vllm.Inference shows of tokens, the event loop stands still for no more than 50 ms
while the reply is written, and it says what one says that is written at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.protocol.common import TokenLogprobs
from penstock_rpc.protos.inference_pb2 import (
    CandidateTokenInfo,
    CandidateTokens,
    GenerateRequest,
    GenerateResponse,
    ResponseOptions,
    StoppingCriteria,
    TokenIds,
)
from tests.gateway.heartbeat.beating import collecting_as_a_gateway, latest
from tests.gateway.heartbeat.engines import TellingEngine
from tests.rpc.conftest import Serve, Serving, serve  # noqa: F401
from tests.rpc.test_heartbeat import BeatenCalls, called

pytestmark = pytest.mark.timeout(300)

MANY, SOME, FEW = 8192, 700, 20
"""Tokens of a prompt and of an answer: what took a third of a second at once; more than are
written at once; and fewer."""
GENERATE, STREAM = "/vllm.Inference/Generate", "/vllm.Inference/GenerateStream"


def asked(tokens: int) -> GenerateRequest:
    return GenerateRequest(
        token_ids=TokenIds(ids=[ord("b")] * tokens),
        stopping=StoppingCriteria(max_new_tokens=tokens),
        response=ResponseOptions(
            prompt_token_ids=True,
            prompt_logprobs=True,
            prompt_candidates=CandidateTokens(top_n=20),
            output_token_ids=True,
            output_logprobs=True,
            output_candidates=CandidateTokens(top_n=20),
        ),
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeatenCalls]:
    folder = tmp_path_factory.mktemp("messages")
    with collecting_as_a_gateway(), called(TellingEngine(MANY), folder) as found:
        yield found


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_a_reply_that_shows_all_holds_nothing_up(server: BeatenCalls, path: str) -> None:
    server.give(asked(MANY).SerializeToString())
    code, late = server.watched(lambda: server.call(path, "all"))
    assert code == "OK"
    assert late <= latest()


@pytest.mark.parametrize("tokens", [SOME, FEW])
@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_in_pieces_it_says_what_it_says_at_once(
    serve: Serve,  # noqa: F811
    path: str,
    tokens: int,
) -> None:
    engine = TellingEngine(tokens)
    whole = await whole_of(await serve(engine), path, asked(tokens))
    info, outputs = whole.prompt_info, whole.outputs
    entries = [engine.entries[ord("b")]] * (tokens - 1)
    assert info.num_prompt_tokens == tokens
    assert list(info.token_ids) == [ord("b")] * tokens
    assert list(info.candidate_tokens) == [CandidateTokenInfo(), *map(candidates, entries)]
    assert info.logprobs[1:] == pytest.approx([each.logprob for each in entries])
    assert list(info.ranks[:2]) == [0, 1 + entries[0].top_ids.index(ord("b"))]
    ids = [ord("a") + place % 26 for place in range(tokens)]
    assert list(outputs.token_ids) == ids
    assert outputs.text == bytes(ids).decode()
    assert outputs.finish_info.num_output_tokens == tokens
    assert list(outputs.candidate_tokens) == [candidates(engine.entries[id]) for id in ids]
    assert len(outputs.logprobs) == len(outputs.ranks) == tokens


async def whole_of(serving: Serving, path: str, message: GenerateRequest) -> GenerateResponse:
    """The reply; of a stream, its messages together."""
    whole, text, count = GenerateResponse(), "", 0
    async for each in serving.stream(path, message, GenerateResponse):
        text, count = text + each.outputs.text, count + each.outputs.num_tokens
        whole.MergeFrom(each)
    whole.outputs.text = text
    assert count == len(whole.outputs.token_ids)
    return whole


def candidates(at: TokenLogprobs) -> CandidateTokenInfo:
    """One that is impossible has -9999, as over HTTP."""
    tokens = [
        CandidateTokenInfo.TokenInfo(id=id, logprob=max(logprob, -9999.0), rank=place + 1)
        for place, (id, logprob) in enumerate(zip(at.top_ids, at.top_logprobs, strict=True))
    ]
    return CandidateTokenInfo(tokens=tokens)
