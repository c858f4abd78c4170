"""Receipts as clients get them, over a scripted engine client. What they say is verified in
tests/system/test_receipts.py."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.client import SequenceDelta
from penstock.config.settings import GatewayConfig
from penstock.errors import EngineUnavailable
from penstock.protocol.common import TokenLogprobs
from penstock_gateway.batches.in_process import OwnAnswer, result_line
from penstock_gateway.generate.event_ids import Origin
from penstock_receipts.batch import BatchSigner
from penstock_receipts.signing import SigningKey
from penstock_receipts.statement import (
    Statement,
    ids_digest,
    read_receipts,
    read_statement,
    tree_statement,
)
from penstock_receipts.verify import SignedReceipt
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.live_gateway import LiveGateway

PATHS = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
}
LOGPROB = TokenLogprobs(-0.25, (), ())


class SignedClient(FakeEngineClient):
    """Its answers are `ab` in two deltas. broken: its weights can't be read."""

    hashed = 0
    broken = False

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.welcome = msgspec.structs.replace(
            self.welcome,
            tokenizer_sha256="aa",
            template_sha256="bb",
            bit_settings={"dtype": "auto"},
        )
        assert self.status is not None
        self.status = msgspec.structs.replace(self.status, arithmetic=("cpu", "one"))

    def _answer(self, prompt: list[int], params: Any) -> Any:
        logprobs = None if params.logprobs is None else [LOGPROB]
        for token, reason in ((97, None), (98, "stop")):
            yield [
                SequenceDelta(
                    index=index,
                    text=chr(token),
                    token_ids=[token],
                    logprobs=logprobs,
                    finish_reason=reason,
                )
                for index in range(params.n)
            ]

    async def hash_weights(self, weights: str | None = None) -> dict[str, str]:
        self.hashed += 1
        if self.broken:
            raise EngineUnavailable("gone")
        return {"model.gguf": "cc"}


@pytest.fixture
def gateway(tmp_path: Path):
    with LiveGateway(SignedClient(), GatewayConfig(receipt_key_file=str(tmp_path / "key"))) as one:
        yield one


def ask(
    gateway: LiveGateway, path: str, wish: str | None, last: str | None = None, **fields: Any
) -> tuple[str, bytes]:
    """(head, body). last: the event's id from which a stream goes on."""
    with gateway.connect() as connection:
        body = json.dumps({**PATHS.get(path, {}), **fields}).encode()
        asks = () if wish is None else (f"x-penstock-receipt: {wish}",)
        asks += () if last is None else (f"last-event-id: {last}",)
        connection.post(path, body, "connection: close", *asks)
        head, _, data = connection.read_all().partition(b"\r\n\r\n")
        return head.decode().lower(), data


def of(data: bytes) -> tuple[SignedReceipt, Statement]:
    (receipt,) = read_receipts(data)
    signed = SignedReceipt(receipt)
    assert all(check.standing != "differs" for check in signed.checks())
    return signed, read_statement(receipt)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_an_answer_brings_its_receipt(gateway, path, stream):
    _, data = ask(gateway, path, "1", stream=stream, n=2, seed=5, temperature=0.5)
    signed, said = of(data)
    assert [claim.output for claim in signed.claims()] == [[97, 98]] * 2
    assert [(o.prompt, o.sequence, o.finish_reason) for o in said.outputs] == [
        (0, 0, "stop"),
        (0, 1, "stop"),
    ]
    prompt, params, _ = gateway.engine.submitted[0]
    assert said.prompts[0].sha256 == ids_digest(prompt)
    assert (params.seed, params.temperature) == (5, 0.5)
    assert signed.claims()[0].params == params
    assert (said.model.tokenizer, said.model.template) == ("aa", "bb")
    assert said.model.weights == {"model.gguf": "cc"}
    assert said.computing.arithmetic == ["cpu", "one"]
    assert said.computing.settings == {"dtype": "auto"}
    if stream:
        events = re.findall(rb"data: (.*)\n\n", data)
        assert events[-1] == b"[DONE]"
        assert json.loads(events[-2])["choices"] == []
        assert not any(b"penstock_receipt" in event for event in events[:-2])
        texts = [json.loads(event)["choices"] for event in events[:-2]]
        assert len(texts) >= 4
    else:
        assert said.id == json.loads(data)["id"]


ONE_ANSWER = {
    "/v1/responses": {"input": "x", "max_output_tokens": 16},
    "/v1/messages": {**PATHS["/v1/chat/completions"], "max_tokens": 16},
}


@pytest.mark.parametrize("asked", ["header", "body"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ONE_ANSWER)
def test_responses_and_messages_bring_theirs(gateway, path, stream, asked):
    more = {} if asked == "header" else {"penstock_receipt": "1"}
    wish = "1" if asked == "header" else None
    head, data = ask(gateway, path, wish, stream=stream, seed=5, **ONE_ANSWER[path], **more)
    assert head.startswith("http/1.1 200"), data
    signed, said = of(data)
    prompt, params, _ = gateway.engine.submitted[0]
    assert [claim.output for claim in signed.claims()] == [[97, 98]]
    assert signed.claims()[0].params == params
    assert (params.seed, said.prompts[0].sha256) == (5, ids_digest(prompt))
    assert said.id in data.decode()
    if stream:
        events = [json.loads(event) for event in re.findall(rb"data: (.*)\n\n", data)]
        assert [b"statement" in json.dumps(event).encode() for event in events] == [
            *[False] * (len(events) - 1),
            True,
        ]


def test_the_time_is_when_it_was_signed(gateway):
    """Not what an event's id says, which is no secret and may be anybody's work."""
    resumable = {"stream": True, "stream_options": {"resumable": True}}
    _, data = ask(gateway, "/v1/completions", "1", **resumable)
    (id, *_) = re.findall(rb"id: (\S+)\.", data)
    origin = Origin.read(id.decode())
    forged = f"{origin._replace(created=1).written()}.0"
    before = int(time.time())
    _, data = ask(gateway, "/v1/completions", "1", last=forged, **resumable)
    assert b'"created":1,' in data
    assert before <= of(data)[1].created <= int(time.time())


def test_a_seed_that_nobody_gave_is_drawn_and_told(gateway):
    _, data = ask(gateway, "/v1/completions", "1", prompt=["x", "y"])
    seeds = [params.seed for _, params, _ in gateway.engine.submitted]
    assert None not in seeds
    assert len(set(seeds)) == 2
    assert [each.seed for each in of(data)[1].prompts] == seeds


def test_the_body_may_ask_too(gateway):
    _, data = ask(gateway, "/v1/completions", None, penstock_receipt="digest")
    assert json.loads(data)["penstock_receipt"]["tokens"] is None


def test_the_digests_alone(gateway):
    _, data = ask(gateway, "/v1/completions", "digest")
    signed, said = of(data)
    assert json.loads(data)["penstock_receipt"]["tokens"] is None
    assert said.outputs[0].sha256 == ids_digest([97, 98])
    assert signed.claims() == []


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_signed_and_not_shown_otherwise(gateway, stream):
    _, data = ask(gateway, "/v1/completions", "logprobs", stream=stream)
    signed, said = of(data)
    assert signed.claims()[0].logprobs == [-0.25, -0.25]
    assert said.outputs[0].logprobs_sha256 is not None
    assert b"-0.25" not in data.partition(b'"penstock_receipt"')[0]


def test_weights_are_read_for_the_first_and_again_after_a_failure(gateway):
    gateway.engine.broken = True
    assert of(ask(gateway, "/v1/completions", "1")[1])[1].model.weights is None
    gateway.engine.broken = False
    for _ in range(2):
        assert of(ask(gateway, "/v1/completions", "1")[1])[1].model.weights == {"model.gguf": "cc"}
    assert gateway.engine.hashed == 2


def test_the_public_key_is_told(gateway):
    with gateway.connect() as connection:
        connection.socket.sendall(
            b"GET /v1/receipts/key HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n"
        )
        told = json.loads(connection.read_all().partition(b"\r\n\r\n")[2])
    _, data = ask(gateway, "/v1/completions", "1")
    assert told == json.loads(data)["penstock_receipt"]["key"]


@pytest.mark.parametrize(
    ("path", "wish", "fields", "words"),
    [
        ("/v1/completions", "yes", {}, "isn't allowed; allowed: 0, 1, digest, logprobs"),
        ("/v1/completions", None, {"penstock_receipt": "yes"}, "penstock_receipt: "),
        ("/v1/completions", "1", {"use_beam_search": True, "n": 2}, "use_beam_search"),
        ("/api/chat", "1", PATHS["/v1/chat/completions"], "this path doesn't"),
    ],
)
def test_what_cannot_be_given_is_refused(gateway, path, wish, fields, words):
    head, data = ask(gateway, path, wish, **fields)
    assert head.startswith("http/1.1 400"), data
    assert words in data.decode()


def test_without_a_key_there_are_none():
    with LiveGateway(SignedClient()) as gateway:
        head, data = ask(gateway, "/v1/completions", "1")
        assert head.startswith("http/1.1 400")
        assert b"--receipt-key-file" in data
        head, data = ask(gateway, "/v1/completions", "0")
        assert head.startswith("http/1.1 200")
        assert b"receipt" not in data
        with gateway.connect() as connection:
            connection.socket.sendall(
                b"GET /v1/receipts/key HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n"
            )
            assert b"404" in connection.read_all().partition(b"\r\n")[0]


# ---- batches


@pytest.fixture
def batch(gateway, tmp_path):
    """The lines of five answers, the third of which has no receipt, signed together."""
    lines = []
    for number in range(5):
        wish = None if number == 2 else "1"
        body = ask(gateway, "/v1/completions", wish, seed=number)[1]
        lines.append(
            result_line(str(number), OwnAnswer(200, body=bytearray(body))).encode() + b"\n"
        )
    signer = BatchSigner(SigningKey.kept(tmp_path / "key"))
    return lines, list(signer.signed("batch_1", lambda: iter(lines)))


def checks(receipt: Any) -> dict[str, tuple[str, str]]:
    return {check.what: (check.standing, check.detail) for check in SignedReceipt(receipt).checks()}


def test_each_line_of_a_batch_proves_its_place(batch):
    before, after = batch
    assert after[2] == before[2]
    receipts = read_receipts(b"".join(after))
    assert len(receipts) == 4
    roots = set()
    for number, receipt in enumerate(receipts):
        found = checks(receipt)
        assert {standing for standing, _ in found.values()} == {"equal"}
        assert f"receipt {number} of the 4 of batch_1" in found["batch"][1]
        assert not isinstance(receipt.batch, msgspec.UnsetType)
        roots.add(tree_statement(receipt.batch).root)
    assert len(roots) == 1
    for old, new in zip(before, after, strict=True):
        was, now = json.loads(old), json.loads(new)
        now["response"]["body"].get("penstock_receipt", {}).pop("batch", None)
        assert now == was


def test_lines_without_receipts_stay(batch, tmp_path):
    line = batch[0][2]
    signer = BatchSigner(SigningKey.kept(tmp_path / "key"))
    assert list(signer.signed("batch_1", lambda: iter([line, b'{"no": "line"}\n']))) == [
        line,
        b'{"no": "line"}\n',
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"index": 1}, "it isn't receipt 1 of the 4"),
        ({"index": 7}, "it isn't receipt 7 of the 4"),
        ({"path": []}, "it isn't receipt 0 of the 4"),
        ({"path": ["0" * 64] * 2}, "it isn't receipt 0 of the 4"),
        ({"signature": "AAAA"}, "has not signed its root"),
    ],
)
def test_another_place_in_the_batch_is_found(batch, changes, words):
    receipt = read_receipts(batch[1][0])[0]
    assert not isinstance(receipt.batch, msgspec.UnsetType)
    place = msgspec.structs.replace(receipt.batch, **changes)
    standing, detail = checks(msgspec.structs.replace(receipt, batch=place))["batch"]
    assert standing == "differs"
    assert words in detail


def test_a_place_that_another_server_signed_is_found(batch, tmp_path):
    signer = BatchSigner(SigningKey.kept(tmp_path / "other"))
    forged = read_receipts(next(signer.signed("batch_1", lambda: iter(batch[0][:1]))))[0]
    assert checks(forged)["batch"][0] == "differs"


def test_a_receipt_of_another_line_is_found(batch):
    first, second = read_receipts(b"".join(batch[1][:2]))
    swapped = msgspec.structs.replace(second, batch=first.batch)
    assert checks(swapped)["batch"][0] == "differs"
