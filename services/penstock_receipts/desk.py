"""Writes receipts of answers. Loaded only where there is a key to sign them with."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import msgspec

from penstock.errors import PenstockError
from penstock.process import logs
from penstock.request.receipt import PublicKey, Receipt, TokenLists
from penstock.version import __version__
from penstock_gateway.generate.reply import ReceiptField, ReplyFormat, ReplyHead
from penstock_gateway.request.tokenising import off_the_loop
from penstock_receipts.batch import BatchSigner
from penstock_receipts.signing import SigningKey
from penstock_receipts.statement import (
    ComputingClaim,
    ModelClaim,
    OutputClaim,
    PromptClaim,
    Statement,
    ids_digest,
    logprobs_digest,
    told_params,
)

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock.client.placement import Computing
    from penstock.protocol.common import TokenLogprobs
    from penstock.request.sampling_params import SamplingParams
    from penstock_gateway.generate.reply import (
        ChoiceOutput,
        PlainChunk,
        TimelineField,
        UsageField,
        UsageInfo,
    )
    from penstock_gateway.models.backend import AskedModel

log = logs.get(__name__)

WEIGHTS_PATIENCE = 30.0
"""Seconds that a request waits for the digests of weights, which are read for the first receipt."""


class ReceiptDesk:
    """Gives the receipts of all endpoints. key: the server's."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self._weights: dict[str, asyncio.Task[dict[str, str] | None]] = {}
        """Digests of files, by the digest of the weights."""

    @property
    def public(self) -> PublicKey:
        """The key that checks the receipts."""
        return self._key.public

    def signed(self, batch: str, lines: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        """Returns the lines of a batch's output, signed together."""
        return BatchSigner(self._key).signed(batch, lines)

    async def receipted(
        self,
        prompts: list[list[int]],
        params: list[SamplingParams],
        reply: ReplyFormat,
        asked: AskedModel,
        wish: str,
    ) -> tuple[list[SamplingParams], ReplyFormat]:
        """The parameters, with seeds, and a reply that ends in a receipt. reply: of an endpoint
        that gives some.  wish: see x-penstock-receipt."""
        seed, logprobs = asked.engine.welcome.seed, wish == "logprobs"
        params = [_complete(each, seed, logprobs=logprobs) for each in params]
        here = asked.client.weights or {asked.engine.welcome.digest}
        found = await asyncio.gather(*(self._weights_of(asked, each) for each in here))
        weights = dict(zip(here, found, strict=True))
        tokens = sum(map(len, prompts))
        signed = await off_the_loop(lambda: signed_prompts(prompts, params), tokens)
        signer = Signer(self._key, signed, params[0], asked, weights, wish)
        return params, ReceiptReply(cast(SignableReply, reply), signer)

    async def _weights_of(self, asked: AskedModel, digest: str) -> dict[str, str] | None:
        task = self._weights.get(digest)
        if task is None or (task.done() and task.result() is None):
            here = asked.client.weights  # Others were replaced.
            self._weights = {each: task for each, task in self._weights.items() if each in here}
            task = self._weights[digest] = asyncio.create_task(_hashed(asked, digest))
        done, _ = await asyncio.wait({task}, timeout=WEIGHTS_PATIENCE)
        return task.result() if done else None


def kept_desk(key_file: Path) -> ReceiptDesk:
    """A desk with the key in that file, which is made if it isn't there. Raises StartupError."""
    return ReceiptDesk(SigningKey.kept(key_file))


async def _hashed(asked: AskedModel, digest: str) -> dict[str, str] | None:
    try:
        return await asked.client.hash_weights(digest)
    except PenstockError as error:
        log.warning("a receipt names no digests of weights", reason=str(error))
        return None


def _complete(params: SamplingParams, seed: int | None, *, logprobs: bool) -> SamplingParams:
    """The parameters with a seed, which is drawn where there is none."""
    changes: dict[str, int] = {}
    if params.seed is None:
        changes["seed"] = secrets.randbits(64) if seed is None else seed
    if logprobs and params.logprobs is None:
        changes["logprobs"] = 0
    return msgspec.structs.replace(params, **changes)


@dataclass(slots=True)
class SignedOutput:
    """What a choice has gained so far."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, delta: SequenceDelta) -> None:
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.finish_reason = delta.finish_reason

    @property
    def told_logprobs(self) -> list[float]:
        """Returns the log-probability of each token, as the client got it."""
        return [each.logprob for each in self.logprobs]


class SignedPrompts(NamedTuple):
    """token_ids: of all prompts, as JSON."""

    claims: list[PromptClaim]
    token_ids: Any


def signed_prompts(prompts: list[list[int]], params: list[SamplingParams]) -> SignedPrompts:
    """What a receipt says of the prompts, of which there may be a million tokens."""
    claims = [
        PromptClaim(
            tokens=len(ids),
            sha256=ids_digest(ids),
            seed=each.seed or 0,
            max_tokens=each.max_tokens or 0,
        )
        for ids, each in zip(prompts, params, strict=True)
    ]
    return SignedPrompts(claims, msgspec.Raw(msgspec.json.encode(prompts)))


class Signer:
    """Fills in what a receipt says in addition to the outputs. params: of all prompts, but for seed
    and max_tokens.  weights: see ModelClaim; by their digest."""

    def __init__(
        self,
        key: SigningKey,
        prompts: SignedPrompts,
        params: SamplingParams,
        asked: AskedModel,
        weights: dict[str, dict[str, str] | None],
        wish: str,
    ) -> None:
        self._key = key
        self._prompts = prompts
        self._params = params
        self._asked = asked
        self._wish = wish
        self._weights = weights

    def _model(self, computing: Computing | None) -> ModelClaim:
        welcome, adapter = self._asked.engine.welcome, self._asked.adapter
        reported = None if computing is None else computing.weights
        digest = reported or welcome.digest
        return ModelClaim(
            name=self._asked.name,
            hub_id=welcome.hub_id,
            digest=digest,
            tokenizer=welcome.tokenizer_sha256,
            template=welcome.template_sha256,
            weights=self._weights.get(digest),
            adapter="" if adapter is None else adapter.digest,
        )

    def receipt(self, head: ReplyHead, outputs: list[SignedOutput]) -> Receipt:
        """The receipt of these choices, which are in the reply's order."""
        computing = head.computing
        n = self._params.n
        statement = Statement(
            id=head.id,
            created=int(time.time()),
            penstock=__version__,
            model=self._model(computing),
            computing=_claim(computing),
            params=told_params(self._params),
            prompts=self._prompts.claims,
            outputs=[
                OutputClaim(
                    prompt=index // n,
                    sequence=index % n,
                    tokens=len(each.token_ids),
                    sha256=ids_digest(each.token_ids),
                    finish_reason=each.finish_reason,
                    logprobs_sha256=self._logprobs_digest(each),
                )
                for index, each in enumerate(outputs)
            ],
        )
        text = msgspec.json.encode(statement).decode()
        return Receipt(
            statement=text,
            signature=self._key.sign(text),
            key=self._key.public,
            tokens=None if self._wish == "digest" else self._tokens(outputs),
        )

    def _logprobs_digest(self, output: SignedOutput) -> str | None:
        return logprobs_digest(output.told_logprobs) if self._wish == "logprobs" else None

    def _tokens(self, outputs: list[SignedOutput]) -> TokenLists:
        logprobs = None
        if self._wish == "logprobs":
            logprobs = [output.told_logprobs for output in outputs]
        return TokenLists(
            prompts=self._prompts.token_ids,
            outputs=[output.token_ids for output in outputs],
            logprobs=logprobs,
        )


def _claim(computing: Computing | None) -> ComputingClaim:
    """What a receipt says of the engine core that has computed the answer."""
    if computing is None:
        return ComputingClaim(fingerprint=None, arithmetic=[], settings={})
    return ComputingClaim(
        fingerprint=computing.fingerprint,
        arithmetic=list(computing.arithmetic),
        settings=computing.settings or {},
    )


class SignableReply(ReplyFormat, Protocol):
    """A ReplyFormat that has a place for a receipt."""

    receipt: ReceiptField

    @property
    def head(self) -> ReplyHead: ...


class ReceiptReply:
    """A ReplyFormat that writes what another one does, `unsigned`, and a receipt at the end."""

    def __init__(self, reply: SignableReply, signer: Signer) -> None:
        self.unsigned = self._reply = reply
        self._signer = signer
        self._outputs: defaultdict[int, SignedOutput] = defaultdict(SignedOutput)
        self.shows_aborts = reply.shows_aborts
        self.begin = reply.begin
        self.opening = reply.opening
        self.usage = reply.usage
        self.timeline = reply.timeline
        self.ends = reply.ends
        self.failed = reply.failed
        self.is_large = reply.is_large
        self.ahead = reply.ahead
        self.spliced = reply.spliced
        self.place = reply.place
        self.renumber = reply.renumber

    @property
    def numbered(self) -> int:
        return self._reply.numbered

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        """Writes a delta's events, and notes its tokens."""
        self._outputs[choice].add(delta)
        self._reply.delta(out, choice, delta, usage)

    def plain_chunk(self, choice: int, usage: UsageField) -> PlainChunk | None:
        """None: each delta is noted."""

    def end(self, out: bytearray, usage: UsageInfo) -> None:
        """Appends the chunk with the receipt, and the stream's end."""
        self._sign([self._outputs[index] for index in sorted(self._outputs)])
        self._reply.end(out, usage)

    async def whole(
        self, choices: list[ChoiceOutput], usage: UsageInfo, timeline: TimelineField
    ) -> list[bytes]:
        """The unstreamed reply, with the receipt in it."""
        self._sign([SignedOutput(c.token_ids, c.logprobs, c.finish_reason) for c in choices])
        return await self._reply.whole(choices, usage, timeline)

    def _sign(self, outputs: list[SignedOutput]) -> None:
        self._reply.receipt = self._signer.receipt(self._reply.head, outputs)
