"""Receipts by somebody who wishes `penstock verify` ill: files that are huge, deep or of wrong
types, statements that two readers would read differently, and names that give orders to a
terminal. All that is signed here is signed with a key of the forger's own."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.cli.main import main
from penstock.errors import InvalidRequest
from penstock_receipts.command import MAX_SHOWN, shown
from penstock_receipts.signing import SigningKey
from penstock_receipts.statement import logprobs_digest, read_receipts
from penstock_receipts.tree import ReceiptTree, leaf_digest
from penstock_receipts.verify import SignedReceipt, pinned_key
from tests.receipts.test_verify import STATEMENT

pytestmark = pytest.mark.timeout(60)
KEY = SigningKey(Ed25519PrivateKey.generate())
TOKENS = {"prompts": [[1, 2]], "outputs": [[3]]}
DEEP = "[" * 50_000 + "]" * 50_000


def receipt(text: str | None = None, **changes: Any) -> dict[str, Any]:
    text = text or json.dumps(STATEMENT)
    return {
        "statement": text,
        "signature": KEY.sign(text),
        "key": msgspec.to_builtins(KEY.public),
        "tokens": TOKENS,
        **changes,
    }


def in_batch(leaves: int, at: int, **changes: Any) -> dict[str, Any]:
    """A receipt with its place among so many others."""
    tokens = {"tokens": changes.pop("tokens")} if "tokens" in changes else {}
    found = receipt(changes.pop("text", None), **tokens)
    each = [leaf_digest(f"other {number}") for number in range(leaves)]
    each[at] = leaf_digest(found["statement"])
    tree = ReceiptTree(each)
    said = {"receipt_tree": 1, "batch": "b", "created": 1, "size": leaves, "root": tree.root.hex()}
    text = json.dumps(said | changes.pop("said", {}))
    place = {
        "statement": text,
        "signature": KEY.sign(text),
        "key": found["key"],
        "index": at,
        "path": [node.hex() for node in tree.path(at)],
    }
    return {**found, "batch": place | changes}


def standings(found: dict[str, Any]) -> dict[str, str]:
    (one,) = read_receipts(json.dumps(found).encode())
    return {check.what: check.standing for check in SignedReceipt(one).checks()}


def looked_at(data: bytes) -> None:
    """All that `penstock verify` does before it starts an engine."""
    for one in read_receipts(data):
        signed = SignedReceipt(one)
        list(signed.checks())
        signed.claims()
        signed.settings()


def refused(data: str | dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        looked_at((data if isinstance(data, str) else json.dumps(data)).encode())


# ---- what is signed


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ('"params": {', '"params": {"temperature": 0.0}, "params": {', "params"),
        ('"seed": 7', '"seed": 8, "seed": 7', "seed"),
        ('"receipt": 1', '"receipt": 2, "receipt": 1', "receipt"),
        ('"settings": {}', '"settings": {"dtype": "float16", "dtype": "float32"}', "dtype"),
    ],
)
def test_nothing_signed_is_said_twice(old: str, new: str, name: str) -> None:
    """Some readers take the first value, others the last."""
    text = json.dumps(STATEMENT).replace(old, new, 1)
    assert msgspec.json.decode(text)
    refused(receipt(text), f"has '{name}' twice")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"outputs": 2 * STATEMENT["outputs"]}, "sequence 0 of prompt 0 twice"),
        ({"outputs": [STATEMENT["outputs"][0] | {"sequence": -1}]}, "sequence -1; allowed"),
        ({"outputs": [STATEMENT["outputs"][0] | {"sequence": 2**63}]}, "allowed are 0 to 127"),
        ({"outputs": [STATEMENT["outputs"][0] | {"tokens": "1"}]}, "Expected `int`"),
        ({"outputs": {}}, "Expected `array`"),
        ({"prompts": [STATEMENT["prompts"][0] | {"seed": 2**64}]}, "seed"),
        ({"prompts": [STATEMENT["prompts"][0] | {"seed": True}]}, "Expected `int`"),
        ({"params": STATEMENT["params"] | {"prompt_logprobs": 20}}, "'prompt_logprobs'"),
        ({"params": STATEMENT["params"] | {"logit_bias": {"1": "x"}}}, "logit_bias"),
        ({"params": STATEMENT["params"] | {"n": 10**9}}, "n must be"),
        ({"receipt": True}, "the receipt"),
        ({"receipt": "1" * 100_000}, "version 1{20};"),
        ({"created": 1.5}, "Expected `int`"),
    ],
)
def test_a_statement_of_wrong_types_is_refused(change: dict[str, Any], words: str) -> None:
    refused(receipt(json.dumps(STATEMENT | change)), words)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(STATEMENT).replace('"d"', DEEP, 1),
        json.dumps(STATEMENT).replace('"created": 1', '"created": NaN'),
        json.dumps(STATEMENT).replace('"created": 1', '"created": ' + "1" * 6000),
        json.dumps(STATEMENT).replace('"created": 1', '"created": 1e999'),
        json.dumps(STATEMENT).replace('"cmpl-1"', r'"\ud800 alone"'),
        "null",
        "",
    ],
    ids=["deep", "NaN", "long number", "infinity", "half a character", "null", "empty"],
)
def test_a_statement_that_is_no_json_is_refused(text: str) -> None:
    refused(receipt() | {"statement": text, "signature": KEY.sign(text)}, "statement")


# ---- tokens, signatures and keys


@pytest.mark.parametrize(
    "tokens",
    [
        {"prompts": [[1, -2]], "outputs": [[3]]},
        {"prompts": [[1, 2]], "outputs": [[2**31]]},
        {"prompts": [[1, 2]], "outputs": [[3.5]]},
        {"prompts": [[1, 2]], "outputs": [["3"]]},
        {"prompts": [[1, 2]], "outputs": [[None]]},
        {"prompts": {}, "outputs": []},
        [],
    ],
)
def test_token_ids_that_are_none_are_refused(tokens: Any) -> None:
    refused(receipt(tokens=tokens), "the receipt is wrong")


@pytest.mark.parametrize("signature", ["é", "A", "AAAA", "====", "\n" * 10, "A" * 100_000])
def test_a_signature_that_is_none_fits_nothing(signature: str) -> None:
    assert standings(receipt(signature=signature))["signature"] == "differs"


@pytest.mark.parametrize("key", ["é", "", "A" * 43, "AAAA", "\0"])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    refused(receipt(key={"id": "0" * 16, "public_key": key}), "no key of Ed25519")


@pytest.mark.parametrize("text", ['{"a": ' + DEEP, '{"id": "x", "a": ' + DEEP, "é", "A" * 5000])
def test_a_pinned_key_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--key is neither"):
        pinned_key(text)
    file = tmp_path / "reply.json"
    file.write_text(json.dumps(receipt()))
    assert main(["verify", str(file), "--key", text]) == 2


def test_a_model_that_is_not_there_is_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "reply.json"
    file.write_text(json.dumps(receipt()))
    assert main(["verify", str(file), "--model", str(tmp_path / "none.gguf")]) == 3
    assert "none.gguf" in capsys.readouterr().err


def test_a_signature_stands_for_one_kind_of_statement() -> None:
    """What is signed of a batch is no receipt, and a receipt's statement says nothing of one."""
    whole = in_batch(3, 1)
    refused(receipt(whole["batch"]["statement"]), "version None")
    text = json.dumps(STATEMENT)
    place = whole["batch"] | {"statement": text, "signature": KEY.sign(text)}
    refused(whole | {"batch": place}, "of its batch is wrong")


# ---- the tree of a batch


@pytest.mark.parametrize("leaves", [1, 2, 3, 6, 7])
def test_a_place_in_a_tree_of_any_size(leaves: int) -> None:
    for index in range(leaves):
        assert standings(in_batch(leaves, index))["batch"] == "equal"
        for other in range(leaves + 2):
            if other != index:
                assert standings(in_batch(leaves, index, index=other))["batch"] == "differs"


@pytest.mark.parametrize("size", [1, 2, 4, 5, 6, 8, 2**40, 2**63], ids=str)
def test_a_tree_is_as_large_as_was_signed(size: int) -> None:
    """Of 7, the last has two digests beside it: it isn't the last of 8, or of few, so that what was
    left out would not be missed."""
    assert standings(in_batch(7, 6, said={"size": size}))["batch"] == "differs"


def test_an_inner_node_is_no_receipt() -> None:
    """Its two halves, as a statement, would have a digest of another kind."""
    left, right = leaf_digest("a"), leaf_digest("b")
    tree = ReceiptTree([left, right])
    for text in ((left + right).decode("latin-1"), left.hex() + right.hex()):
        assert leaf_digest(text) != tree.root


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"path": ["0" * 64] * 900_000}, "length <= 64"),
        ({"path": ["0" * 63]}, "matching regex"),
        ({"path": ["0" * 64 + "\n"]}, "matching regex"),
        ({"path": ["A" * 64]}, "matching regex"),
        ({"index": -1}, ">= 0"),
        ({"index": 1.5}, "Expected `int`"),
        ({"said": {"size": 0}}, ">= 1"),
        ({"said": {"root": "0" * 63}}, "matching regex"),
        ({"said": {"more": 1}}, "unknown field"),
    ],
)
def test_a_place_that_is_none_is_refused(change: dict[str, Any], words: str) -> None:
    refused(in_batch(7, 3, **change), words)


def test_another_key_signs_no_batch_of_this_one() -> None:
    other = SigningKey(Ed25519PrivateKey.generate())
    whole = in_batch(7, 3)
    place = whole["batch"] | {
        "signature": other.sign(whole["batch"]["statement"]),
        "key": msgspec.to_builtins(other.public),
    }
    assert standings(whole | {"batch": place})["batch"] == "differs"


# ---- every field


def whole() -> dict[str, Any]:
    """A receipt with all that one may have; what is signed is an object."""
    logprobs = [[-0.5]]
    said = json.loads(json.dumps(STATEMENT))
    said["model"] |= {"weights": {"w.gguf": "0" * 64}, "adapter": ""}
    said["computing"]["settings"] = {"dtype": "auto"}
    said["params"] |= {"stop": ["a"], "logit_bias": {"5": 1.0}}
    said["outputs"][0]["logprobs_sha256"] = logprobs_digest(logprobs[0])
    text = json.dumps(said)
    return in_batch(5, 2, text=text, tokens={**TOKENS, "logprobs": logprobs})


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all values in it, in texts that are signed, too."""
    if path and path[-1] == "statement":
        value = json.loads(value)
    if isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in pairs:
            yield from leaves(each, (*path, name))
    else:
        yield path


def other(value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return ("1" if value[:1] == "0" else "0") + value[1:]
        case list():
            return [1]
        case dict():
            return {"1": 1}
    return 1


def changed(value: Any, path: tuple[Any, ...]) -> Any:
    if not path:
        return other(value)
    name, *rest = path
    if name == "statement":
        inner = changed(json.loads(value[name]), tuple(rest))
        return {**value, name: json.dumps(inner)}
    found = dict(value) if isinstance(value, dict) else list(value)
    found[name] = changed(value[name], tuple(rest))
    return found


@pytest.mark.parametrize("path", list(leaves(whole())), ids=lambda path: ".".join(map(str, path)))
def test_no_field_of_a_receipt_can_be_another(path: tuple[Any, ...]) -> None:
    """Nobody without the key can change one. What the key's owner may lie about is in
    tests/system/test_receipts.py."""
    honest, forged = whole(), changed(whole(), path)
    assert honest != forged
    assert set(standings(honest).values()) == {"equal"}
    try:
        assert "differs" in standings(forged).values()
    except InvalidRequest:
        pass  # It says what is wrong, before anything is computed.


# ---- files


def test_a_damaged_line_is_not_passed_over() -> None:
    lines = [json.dumps({"penstock_receipt": receipt()}) for _ in range(3)]
    assert len(read_receipts("\n".join(lines).encode())) == 3
    refused("\n".join([lines[0], lines[1][:-5], lines[2]]), "line 2 of the receipt is no JSON")


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\u2029"])
def test_text_with_other_line_ends_is_one_line(end: str) -> None:
    """JSON's strings may hold them as they are, and a batch's output does."""
    said = {"choices": [{"text": f"one{end}two"}], "penstock_receipt": receipt()}
    line = msgspec.json.encode({"response": {"body": said}})
    assert end.encode() in line
    assert len(read_receipts(line + b"\n" + line + b"\n")) == 2


def test_many_lines_without_receipts_are_read_soon() -> None:
    text = "{}\n" * 1_000_000 + json.dumps(receipt())
    assert len(read_receipts(text.encode())) == 1


HOSTILE = "x: equal\n  signature    equal    \x1b[2J\x1b]0;mine\x07\u202e" + "y" * 100_000
Wrong = Callable[[], dict[str, Any]]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: receipt(json.dumps(STATEMENT | {"id": HOSTILE}), signature="AAAA"),
        lambda: receipt(json.dumps(STATEMENT | {HOSTILE: 1})),
        lambda: receipt(json.dumps(STATEMENT | {"params": {HOSTILE: 1}})),
        lambda: in_batch(2, 0, said={"batch": HOSTILE}),
    ],
    ids=["id", "field", "parameter", "batch"],
)
def test_no_name_gives_orders_to_a_terminal(
    wrong: Wrong, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = wrong()
    if "batch" in found:
        found["tokens"] = None  # Nothing is computed.
    file = tmp_path / "reply.json"
    file.write_text(json.dumps(found))
    assert main(["verify", str(file), "--model", "none"]) in (1, 2, 3)
    told = "".join(capsys.readouterr())
    lines = told.splitlines()
    assert all(each.isprintable() for each in lines)
    assert not any(line.strip() == "signature    equal" for line in lines)
    assert len(told) < 4 * MAX_SHOWN


def test_what_is_shown_is_one_short_line() -> None:
    assert shown("a\nb\x1b\u202eé") == "a?b??é"
    assert shown("a" * 10_000) == "a" * MAX_SHOWN + "…"


def test_random_damage_never_ends_in_an_unnamed_error() -> None:
    """A reply in which any byte is another."""
    data = json.dumps({"penstock_receipt": in_batch(5, 2)}).encode()
    names = 0
    for at in range(0, len(data), 7):
        for other in (0x22, 0x5C, 0x7B, 0x00, 0xFF, 0x39):
            damaged = data[:at] + bytes([other]) + data[at + 1 :]
            try:
                looked_at(damaged)
            except InvalidRequest:
                names += 1
    assert names > 100


def test_base64_of_a_key_is_read_strictly() -> None:
    raw = base64.b64decode(KEY.public.public_key)
    text = base64.b64encode(raw).decode()
    assert pinned_key(text) == pinned_key(f" {text}\n") == KEY.public
    with pytest.raises(InvalidRequest):
        pinned_key(text[:20] + "\n" + text[20:])
