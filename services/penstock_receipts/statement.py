"""What a receipt says. The statement is JSON text that is signed as it stands, so it survives being
parsed and written by others; token ids are sent along with it, and the statement has their
digests."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec

from penstock.errors import InvalidRequest
from penstock.request.receipt import Digest, Receipt, TreePlace
from penstock.request.sampling_params import MAX_N, SamplingParams

VERSION = 1
MAX_BYTES = 64 * 2**20
"""Largest receipt, or reply with one, that is read."""
RECEIPT_PLACES = (
    (),
    ("penstock_receipt",),
    ("response", "penstock_receipt"),
    ("response", "body", "penstock_receipt"),
)
"""Where receipts are: alone, in a reply, in the last event of a response's stream, and in a line of
a batch's output."""
UNTOLD = (
    "output_kind",
    "logprobs",
    "prompt_logprobs",
    "seed",
    "max_tokens",
    "min_indentation",
)
"""Sampling parameters that change no token, that each prompt has by itself, or that only answers
without receipts have."""


class ModelClaim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model. digest: Penstock's own, of config, tokenizer, template and samples of the weights.
    tokenizer, template, weights: SHA-256, in hex; weights: of each file by its name, null where
    they could not be read in time.  adapter: digest of the adapter that is applied; empty: none."""

    name: str
    hub_id: str
    digest: str
    tokenizer: str
    template: str
    weights: dict[str, str] | None
    adapter: str = ""


class ComputingClaim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How it was computed. fingerprint: of everything but the request that bits depend on; null if
    it is unknown.  arithmetic: the same in words, without the model.
    settings: those that change bits, where they aren't the defaults."""

    fingerprint: str | None
    arithmetic: list[str]
    settings: dict[str, Any]


class PromptClaim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt. tokens: their number.  sha256: see `ids_digest`.  seed: the one that was used.
    max_tokens: of each of its outputs."""

    tokens: int
    sha256: str
    seed: int
    max_tokens: int


class OutputClaim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A choice. prompt: index of its prompt.  sequence: its number among that prompt's n.
    logprobs_sha256: see `logprobs_digest`; null where they weren't asked for."""

    prompt: int
    sequence: int
    tokens: int
    sha256: str
    finish_reason: str | None
    logprobs_sha256: str | None = None


class Statement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is signed. id: of the reply.  created: when, Unix time, seconds.  penstock: the version.
    params: SamplingParams, but for what each prompt has."""

    receipt: Literal[1] = 1
    id: str
    created: int
    penstock: str
    model: ModelClaim
    computing: ComputingClaim
    params: dict[str, Any]
    prompts: list[PromptClaim]
    outputs: list[OutputClaim]

    def sampling(self) -> list[SamplingParams]:
        """All parameters of each prompt. Raises InvalidRequest."""
        known = set(SamplingParams.__struct_fields__) - set(UNTOLD)
        unknown = sorted(self.params.keys() - known)
        if unknown:
            raise InvalidRequest(f"the receipt has the parameter {unknown[0][:40]!r}, unknown here")
        try:
            return [
                msgspec.convert(
                    {**self.params, "seed": each.seed, "max_tokens": each.max_tokens},
                    SamplingParams,
                    str_keys=True,
                )
                for each in self.prompts
            ]
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the receipt's params are wrong: {error}") from None


class TreeStatement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is signed of a batch. batch: its id.  created: Unix time, seconds.  size: receipts.
    root: of their tree, SHA-256 in hex."""

    receipt_tree: Literal[1] = 1
    batch: str
    created: int
    size: Annotated[int, msgspec.Meta(ge=1)]
    root: Digest


def tree_statement(place: TreePlace) -> TreeStatement:
    """What was signed of the receipt's batch. Raises InvalidRequest."""
    try:
        said = msgspec.json.decode(place.statement, type=TreeStatement)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"what the receipt says of its batch is wrong: {error}") from None
    _refuse_twice(place.statement)
    return said


def ids_digest(ids: Sequence[int]) -> str:
    """SHA-256, in hex, of token ids as unsigned 32-bit numbers, little-endian."""
    return _digest(array("I", ids))


def logprobs_digest(logprobs: Sequence[float]) -> str:
    """SHA-256, in hex, of log-probabilities as 32-bit floats, little-endian."""
    return _digest(array("f", logprobs))


def _digest(numbers: array[Any]) -> str:
    if sys.byteorder == "big":
        numbers.byteswap()
    return hashlib.sha256(numbers.tobytes()).hexdigest()


def told_params(params: SamplingParams) -> dict[str, Any]:
    """Parameters as a Statement has them."""
    said: dict[str, Any] = msgspec.to_builtins(params, str_keys=True)
    return {name: value for name, value in said.items() if name not in UNTOLD}


def read_receipts(data: bytes) -> list[Receipt]:
    """The receipts in a file's contents: a receipt, a reply that has one, or a stream of events or
    lines of which some do. Raises InvalidRequest that says what is wrong."""
    if len(data) > MAX_BYTES:
        raise InvalidRequest(f"the receipt has more than {MAX_BYTES >> 20} MiB, the maximum")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("the receipt is no UTF-8 text") from None
    objects, given = 0, []
    for found in _objects(text):
        objects += 1
        if (inner := _receipt_in(found)) is not None:
            given.append(inner)
    if not objects:
        raise InvalidRequest("the receipt is no JSON object, and no lines or events of them")
    if not given:
        raise InvalidRequest(
            "there is no receipt in it: expected `statement`, `signature` and `key`, or a reply"
            " with `penstock_receipt`"
        )
    return [_converted(each) for each in given]


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yields the whole text, if it is an object, or each of its lines that begins as one. Raises
    InvalidRequest for such a line that is none: what was damaged isn't passed over."""
    whole = _parsed(text)
    if whole is not None:
        yield whole
        return
    # By line feeds alone: JSON's strings may hold what Python, too, takes for the end of a line.
    for number, line in enumerate(io.StringIO(text, newline="\n"), start=1):
        said = line.removeprefix("data:").strip()
        if said.startswith("{"):
            found = _parsed(said)
            if found is None:
                raise InvalidRequest(f"line {number} of the receipt is no JSON object")
            yield found


def read_statement(receipt: Receipt) -> Statement:
    """What a receipt says. Raises InvalidRequest, also for another version."""
    said = _parsed(receipt.statement)
    if said is None:
        raise InvalidRequest("the receipt's statement is no JSON object")
    if said.get("receipt") != VERSION:
        raise InvalidRequest(
            f"the receipt is of version {str(said.get('receipt'))[:20]}; this Penstock reads"
            f" {VERSION}"
        )
    try:
        statement = msgspec.convert(said, Statement)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidRequest(f"the receipt's statement is wrong: {error}") from None
    _refuse_twice(receipt.statement)
    seen: set[tuple[int, int]] = set()
    for output in statement.outputs:
        where = output.prompt, output.sequence
        if not 0 <= output.prompt < len(statement.prompts):
            raise InvalidRequest(
                f"the receipt has an output of prompt {output.prompt}, which it hasn't"
            )
        if not 0 <= output.sequence < MAX_N:
            raise InvalidRequest(
                f"the receipt has the sequence {output.sequence}; allowed are 0 to {MAX_N - 1}"
            )
        if where in seen:
            raise InvalidRequest(f"the receipt has sequence {where[1]} of prompt {where[0]} twice")
        seen.add(where)
    return statement


def _refuse_twice(text: str) -> None:
    """Raises InvalidRequest if an object in what is signed has a name twice: then one reader may
    take the first value and another the last, and both were signed. text: JSON."""

    def once(pairs: list[tuple[str, Any]]) -> None:
        names = set()
        for name, _ in pairs:
            if name in names:
                raise InvalidRequest(f"the receipt's statement has {name[:40]!r} twice")
            names.add(name)

    try:
        json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the receipt's statement is wrong: {error}") from None


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _receipt_in(found: dict[str, Any]) -> dict[str, Any] | None:
    for path in RECEIPT_PLACES:
        inner: Any = found
        for name in path:
            inner = inner.get(name) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and "statement" in inner:
            return inner
    return None


def _converted(found: dict[str, Any]) -> Receipt:
    try:
        return msgspec.convert(found, Receipt)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the receipt is wrong: {error}") from None
