"""Answers that can be had again: of a stream that broke off, the rest; of a request that is sent
again with its Idempotency-Key, the same answer.

No gateway remembers anything. An answer depends on its request alone, so what is needed is the
request, which comes again, and what it left to chance, which each event's id holds: the seed, the
answer's id and its time. With these any gateway has the answer computed again, or is given it by an
engine core that has gone on with it, and sends what follows the event. What the server adds to
the request (the prompt's token ids, defaults of sampling, contents of media that were named by
address) may be another by then, so ids also hold a digest of all of it; and engine cores may
compute differently, so they name what computed the answer.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from array import array
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from penstock.client.emitted import KnownTokens
from penstock.errors import InvalidRequest
from penstock.protocol.common import Claim
from penstock_gateway.generate.chunked_reply import Pace, parts_of
from penstock_gateway.generate.computing import fingerprint_of_key, fingerprint_of_stream
from penstock_gateway.generate.event_ids import (
    Origin,
    OriginWriter,
    read_id,
    written_place,
    wrong_id,
)
from penstock_gateway.request.fields import RequestFields
from penstock_gateway.request.tokenising import off_the_loop

if TYPE_CHECKING:
    from penstock.client import EngineClient, SequenceDelta
    from penstock.media.item_names import PromptMedia
    from penstock.request.sampling_params import SamplingParams
    from penstock_gateway.generate.batch import GenerationBatch, Withdrawal
    from penstock_gateway.generate.reply import (
        PlainChunk,
        ReplyFormat,
        ReplyHead,
        UsageField,
        UsageInfo,
    )
    from penstock_gateway.request.fields import TermsHeaders

MAX_CHOICES = 32
"""Choices of a stream whose events have ids: an id says how far each of them is."""

LONGEST_KEY = 255
"""Characters of an Idempotency-Key."""

Fields = TypeVar("Fields", bound=RequestFields)


class AnswerBasis(NamedTuple):
    """What the server has made of a request. prompt_token_ids, params: of each prompt.  media: of
    the only one.  model: names its files, and the adapter's.  reading: see Job."""

    prompt_token_ids: list[list[int]]
    params: list[SamplingParams]
    media: PromptMedia | None
    model: str
    reading: str

    def digest(self) -> bytes:
        """Covers all that the answer's tokens and text depend on, but not how it is computed."""
        found = hashlib.sha256(f"{self.model} {self.reading} ".encode())
        for ids, params in zip(self.prompt_token_ids, self.params, strict=True):
            found.update(b"%d " % len(ids))
            found.update(array("i", ids))
            found.update(msgspec.json.encode(params))
        found.update(msgspec.json.encode(None if self.media is None else self.media.media))
        return found.digest()


class ReplayedRequest:
    """How a request's answer is made to be the same whenever it is computed."""

    def __init__(
        self,
        body: bytes,
        *,
        key: bytes | None,
        origin: Origin | None,
        known: tuple[KnownTokens, ...],
        number: int,
        resumable: bool,
        withdrawal: Withdrawal | None = None,
    ) -> None:
        """body: digest.  key: digest of the Idempotency-Key.  origin, known: of a stream that goes
        on, and what the client has of each choice.  number: of the event that comes next; 0 where
        events have none.  resumable: events have ids."""
        drawn = hashlib.sha256(body + key).digest() if key is not None else secrets.token_bytes(32)
        self._body = body
        self._keyed = key is not None
        self._origin = origin
        self._name = drawn[:16] if origin is None else origin.name
        self._seed = int.from_bytes(drawn[16:24]) >> 1 if origin is None else origin.seed
        self._created = int(time.time()) if origin is None else origin.created
        self._settled: Origin | None = None
        self._number = number
        self.resumable = resumable
        self.withdrawal = withdrawal
        self.known = known

    @property
    def name(self) -> str:
        """What the reply's id ends with, if the request has none."""
        return self._name.hex()

    @property
    def known_tokens(self) -> int:
        """Tokens that the client has, of all choices together."""
        return sum(each.tokens for each in self.known)

    def fixed(self, request: Fields, head: ReplyHead, default_seed: int | None) -> Fields:
        """The request, with nothing left to chance, as has the head of its reply. default_seed:
        the server's."""
        seed = getattr(request, "seed", None)
        if seed is None:
            seed = self._seed if self._origin is not None or default_seed is None else default_seed
        self._seed = seed % 2**64
        head.created, head.draw = self._created, self._name
        return msgspec.structs.replace(request, seed=seed)

    async def held(self, client: EngineClient, adapter: str) -> str | None:
        """The only fingerprint that the answer may be computed with; None: whatever takes it.
        adapter: digest of the one that is applied. To be called first: a retry that another
        fingerprint answers has another name. Raises as `fingerprint_of_stream` does."""
        if self._origin is not None:
            return await fingerprint_of_stream(client, self._origin.fingerprint, adapter)
        if not self._keyed:
            return None
        fingerprint = await fingerprint_of_key(client, self._name)
        self._name = hashlib.sha256(self._name + fingerprint.encode()).digest()[:16]
        return fingerprint

    async def settle(self, asked: AnswerBasis | bytes) -> None:
        """Takes what became of the fixed request, or its digest. Raises InvalidRequest where any of
        it is another than the stream's was."""
        if isinstance(asked, AnswerBasis):
            tokens = sum(map(len, asked.prompt_token_ids))
            asked = await off_the_loop(asked.digest, 4 * tokens)
        digest = asked[:6]
        if self._origin is not None and self._origin.asked != digest:
            raise wrong_id(
                "the model, its chat template, the server's settings or what the prompt is made of"
                " have changed since",
                code="model_changed",
            )
        self._settled = Origin(self._created, self._seed, self._name, self._body, digest)

    def claims(self, prompts: int) -> list[Claim]:
        """Returns what engine cores find the answers to a request's prompts by, one for each
        prompt. Only once it was settled. An engine core finds only what it has computed itself."""
        goes_on = self._origin is not None
        # A retry comes at another time, and a draw is the same with a seed of the client's.
        answer = self._begun()._replace(created=0).written().encode()
        digests = [_digest(b"%b %d" % (answer, prompt)) for prompt in range(prompts)]
        return [Claim(digest, goes_on, self._keyed) for digest in digests]

    def check_choices(self, choices: int) -> None:
        """Raises InvalidRequest where an id can't say how far so many are, or says it of others."""
        if self.resumable and choices > MAX_CHOICES:
            raise InvalidRequest(
                f"a resumable stream has at most {MAX_CHOICES} choices, not {choices}",
                param="stream_options.resumable",
            )
        if self.known and len(self.known) != choices:
            raise wrong_id(f"it is of {len(self.known)} choices, and the body asks for {choices}")

    def _begun(self) -> Origin:
        if self._settled is None:
            raise RuntimeError("a replayed request that was not settled")
        return self._settled

    def reply(self, reply: ReplyFormat, batch: GenerationBatch, head: ReplyHead) -> ReplyFormat:
        """Writes the rest of the stream, with ids; the reply itself where none are asked for.
        head: of the reply."""
        if not self.resumable:
            return reply
        known = self.known or (KnownTokens(0),) * batch.choices
        goes_on = self._origin is not None
        number = self._number if goes_on else None
        return ResumableReply(reply, batch, OriginWriter(self._begun(), head), known, number)


async def replay_of(
    headers: TermsHeaders,
    request: RequestFields,
    kind: str,
    withdrawal: Withdrawal | None = None,
    digest: bytes | None = None,
) -> ReplayedRequest:
    """kind: of the endpoint.  digest: `digest_of_body`'s, where that was called elsewhere. Raises
    InvalidRequest."""
    resumable = request.stream_options is not None and bool(request.stream_options.resumable)
    last, key = headers.last_event_id, headers.idempotency_key
    if last is not None and not resumable:
        raise wrong_id("the body must ask for it: stream_options.resumable must be true")
    if key is not None and not (1 <= len(key) <= LONGEST_KEY and key.isprintable()):
        raise InvalidRequest(
            f"Idempotency-Key must be 1 to {LONGEST_KEY} printable characters",
            param="Idempotency-Key",
        )
    if digest is None:
        digest = digest_of_body(kind, headers.tenant, request)
    origin: Origin | None = None
    known: tuple[KnownTokens, ...] = ()
    number = 0
    if last is not None:
        origin, known, number = read_id(last)
        if origin.body != digest:
            raise wrong_id("it is of another body, or of another tenant's")
    return ReplayedRequest(
        digest,
        key=None if key is None else hashlib.sha256(key.encode()).digest(),
        origin=origin,
        known=known,
        number=number,
        resumable=resumable,
        withdrawal=withdrawal,
    )


class ResumableReply:
    """A ReplyFormat whose events have ids: what another one writes, but without what the client
    has. An event without an id belongs to the next that has one, and comes with it once more."""

    def __init__(
        self,
        reply: ReplyFormat,
        batch: GenerationBatch,
        origin: OriginWriter,
        known: tuple[KnownTokens, ...],
        number: int | None,
    ) -> None:
        """number: of the event that comes next; None: the stream
        begins."""
        self._reply = reply
        self.shows_aborts = reply.shows_aborts
        self.begin = reply.begin
        self.usage = reply.usage
        self.timeline = reply.timeline
        self.ends = reply.ends
        self.end = reply.end
        self.failed = reply.failed
        self.whole = reply.whole
        self.spliced = reply.spliced
        self._batch = batch
        self._origin = origin
        self._known = known
        self._counts = [each.tokens for each in known]
        self._ended = [each.ended for each in known]
        self._number = number
        self._resumed = {choice for choice, each in enumerate(known) if each.tokens or each.ended}
        """Choices whose beginning the format hasn't read yet."""

    def opening(self, out: bytearray, choice: int, usage: UsageField, begun: UsageInfo) -> None:
        if self._number is not None:
            self._reply.opening(bytearray(), choice, usage, begun)
            return
        self._reply.opening(out, choice, usage, begun)
        if choice == len(self._counts) - 1:
            self.place(out, choice)

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        if self._known[choice].ended:
            return
        self._reply.delta(out, choice, delta, usage)
        self._counts[choice] += len(delta.token_ids)
        self._ended[choice] |= delta.finish_reason is not None

    def place(self, out: bytearray, choice: int) -> None:
        """Gives the last event an id that says how far all choices are."""
        before = out.rfind(b"\n\n", 0, max(len(out) - 2, 0))
        at = 0 if before < 0 else before + 2
        origin = self._origin.written()
        if origin and len(out) > at and not out.startswith(b"id: ", at):
            known = map(KnownTokens, self._counts, self._ended)
            place = written_place(known, self._reply.numbered)
            out[at:at] = b"id: %b.%b\n" % (origin, place)

    @property
    def numbered(self) -> int:
        return self._reply.numbered

    def renumber(self, number: int) -> None:
        self._reply.renumber(number)

    def plain_chunk(self, choice: int, usage: UsageField) -> PlainChunk | None:
        return None

    def is_large(self, deltas: list[SequenceDelta]) -> bool:
        return bool(self._resumed) or self._reply.is_large(deltas)

    async def ahead(self, choice: int) -> None:
        """Tells the format what the client has, and lets nothing of that be seen. Raises
        InvalidRequest where the client can't have it."""
        await self._reply.ahead(choice)
        if choice in self._resumed:
            replayed = self._batch.replayed(choice)
            self._resumed.discard(choice)
            if replayed is not None:
                await self._tell(choice, replayed)
            if self._number:
                self._reply.renumber(self._number)

    async def _tell(self, choice: int, replayed: SequenceDelta) -> None:
        known, found = self._known[choice], len(replayed.token_ids)
        if replayed.finish_reason is not None and not known.ended:
            raise wrong_id(f"the answer has no more than {found} tokens")
        if known.ended and known.tokens != found:  # Usage would be what the client says.
            raise wrong_id(f"the answer ends after {found} tokens, not after {known.tokens}")
        pace = Pace()
        for part in parts_of(replayed):
            self._reply.delta(bytearray(), choice, part, UNSET)
            await pace.rest()


def digest_of_body(kind: str, tenant: str, request: RequestFields) -> bytes:
    """Covers all that a request says."""
    body = hashlib.sha256(f"{kind} {tenant} ".encode())
    body.update(msgspec.json.encode(request))  # Not msgpack, whose whole numbers have 64 bits.
    return body.digest()[:12]


def _digest(answer: bytes) -> bytes:
    return hashlib.blake2b(answer, digest_size=16).digest()
