"""Reading receipts that anybody may have written, and the key that signs them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import stat
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from penstock.client import SequenceDelta
from penstock.client.client_view import ClientView
from penstock.errors import InvalidRequest, RequestFailed, StartupError
from penstock.protocol.common import ErrorCode, FinishReason
from penstock.request.sampling_params import SamplingParams
from penstock.request.structured_outputs import StructuredOutputs
from penstock.request.terms import Terms
from penstock_receipts import statement as reading
from penstock_receipts.replay import Claimed, Place, Replay
from penstock_receipts.signing import SigningKey
from penstock_receipts.statement import ids_digest, read_receipts, read_statement, told_params
from penstock_receipts.verify import ModelHere, SignedReceipt, pinned_key

STATEMENT: dict[str, Any] = {
    "receipt": 1,
    "id": "cmpl-1",
    "created": 1,
    "penstock": "0",
    "model": {
        "name": "m",
        "hub_id": "",
        "digest": "d",
        "tokenizer": "t",
        "template": "",
        "weights": None,
    },
    "computing": {"fingerprint": "f", "arithmetic": ["cpu"], "settings": {}},
    "params": told_params(SamplingParams()),
    "prompts": [{"tokens": 2, "sha256": ids_digest([1, 2]), "seed": 7, "max_tokens": 1}],
    "outputs": [
        {
            "prompt": 0,
            "sequence": 0,
            "tokens": 1,
            "sha256": ids_digest([3]),
            "finish_reason": "length",
        }
    ],
}


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return SigningKey.kept(tmp_path_factory.mktemp("keys") / "key.pem")


def receipt(key: SigningKey, tokens: Any = None, **changes: Any) -> dict[str, Any]:
    text = json.dumps({**STATEMENT, **changes})
    return {
        "statement": text,
        "signature": key.sign(text),
        "key": msgspec.to_builtins(key.public),
        "tokens": tokens or {"prompts": [[1, 2]], "outputs": [[3]]},
    }


def standings(found: dict[str, Any], **more: Any) -> dict[str, tuple[str, str]]:
    (one,) = read_receipts(json.dumps(found).encode())
    checks = SignedReceipt(one, **more).checks()
    return {check.what: (check.standing, check.detail) for check in checks}


def test_a_signature_is_what_rfc_8032_says(key):
    found = receipt(key)
    raw = base64.b64decode(found["key"]["public_key"])
    public = Ed25519PublicKey.from_public_bytes(raw)
    public.verify(base64.b64decode(found["signature"]), found["statement"].encode())
    assert found["key"]["id"] == hashlib.sha256(raw).hexdigest()[:16]
    assert [standing for standing, _ in standings(found).values()] == ["equal", "equal"]


def test_digests_are_of_little_endian_numbers():
    assert ids_digest([1, 258]) == hashlib.sha256(struct.pack("<II", 1, 258)).hexdigest()
    assert reading.logprobs_digest([-0.5]) == hashlib.sha256(struct.pack("<f", -0.5)).hexdigest()


@pytest.mark.parametrize(
    ("wrap", "count"),
    [
        (lambda r: json.dumps(r), 1),
        (lambda r: json.dumps({"object": "chat.completion", "penstock_receipt": r}), 1),
        (lambda r: f'data: {{"choices": []}}\n\ndata: {json.dumps({"penstock_receipt": r})}\n\n'
                   "data: [DONE]\n\n", 1),
        (lambda r: "\n".join(
            json.dumps({"custom_id": n, "response": {"body": {"penstock_receipt": r}}})
            for n in "ab"), 2),
    ],
    ids=["alone", "reply", "stream", "batch"],
)  # fmt: skip
def test_it_is_found_in_what_a_server_answers(key, wrap, count):
    assert len(read_receipts(wrap(receipt(key)).encode())) == count


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no JSON object"),
        (b"\xff\xfe", "no UTF-8"),
        (b"[1]", "no JSON object"),
        (b"[" * 100_000, "no JSON object"),
        (b'{"a": ' * 100_000, "no JSON object"),
        (b'{"choices": []}', "no receipt in it"),
        (b'{"statement": 1}', "the receipt is wrong"),
        (b'{"statement": "{}", "signature": "", "key": {"id": 1}}', "the receipt is wrong"),
    ],
)
def test_what_is_none_is_named(data, words):
    with pytest.raises(InvalidRequest, match=words):
        read_receipts(data)


def test_a_huge_one_is_not_read(monkeypatch):
    monkeypatch.setattr(reading, "MAX_BYTES", 2**20)
    with pytest.raises(InvalidRequest, match="more than 1 MiB"):
        read_receipts(b" " * (2**20 + 1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"receipt": 2}, "version 2; this Penstock reads 1"),
        ({"receipt": "x" * 1000}, "version x{20};"),
        ({"surprise": 1}, "surprise"),
        ({"prompts": []}, "output of prompt 0"),
        ({"outputs": [{**STATEMENT["outputs"][0], "prompt": -1}]}, "output of prompt -1"),
        ({"model": None}, "model"),
    ],
)
def test_a_statement_that_cannot_be_read_says_why(key, changes, words):
    (one,) = read_receipts(json.dumps(receipt(key, **changes)).encode())
    with pytest.raises(InvalidRequest, match=words):
        read_statement(one)


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ({}, {"temperature": -1}, "temperature"),
        ({}, {"surprise": 1}, "surprise"),
        ({"seed": -1}, {}, "seed"),
        ({"max_tokens": 2**40}, {}, "max_tokens"),
    ],
)
def test_wrong_parameters_are_named(key, prompt, params, words):
    found = receipt(
        key,
        prompts=[{**STATEMENT["prompts"][0], **prompt}],
        params={**STATEMENT["params"], **params},
    )
    (one,) = read_receipts(json.dumps(found).encode())
    with pytest.raises(InvalidRequest, match=words):
        SignedReceipt(one).claims()


def test_all_parameters_survive(key):
    params = SamplingParams(
        n=2, temperature=0.7, seed=2**64 - 1, stop=["a"], logit_bias={5: -1.5}, bad_words=["x"],
        max_tokens=3, presence_penalty=0.5,
    )  # fmt: skip
    prompt = {**STATEMENT["prompts"][0], "seed": 2**64 - 1, "max_tokens": 3}
    told = json.loads(json.dumps(told_params(params)))
    (one,) = read_receipts(json.dumps(receipt(key, params=told, prompts=[prompt])).encode())
    assert SignedReceipt(one).claims()[0].params == params


@pytest.mark.parametrize("name", ["worker_extensions", "cache_dir", "disk_kv_dir", "model"])
def test_who_wrote_a_receipt_does_not_decide_what_runs_here(key, name):
    computing = {**STATEMENT["computing"], "settings": {name: "x"}}
    (one,) = read_receipts(json.dumps(receipt(key, computing=computing)).encode())
    with pytest.raises(InvalidRequest, match=name):
        SignedReceipt(one).settings()


def test_what_was_changed_after_it_was_signed_is_found(key):
    found = receipt(key)
    other = {**found, "statement": found["statement"].replace('"seed": 7', '"seed": 8')}
    assert other != found
    assert standings(other)["signature"][0] == "differs"
    assert standings({**found, "signature": "AAAA"})["signature"][0] == "differs"
    assert standings({**found, "signature": "?"})["signature"][0] == "differs"
    for tokens, words in (
        ({"prompts": [[1, 2]], "outputs": [[4]]}, "output 0 aren't"),
        ({"prompts": [[1, 2]], "outputs": [[3, 3]]}, "output 0 has 2"),
        ({"prompts": [[2, 1]], "outputs": [[3]]}, "prompt 0 aren't"),
        ({"prompts": [], "outputs": [[3]]}, "0 prompts, and 1"),
        ({"prompts": [[1, 2]], "outputs": []}, "0 outputs, and 1"),
        ({"prompts": [[1, 2]], "outputs": [[3]], "logprobs": [[-1.0]]}, "log-probabilities"),
    ):
        standing, detail = standings({**found, "tokens": tokens})["tokens"]
        assert (standing, words in detail) == ("differs", True), detail


def test_a_receipt_of_another_key_is_not_the_servers(key, tmp_path):
    other = SigningKey.kept(tmp_path / "other.pem")
    found = receipt(other)
    assert standings(found)["signature"][0] == "equal"
    pinned = pinned_key(json.dumps(msgspec.to_builtins(key.public)))
    assert pinned == pinned_key(key.public.public_key) == key.public
    standing, detail = standings(found, pinned=pinned)["signature"]
    assert standing == "differs"
    assert key.public.id in detail
    assert standings(receipt(key), pinned=pinned)["signature"][0] == "equal"
    with pytest.raises(InvalidRequest, match="id"):
        standings({**found, "key": {**found["key"], "id": key.public.id}})
    with pytest.raises(InvalidRequest, match="no key"):
        standings({**found, "key": {**found["key"], "public_key": "AAAA"}})


@pytest.mark.parametrize("text", ["", "AAAA", "{}", "?", '{"public_key": 1}'])
def test_what_is_no_key_is_refused(text):
    with pytest.raises(InvalidRequest, match="--key"):
        pinned_key(text)


def test_a_receipt_of_digests_can_only_be_attributed(key):
    found = {**receipt(key), "tokens": None}
    told = standings(found)
    assert (told["signature"][0], told["tokens"][0]) == ("equal", "untold")


class Starting(ClientView):
    """A client whose engine says in its third status how it computes."""

    def __init__(self) -> None:
        self._told: list[Any] = [None, SimpleNamespace(arithmetic=(), fingerprint=None)]
        self._told.append(SimpleNamespace(arithmetic=("cpu",), fingerprint="f"))
        fleet: Any = SimpleNamespace(next_status=self._next)
        self._fleet = fleet

    async def _next(self) -> None:
        del self._told[0]

    @property
    def status(self) -> Any:
        return self._told[0]


def test_bits_are_compared_once_it_is_known_how_the_engine_computes(key):
    (one,) = read_receipts(json.dumps({**receipt(key, outputs=[]), "tokens": None}).encode())
    words = {"tokenizer_sha256": "t", "template_sha256": "", "limits": None, "digest": "d"}
    llm: Any = SimpleNamespace(welcome=SimpleNamespace(**words), client=Starting())
    checks = asyncio.run(ModelHere(llm, {}, Terms()).checks(SignedReceipt(one), None))
    (arithmetic,) = (check for check in checks if check.what == "arithmetic")
    assert arithmetic.standing == "equal"


class Failing:
    """An engine's client, and a request to it, all of which end in the same way."""

    def __init__(self, code: ErrorCode | None = None, reason: FinishReason = "error") -> None:
        self._delta = SequenceDelta(index=0, finish_reason=reason, error="why", error_code=code)

    async def status_when(self, *_: Any) -> Any:
        return SimpleNamespace(arithmetic=("cpu",), fingerprint="f")

    async def submit(self, *_: Any, **__: Any) -> Failing:
        return self

    async def __aiter__(self) -> AsyncIterator[list[SequenceDelta]]:
        yield [self._delta]

    def abort(self) -> None:
        """It has ended."""


@pytest.mark.parametrize("code", ["grammar_mismatch", "complex_grammar", "unavailable", None])
def test_no_error_but_a_refusal_by_the_grammar_makes_a_token_a_forged_one(code):
    """A worker's death while it verifies says nothing of the receipt."""
    params = SamplingParams(max_tokens=3, structured_outputs=StructuredOutputs(json_object=True))
    claimed = Claimed(
        prompt=[1, 2], params=params, sequence=0, output=[3, 4, 5], finish_reason="length"
    )
    client: Any = Failing(code)
    found = Replay(client, Terms()).positions(claimed, 3)
    if code == "grammar_mismatch":
        assert asyncio.run(found) == [Place(at, at + 3, None, broken="why") for at in range(3)]
        return
    with pytest.raises(RequestFailed, match="why"):
        asyncio.run(found)


@pytest.mark.parametrize("sample", [None, 1])
@pytest.mark.parametrize("reason", ["error", "abort", "timeout"])
def test_what_was_not_computed_here_is_no_difference(key, reason, sample):
    (one,) = read_receipts(json.dumps(receipt(key)).encode())
    words = {"tokenizer_sha256": "t", "template_sha256": "", "digest": "d"}
    welcome = SimpleNamespace(**words, limits=SimpleNamespace(vocab_size=9))
    llm: Any = SimpleNamespace(welcome=welcome, client=Failing(reason=reason))
    checks = asyncio.run(ModelHere(llm, {}, Terms()).checks(SignedReceipt(one), sample))
    (output,) = (check for check in checks if check.what == "output 0")
    assert (output.standing, "not computed again: why" in output.detail) == ("untold", True)


def test_a_key_is_made_once_and_for_its_owner_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "key.pem"
    made = SigningKey.kept(file)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert SigningKey.kept(file).public == made.public
    assert caplog.records == []
    for mode, word in ((0o640, "readable"), (0o604, "readable"), (0o602, "writable")):
        file.chmod(mode)
        caplog.clear()
        assert SigningKey.kept(file).public == made.public
        (warned,) = caplog.records
        assert (warned.levelname, f"{word} by others" in warned.message) == ("WARNING", True)
    assert [path.name for path in tmp_path.iterdir()] == ["key.pem"]


def test_a_file_without_such_a_key_is_named(tmp_path: Path):
    file = tmp_path / "key.pem"
    file.write_text("nonsense")
    with pytest.raises(StartupError, match="holds no key"):
        SigningKey.kept(file)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    other = X25519PrivateKey.generate()
    file.write_bytes(other.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    with pytest.raises(StartupError, match="another key"):
        SigningKey.kept(file)
    with pytest.raises(StartupError, match="No such file"):
        SigningKey.kept(tmp_path / "none" / "key.pem")
