"""Receipts of a served model, verified by the library, and every kind of tampering found. The
forger here has the server's key: what a signature alone finds is in tests/receipts/test_verify.py.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.cli.main import main
from penstock.llm.asynchronous import AsyncLLM
from penstock.prepare import load_manifest, prepare
from penstock.request.terms import Terms
from penstock_receipts.signing import SigningKey
from penstock_receipts.statement import ids_digest, logprobs_digest, read_receipts
from penstock_receipts.verify import ModelHere, SignedReceipt, Verdict
from testing.serving import Server
from tests.adapter_folders import random_factors, write_peft
from tests.system.test_resumed_streams import RESUMABLE, TOOL

pytestmark = [pytest.mark.timeout(600)]
CHAT = "/v1/chat/completions"
LENGTH = 40
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "ignore_eos": True},
    "seeded": {"temperature": 0.9, "seed": 7, "ignore_eos": True},
    "penalised": {
        "temperature": 0.8,
        "seed": 11,
        "top_p": 0.9,
        "presence_penalty": 1.0,
        "repetition_penalty": 1.2,
        "logit_bias": {"11": 2.0},
    },
    "held": {
        "temperature": 1.1,
        "seed": 3,
        "min_p": 0.02,
        "min_tokens": 30,
        "bad_words": [" the"],
        "logprobs": True,
        "top_logprobs": 2,
    },
    "two": {"temperature": 1.0, "n": 2, "stream": True},
    "stopped": {"temperature": 0, "stop": ["is"]},
    "adapted": {"temperature": 0, "model": "mine", "ignore_eos": True},
    "json": {"temperature": 0.7, "seed": 5, "response_format": {"type": "json_object"}},
    "tool": {"temperature": 0.9, "seed": 2, "tools": [TOOL], "tool_choice": "required"},
}
"""What is asked for, beside LENGTH tokens."""
ALONE = [name for name in REQUESTS if name != "adapted"]
ADAPTED = {"model.layers.0.self_attn.q_proj": (576, 576)}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[dict[str, bytes], SigningKey]]:
    """The server's replies by what was asked, and its key."""
    with tempfile.TemporaryDirectory() as folder:
        file, adapter = Path(folder) / "key.pem", Path(folder) / "adapter"
        write_peft(adapter, random_factors(ADAPTED, rank=4, seed=1, size=0.5))
        arguments = ("--receipt-key-file", str(file), "--num-kv-blocks", "256")
        adapters = ("--enable-lora", "--lora-modules", f"mine={adapter}")
        with Server(*arguments, *adapters, "--max-model-len", "512") as server:
            replies = {name: ask(server, **fields) for name, fields in REQUESTS.items()}
            replies |= resumed(server)
            yield replies, SigningKey.kept(file)


def resumed(server: Server) -> dict[str, bytes]:
    """A stream of two choices, one of which ends early, and what it goes on with from each id."""
    fields = {**REQUESTS["two"], **RESUMABLE, "seed": 9, "stop": ["ir"], "max_tokens": 24}
    whole = ask(server, **fields)
    ids = [line[4:].decode() for line in whole.split(b"\n") if line.startswith(b"id: ")]
    assert any("e-" in each or each.endswith("e") for each in ids)
    rest = {f"from {id}": ask(server, last=id, **fields) for id in ids}
    return {"resumable": whole, **rest}


def ask(server: Server, last: str | None = None, **fields: Any) -> bytes:
    import httpx

    body = {
        "messages": [{"role": "user", "content": "Tell me what a weir is."}],
        "max_tokens": LENGTH,
        **fields,
    }
    headers = {"x-penstock-receipt": "logprobs"}
    if last is not None:
        headers["last-event-id"] = last
    answer = httpx.post(server.url + CHAT, json=body, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.content


class Verifier:
    """A library of its own, which computes what receipts say."""

    def __init__(self, loop: asyncio.AbstractEventLoop, llm: AsyncLLM, here: ModelHere) -> None:
        self._loop = loop
        self.llm = llm
        self._here = here

    def verdict(self, data: bytes, sample: int | None = None) -> Verdict:
        """As `penstock verify` finds it."""
        (receipt,) = read_receipts(data)
        signed = SignedReceipt(receipt)
        checks = list(signed.checks())
        if all(check.standing == "equal" for check in checks):
            checks += self._loop.run_until_complete(self._here.checks(signed, sample))
        return Verdict.of(signed.statement.id, checks)

    def differing(self, data: bytes, sample: int | None = None) -> dict[str, str]:
        """What differs, and how."""
        verdict = self.verdict(data, sample)
        assert verdict.standing == "differs", verdict
        return {c.what: c.detail for c in verdict.checks if c.standing == "differs"}


@pytest.fixture(scope="module")
def verifier(served) -> Iterator[Verifier]:
    (receipt,) = read_receipts(served[0]["greedy"])
    settings = {**SignedReceipt(receipt).settings(), "num_kv_blocks": 256, "threads": 1}

    async def start() -> tuple[AsyncLLM, ModelHere]:
        llm = AsyncLLM(**settings)
        await llm.start()
        return llm, ModelHere(llm, await llm.client.hash_weights(), Terms())

    with asyncio.Runner() as runner:
        llm, here = runner.run(start())
        try:
            yield Verifier(runner.get_loop(), llm, here)
        finally:
            runner.run(llm.close())


@pytest.mark.parametrize("sample", [None, 5])
@pytest.mark.parametrize("name", ALONE)
def test_an_honest_answer_is_equal(served, verifier, name, sample):
    verdict = verifier.verdict(served[0][name], sample)
    assert verdict.standing == "equal", verdict
    what = [check.what for check in verdict.checks]
    assert what[:2] == ["signature", "tokens"]
    assert {"tokenizer", "template", "weights", "arithmetic", "output 0"} <= set(what)
    assert ("output 1" in what) == (name == "two")


def test_a_stream_that_goes_on_has_the_receipt_of_all_of_it(served, verifier):
    replies = served[0]
    assert verifier.verdict(replies["resumable"]).standing == "equal"
    again = {name: timeless(data) for name, data in replies.items() if name[:5] == "from "}
    assert len(again) > 3, "tokens of several steps may come as one event"
    for name, found in again.items():
        assert found == timeless(replies["resumable"]), name


def timeless(data: bytes) -> tuple[dict[str, Any], Any]:
    """A receipt's statement and tokens, but not when it was signed."""
    (receipt,) = read_receipts(data)
    return {**json.loads(receipt.statement), "created": None}, receipt.tokens


Change = Callable[[dict[str, Any], dict[str, Any]], None]
"""Changes a statement and its tokens."""


def forged(served: Any, name: str, change: Change) -> bytes:
    """The receipt with a changed statement and tokens, signed by the server's key as if they were
    true."""
    replies, key = served
    (receipt,) = read_receipts(replies[name])
    said, tokens = json.loads(receipt.statement), msgspec.to_builtins(receipt.tokens)
    change(said, tokens)
    for what in ("prompts", "outputs"):
        for claim, ids in zip(said[what], tokens[what], strict=True):
            claim |= {"tokens": len(ids), "sha256": ids_digest(ids)}
    for claim, logprobs in zip(said["outputs"], tokens["logprobs"], strict=True):
        claim["logprobs_sha256"] = logprobs_digest(logprobs)
    text = json.dumps(said)
    return json.dumps(
        {
            "statement": text,
            "signature": key.sign(text),
            "key": msgspec.to_builtins(key.public),
            "tokens": tokens,
        }
    ).encode()


def token(at: int) -> Change:
    def change(said: dict[str, Any], tokens: dict[str, Any]) -> None:
        tokens["outputs"][0][at] = (tokens["outputs"][0][at] + 1) % 49_152

    return change


def unknown(said: dict[str, Any], tokens: dict[str, Any]) -> None:
    tokens["outputs"][0][3] = 50_000


def cut(said: dict[str, Any], tokens: dict[str, Any]) -> None:
    tokens["outputs"][0].pop()
    tokens["logprobs"][0].pop()


def longer(said: dict[str, Any], tokens: dict[str, Any]) -> None:
    tokens["outputs"][0].append(28)
    tokens["logprobs"][0].append(-0.1)


def ends(reason: str) -> Change:
    def change(said: dict[str, Any], tokens: dict[str, Any]) -> None:
        said["outputs"][0]["finish_reason"] = reason

    return change


def without_one(said: dict[str, Any], tokens: dict[str, Any]) -> None:
    for lists in (said["outputs"], tokens["outputs"], tokens["logprobs"]):
        lists.pop()


def swapped(said: dict[str, Any], tokens: dict[str, Any]) -> None:
    for lists in (tokens["outputs"], tokens["logprobs"]):
        lists.reverse()


def logprob(at: int) -> Change:
    """The least that a 32-bit float can be more."""

    def change(said: dict[str, Any], tokens: dict[str, Any]) -> None:
        (whole,) = struct.unpack("<i", struct.pack("<f", tokens["logprobs"][0][at]))
        (tokens["logprobs"][0][at],) = struct.unpack("<f", struct.pack("<i", whole + 1))

    return change


def computed_with(said: dict[str, Any], tokens: dict[str, Any]) -> None:
    said["computing"]["fingerprint"] = "0" * 64


def prompt(said: dict[str, Any], tokens: dict[str, Any]) -> None:
    tokens["prompts"][0][-4] = 1000


def params(**given: Any) -> Change:
    def change(said: dict[str, Any], tokens: dict[str, Any]) -> None:
        for name, value in given.items():
            (said["prompts"][0] if name in said["prompts"][0] else said["params"])[name] = value

    return change


def model(**given: Any) -> Change:
    def change(said: dict[str, Any], tokens: dict[str, Any]) -> None:
        said["model"] |= given

    return change


@pytest.mark.parametrize(
    ("name", "change", "what", "words"),
    [
        ("greedy", token(0), "output 0", "token 0 differs"),
        ("greedy", token(17), "output 0", "token 17 differs"),
        ("seeded", token(LENGTH - 1), "output 0", f"token {LENGTH - 1} differs"),
        ("two", token(5), "output 0", "token 5 differs"),
        ("greedy", unknown, "output 0", "is 50000; the model has 0 to 49151"),
        ("greedy", cut, "output 0", f"token {LENGTH - 1} differs: the receipt has the end"),
        ("stopped", longer, "output 0", "computed is the end"),
        ("greedy", ends("stop"), "output 0", "it ends for length, and the receipt says stop"),
        ("stopped", ends("length"), "output 0", "it ends for stop, and the receipt says length"),
        ("two", without_one, "tokens", "1 outputs were signed, and 2 of each prompt asked for"),
        ("two", swapped, "output 0", "differs"),
        ("greedy", logprob(0), "output 0", "the log-probability of token 0 differs"),
        ("seeded", logprob(17), "output 0", "the log-probability of token 17 differs"),
        ("tool", logprob(2), "output 0", "the log-probability of token 2 differs"),
        ("tool", token(4), "output 0", "token 4 differs"),
        ("greedy", prompt, "output 0", "differs"),
        ("seeded", params(seed=8), "output 0", "differs"),
        ("seeded", params(temperature=0.5), "output 0", "differs"),
        ("seeded", params(top_p=0.05), "output 0", "differs"),
        ("greedy", params(logit_bias={"28": 50.0}), "output 0", "differs"),
        ("penalised", params(presence_penalty=0.0), "output 0", "differs"),
        ("penalised", params(logit_bias={"28": 50.0}), "output 0", "differs"),
        ("held", params(min_p=0.5), "output 0", "differs"),
        ("penalised", params(repetition_penalty=1.0), "output 0", "differs"),
        ("greedy", params(min_tokens=0, max_tokens=LENGTH + 5), "output 0", "the end"),
        ("json", params(structured_outputs=None), "output 0", "differs"),
        ("greedy", model(weights={"w.gguf": "0" * 64}), "weights", "w.gguf"),
        ("greedy", model(template="0" * 64), "template", "0000000000000000; here"),
        ("greedy", model(tokenizer="0" * 64), "tokenizer", "0000000000000000; here"),
        ("greedy", model(adapter="0" * 64), "adapter", "here none"),
        ("greedy", model(digest="0" * 64), "model", "0000000000000000; here"),
        ("greedy", computed_with, "arithmetic", "fingerprint 0000"),
    ],
)  # fmt: skip
def test_tampering_is_found_and_named(served, verifier, name, change, what, words):
    found = verifier.differing(forged(served, name, change))
    assert words in found[what], found
    alone = {what, "output 1"} if change is swapped else {what}
    assert set(found) == alone, "nothing else is blamed"


def test_samples_find_it_too(served, verifier):
    found = verifier.differing(forged(served, "seeded", params(seed=8)), sample=LENGTH)
    assert f"of {LENGTH} sampled differ" in found["output 0"]
    found = verifier.differing(forged(served, "seeded", logprob(17)), sample=LENGTH)
    assert "of token 17 differs" in found["output 0"]
    assert f"1 of {LENGTH} sampled differ" in found["output 0"]
    # Behind a token that its grammar forbids, nothing can be sampled.
    found = verifier.differing(forged(served, "tool", token(4)), sample=LENGTH)
    assert "token 4 differs" in found["output 0"]


def other_class(said: dict[str, Any], tokens: dict[str, Any]) -> None:
    said["computing"] |= {"arithmetic": ["cpu of another kind"], "fingerprint": "0"}


def test_on_another_class_log_probabilities_are_compared(served, verifier):
    verdict = verifier.verdict(forged(served, "seeded", other_class))
    assert verdict.standing == "untold"
    told = {check.what: check for check in verdict.checks}
    assert "bits may differ" in told["arithmetic"].detail
    assert "differ by 0 at most" in told["output 0"].detail  # It is this machine, after all.

    def lied(said: dict[str, Any], tokens: dict[str, Any]) -> None:
        other_class(said, tokens)
        tokens["logprobs"][0][3] -= 1.5

    found = verifier.differing(forged(served, "seeded", lied))
    assert "by 1.5 at most, at token 3; the bound is 1" in found["output 0"]

    def unlikely(said: dict[str, Any], tokens: dict[str, Any]) -> None:
        other_class(said, tokens)
        tokens["outputs"][0][9] = 40_000

    assert "token 9" in verifier.differing(forged(served, "greedy", unlikely))["output 0"]


def test_the_command_names_other_weights(served, tmp_path, capsys):
    """A file of weights in which some bytes are others."""
    replies, _ = served
    (tmp_path / "reply.json").write_bytes(replies["greedy"])
    (weights,) = load_manifest(prepare("smollm2-135m")).weights.files
    other = tmp_path / "other.gguf"
    shutil.copyfile(weights, other)
    with other.open("r+b") as file:
        file.seek(-20_000_000, 2)
        file.write(bytes(200_000))
    arguments = ["verify", str(tmp_path / "reply.json"), "--num-kv-blocks", "256"]
    assert main([*arguments, "--model", str(other), "--cache-dir", str(tmp_path / "cache")]) == 1
    told = capsys.readouterr().out
    assert "NOT what the receipt says" in told
    assert "weights      DIFFERS" in told
    assert "output 0     DIFFERS" in told


def test_the_command_applies_an_adapter(served, verifier, tmp_path, capsys):
    reply = served[0]["adapted"]
    assert "here none" in verifier.differing(reply)["adapter"]
    (tmp_path / "reply.json").write_bytes(reply)
    adapter = write_peft(tmp_path / "adapter", random_factors(ADAPTED, rank=4, seed=1, size=0.5))
    arguments = ["verify", str(tmp_path / "reply.json"), "--num-kv-blocks", "256", "--json"]
    assert main([*arguments, "--adapter", str(adapter)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [check["standing"] for check in told["checks"]] == ["equal"] * 8
