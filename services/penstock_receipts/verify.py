"""What is checked of a receipt, in this order: its signature; that its token ids are those that
were signed; that the model here is the one it names; and that its outputs are what that computes.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec
from msgspec import UnsetType

from penstock.config.settings import BIT_SETTINGS
from penstock.errors import EngineUnavailable, InvalidRequest, RequestFailed
from penstock.llm.asynchronous import AsyncLLM
from penstock.protocol.common import TokenLogprobs
from penstock.protocol.to_frontend import Status
from penstock.request.receipt import PublicKey, Receipt, TokenLists
from penstock.request.terms import Terms
from penstock.version import __version__
from penstock_receipts.replay import QUICKLY, Claimed, Place, Replay
from penstock_receipts.signing import public_key, signature_fits
from penstock_receipts.statement import (
    ModelClaim,
    OutputClaim,
    PromptClaim,
    Statement,
    ids_digest,
    logprobs_digest,
    read_statement,
    tree_statement,
)
from penstock_receipts.tree import leaf_digest, root_from

BOUND = 1.0
"""Nats by which a token's log-probability may differ between machines that compute other bits: what
rounding was seen to change at most, on any token (docs/guides/receipts.md)."""
LOOKED_AT = 32
"""Further positions that are sampled once an output has been found to differ."""

GIVEN_UP = (RequestFailed, EngineUnavailable)
"""Errors of the engine that computes, which say nothing of a receipt."""

REPORTED_IN = 30.0
"""Seconds that an engine has to say how it computes."""

Standing = Literal["equal", "differs", "untold"]


class Check(msgspec.Struct, frozen=True):
    """One thing that was checked. standing: `untold` where it can't be said.  detail: what was
    found, for people."""

    what: str
    standing: Standing
    detail: str


class Verdict(msgspec.Struct, frozen=True):
    """equal: all that was checked is as the receipt says.  differs: something isn't.  untold: bits
    may differ here, and nothing else does."""

    standing: Standing
    id: str
    checks: list[Check]

    @classmethod
    def of(cls, id: str, checks: list[Check]) -> Verdict:
        standings = {each.standing for each in checks if each.standing != "equal"}
        standing: Standing = "differs" if "differs" in standings else "equal"
        outputs = [each.standing for each in checks if each.what.startswith("output")]
        if standing == "equal" and (not outputs or "untold" in outputs):
            standing = "untold"
        return cls(standing, id, checks)


class SignedReceipt:
    """A receipt that can be read; whether it is true, its checks say. pinned: the key that must
    have signed it; None: any. Raises as `read_statement` does."""

    def __init__(self, receipt: Receipt, pinned: PublicKey | None = None) -> None:
        self.statement: Statement = read_statement(receipt)
        self._receipt = receipt
        self._pinned = pinned

    def checks(self) -> Iterator[Check]:
        """Runs the checks that don't need the model."""
        yield self._signature()
        yield from self._batch()
        yield self._tokens()

    def _signature(self) -> Check:
        key = self._receipt.key
        if not signature_fits(self._receipt):
            return Check("signature", "differs", f"key {key.id} has not signed this statement")
        if self._pinned is not None and self._pinned.public_key != key.public_key:
            return Check(
                "signature", "differs", f"signed by key {key.id}, not by {self._pinned.id}"
            )
        whose = "" if self._pinned is not None else "; whose that is, --key can tell"
        return Check("signature", "equal", f"signed by key {key.id}{whose}")

    def _batch(self) -> Iterator[Check]:
        """Nothing where the receipt isn't a batch's."""
        place, key = self._receipt.batch, self._receipt.key
        if isinstance(place, UnsetType):
            return
        said = tree_statement(place)
        path = [bytes.fromhex(each) for each in place.path]
        root = root_from(leaf_digest(self._receipt.statement), place.index, said.size, path)
        named = f"receipt {place.index} of the {said.size} of {said.batch}"
        if place.key != key or not signature_fits(place):
            yield Check("batch", "differs", f"key {key.id} has not signed its root")
        elif root is None or root.hex() != said.root:
            yield Check("batch", "differs", f"it isn't {named}")
        else:
            yield Check("batch", "equal", f"{named}, whose root is {said.root[:16]}")

    def _tokens(self) -> Check:
        tokens, statement = self._receipt.tokens, self.statement
        if tokens is None:
            return Check(
                "tokens", "untold", "the receipt has digests only; nothing can be computed"
            )
        wrong = _misfit(tokens, statement)
        if wrong:
            return Check("tokens", "differs", wrong)
        count = sum(each.tokens for each in statement.outputs)
        return Check("tokens", "equal", f"{count} output tokens are those that were signed")

    def claims(self) -> list[Claimed]:
        """The outputs, as they were signed. Raises InvalidRequest for wrong parameters."""
        tokens = self._receipt.tokens
        if tokens is None:
            return []
        params = self.statement.sampling()
        return [
            Claimed(
                prompt=tokens.prompts[each.prompt],
                params=params[each.prompt],
                sequence=each.sequence,
                output=ids,
                finish_reason=each.finish_reason,
                logprobs=None if tokens.logprobs is None else tokens.logprobs[index],
            )
            for index, (each, ids) in enumerate(
                zip(self.statement.outputs, tokens.outputs, strict=True)
            )
        ]

    def settings(self) -> dict[str, Any]:
        """Settings for an engine that is to compute the same. Raises InvalidRequest for some that
        a receipt hasn't: who wrote it doesn't decide what runs here."""
        settings = self.statement.computing.settings
        strange = sorted(settings.keys() - BIT_SETTINGS)
        if strange:
            raise InvalidRequest(f"the receipt has the setting {strange[0][:40]!r}, which none has")
        return {**settings, **QUICKLY}


def _misfit(tokens: TokenLists, statement: Statement) -> str:
    """What of the tokens isn't what was signed; empty: all is."""
    if len(tokens.prompts) != len(statement.prompts):
        return f"{len(tokens.prompts)} prompts, and {len(statement.prompts)} were signed"
    if len(tokens.outputs) != len(statement.outputs):
        return f"{len(tokens.outputs)} outputs, and {len(statement.outputs)} were signed"
    n = statement.params.get("n", 1)
    if isinstance(n, int) and len(statement.outputs) != n * len(statement.prompts):
        return f"{len(statement.outputs)} outputs were signed, and {n} of each prompt asked for"
    pairs: list[tuple[str, list[list[int]], Sequence[PromptClaim | OutputClaim]]] = [
        ("prompt", tokens.prompts, statement.prompts),
        ("output", tokens.outputs, statement.outputs),
    ]
    for what, lists, claims in pairs:
        for index, (ids, claim) in enumerate(zip(lists, claims, strict=True)):
            if claim.tokens != len(ids):
                return f"{what} {index} has {len(ids)} token ids, and {claim.tokens} were signed"
            if claim.sha256 != ids_digest(ids):
                return f"the token ids of {what} {index} aren't those that were signed"
    for index, claim in enumerate(statement.outputs):
        stated = None if tokens.logprobs is None else tokens.logprobs[index : index + 1]
        if stated and claim.logprobs_sha256 != logprobs_digest(stated[0]):
            return f"the log-probabilities of output {index} aren't those that were signed"
        if stated is not None and (not stated or len(stated[0]) != claim.tokens):
            return f"output {index} has not one log-probability for each token"
    return ""


class ModelHere:
    """The model of a started library, compared with what receipts say. adapter: see Terms."""

    def __init__(self, llm: AsyncLLM, weights: dict[str, str], terms: Terms) -> None:
        self._llm = llm
        self._weights = weights
        self._replay = Replay(llm.client, terms)
        self._adapter = "" if terms.adapter is None else terms.adapter.digest

    async def checks(self, receipt: SignedReceipt, sample: int | None) -> list[Check]:
        """sample: positions of each output that are computed; None: all of it is."""
        version = receipt.statement.penstock
        found = [*self._model(receipt.statement.model, whole=version == __version__)]
        if version != __version__:
            detail = (
                f"computed by Penstock {version}; this is {__version__}, which may compute others"
            )
            found.append(Check("version", "untold", detail))
        here = self._computing(receipt.statement, await self._status())
        found.append(here)
        if any(check.what == "tokenizer" and check.standing == "differs" for check in found):
            return found  # Its ids mean something else.
        for index, claimed in enumerate(receipt.claims()):
            unknown = self._unknown(claimed)
            if unknown:
                found.append(Check(f"output {index}", "differs", unknown))
                continue
            try:
                if here.standing == "equal":
                    found.append(await self._same_class(f"output {index}", claimed, sample))
                else:
                    found.append(await self._other_class(f"output {index}", claimed))
            except GIVEN_UP as error:
                found.append(Check(f"output {index}", "untold", f"not computed again: {error}"))
        return found

    def _unknown(self, claimed: Claimed) -> str:
        """Says which token id the model doesn't have; empty: it has all."""
        most = self._llm.welcome.limits.vocab_size
        for what, ids in (("prompt", claimed.prompt), ("output", claimed.output)):
            at = next((at for at, token in enumerate(ids) if token >= most), None)
            if at is not None:
                return f"token {at} of its {what} is {ids[at]}; the model has 0 to {most - 1}"
        return ""

    def _model(self, claim: ModelClaim, *, whole: bool) -> Iterator[Check]:
        """whole: its digest, too, in which every version has what it reads of a model."""
        welcome = self._llm.welcome
        if whole and claim.digest != welcome.digest:
            detail = f"{claim.digest[:16]}; here {welcome.digest[:16]}"
            yield Check("model", "differs", detail)
        for what, said, here in (
            ("tokenizer", claim.tokenizer, welcome.tokenizer_sha256),
            ("template", claim.template, welcome.template_sha256),
            ("adapter", claim.adapter, self._adapter),
        ):
            if said == here:
                yield Check(what, "equal", here[:16] or "none, as in the receipt")
            else:
                yield Check(what, "differs", f"{said[:16] or 'none'}; here {here[:16] or 'none'}")
        if claim.weights is None:
            yield Check("weights", "untold", "the receipt has no digests of their files")
            return
        theirs, ours = sorted(claim.weights.values()), sorted(self._weights.values())
        if theirs == ours:
            yield Check("weights", "equal", ", ".join(self._weights))
            return
        other = [name for name, digest in claim.weights.items() if digest not in ours]
        yield Check("weights", "differs", f"other contents: {', '.join(other) or 'fewer files'}")

    async def _status(self) -> Status | None:
        """How the engine here computes: it says so soon after it has started, but on a busy machine
        a receipt may be read sooner."""
        return await self._llm.client.status_when(lambda it: bool(it.arithmetic), REPORTED_IN)

    def _computing(self, statement: Statement, status: Status | None) -> Check:
        claim, here = statement.computing, () if status is None else status.arithmetic
        if here and claim.arithmetic == list(here):
            same = statement.model.digest == self._llm.welcome.digest
            own = None if status is None else status.fingerprint
            if same and claim.fingerprint not in (None, own):
                detail = f"fingerprint {claim.fingerprint}; these have {own}"
                return Check("arithmetic", "differs", detail)
            return Check("arithmetic", "equal", "; ".join(here))
        return Check(
            "arithmetic",
            "untold",
            f"{'; '.join(claim.arithmetic) or 'not told'}; here {'; '.join(here)}: bits may"
            " differ, so log-probabilities are compared",
        )

    async def _same_class(self, what: str, claimed: Claimed, sample: int | None) -> Check:
        if sample is not None:
            places = await self._replay.positions(claimed, sample)
            count = min(sample, len(claimed.output))
            if not places:
                detail = f"{count} of {len(claimed.output)} tokens sampled{_compared(claimed)}"
                return Check(what, "equal", detail)
            found = self._described(places[0], claimed)
            with suppress(*GIVEN_UP):
                found += await self._likelihood(places[0], claimed)
            return Check(what, "differs", f"{found}; {len(places)} of {count} sampled differ")
        place = await self._replay.whole(claimed)
        if place is None:
            detail = f"all {len(claimed.output)} tokens computed again{_compared(claimed)}"
            return Check(what, "equal", detail)
        found = self._described(place, claimed)
        with suppress(*GIVEN_UP):
            found += await self._likelihood(place, claimed)
            others = await self._replay.positions(claimed, LOOKED_AT)
            count = min(LOOKED_AT, len(claimed.output))
            found += f"; {len(others)} of {count} sampled tokens differ"
        return Check(what, "differs", found)

    def _described(self, place: Place, claimed: Claimed) -> str:
        """A difference in words."""
        if place.reason is not None:
            return f"it ends for {place.reason}, and the receipt says {claimed.finish_reason}"
        if place.broken:
            return f"token {place.at} can't stand behind those before it: {place.broken}"
        if place.logprob is not None:
            signed = (claimed.logprobs or [])[place.at]
            return (
                f"the log-probability of token {place.at} differs: the receipt has {signed!r},"
                f" computed is {place.logprob!r}"
            )
        said, computed = self._named(place.said), self._named(place.computed)
        return f"token {place.at} differs: the receipt has {said}, computed is {computed}"

    async def _likelihood(self, place: Place, claimed: Claimed) -> str:
        """How likely a token is that differs, in words; empty where it isn't a token that does."""
        by_token = place.reason is None and place.logprob is None and not place.broken
        if not by_token or place.said is None:
            return ""
        upto = msgspec.structs.replace(claimed, output=claimed.output[: place.at + 1])
        last = (await self._replay.logprobs(upto))[-1]
        return f" (the receipt's has the log-probability {last.logprob:.2f})"

    def _named(self, token: int | None) -> str:
        if token is None:
            return "the end"
        return f"{token} {self._llm.text.tokenizer.token_text(token)!r}"

    async def _other_class(self, what: str, claimed: Claimed) -> Check:
        stated = claimed.logprobs
        if not claimed.output:
            return Check(what, "untold", "no tokens")
        here = await self._replay.logprobs(claimed)
        if stated is None and claimed.params.temperature > 0:
            return Check(
                what,
                "untold",
                "the receipt has no log-probabilities (x-penstock-receipt: logprobs), and its"
                " tokens were drawn",
            )
        gaps = _gaps(here, stated)
        worst = max(range(len(gaps)), key=gaps.__getitem__)
        words = f"log-probabilities differ by {gaps[worst]:.3g} at most, at token {worst}"
        if stated is None:
            words = f"token {worst} is {gaps[worst]:.3g} below the likeliest one; others are less"
        if not gaps[worst] <= BOUND:
            return Check(what, "differs", f"{words}; the bound is {BOUND:g}")
        return Check(what, "untold", f"{words}, within the bound of {BOUND:g}")


def _compared(claimed: Claimed) -> str:
    return "" if claimed.logprobs is None else ", with their log-probabilities"


def _gaps(here: Sequence[TokenLogprobs], stated: list[float] | None) -> list[float]:
    """Returns how far each log-probability is from the stated one; where none was stated, from that
    of the most likely token, which a greedy output has."""
    expected = stated or [each.top_logprobs[0] for each in here]
    gaps = [abs(mine.logprob - theirs) for mine, theirs in zip(here, expected, strict=True)]
    return [gap if not math.isnan(gap) else math.inf for gap in gaps]


def pinned_key(text: str) -> PublicKey:
    """A key that receipts must be signed by: its 32 bytes in base64, or what /v1/receipts/key
    answers. Raises InvalidRequest."""
    try:
        if text.lstrip().startswith("{"):
            text = msgspec.json.decode(text, type=PublicKey).public_key
        raw = base64.b64decode(text.strip(), validate=True)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raw = b""
    if len(raw) != 32:
        raise InvalidRequest(
            "--key is neither 32 bytes in base64 nor what /v1/receipts/key answers"
        )
    return public_key(raw)
