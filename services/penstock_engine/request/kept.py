"""What is kept of an answer that another front end may claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from penstock.protocol.to_frontend import SequenceOutput

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable

    from penstock.protocol.common import TokenLogprobs, TokenSampling
    from penstock.protocol.from_frontend import OpenSequence


PART = 512
"""Tokens of an output, at most: a front end reads few enough of them at once that its other streams
go on."""


class KeptRoom(Protocol):
    """How much is kept of all answers: tokens of those that have ended, and log-probabilities."""

    def add(self, tenant: str, more: int, /) -> None:
        """A tenant's answers take so much more; or less, for less than 0."""


class KeptAnswer:
    """All that was given of an answer, from its beginning.

    Tokens are those of its sequences.  Log-probabilities and ends are noted here as they are
    given, to whomever.
    """

    __slots__ = (
        "_ends",
        "_logprobs",
        "_prompt_logprobs",
        "_room",
        "_tokens",
        "claims",
        "joined",
        "left",
        "retried",
        "sampling",
        "shared",
        "size",
        "tenant",
    )

    def __init__(
        self,
        tokens: dict[int, array[int]],
        room: KeptRoom,
        tenant: str,
        sampling: TokenSampling,
    ) -> None:
        """tokens: of each sequence, which grow as it does.  tenant: whose it is.  sampling: as it
        was asked for, which an audit adds to."""
        self.tenant = tenant
        self.sampling = sampling
        self.claims: list[bytes] = []  # digests of the claims on it, the first one first
        self.shared = b""  # by which equal requests find it while it is computed; empty: they don't
        self.retried = False  # it may be claimed before there is anything of it
        self.joined = 0  # readers that have come to it
        self.left: list[bytes] = []  # claims of readers that have left and may come again
        self.size = 0
        """The answer's share of the room."""
        self._room = room
        self._tokens = tokens
        self._logprobs: dict[int, list[TokenLogprobs]] = {}
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._ends: dict[int, SequenceOutput] = {}

    def note(self, output: SequenceOutput) -> None:
        """Takes what a sequence has gained."""
        grown = 0
        if output.logprobs:
            self._logprobs.setdefault(output.sequence, []).extend(output.logprobs)
            grown += sum(1 + len(each.top_ids) for each in output.logprobs)
        if output.prompt_logprobs:
            self._prompt_logprobs += output.prompt_logprobs
            grown += sum(1 + len(each.top_ids) for each in output.prompt_logprobs)
        if output.finish is not None:
            self._ends[output.sequence] = output
            grown += len(self._tokens[output.sequence])
        self.grow(grown)

    def grow(self, more: int) -> None:
        """Takes so much more of the room."""
        if more:
            self.size += more
            self._room.add(self.tenant, more)

    def drop(self) -> None:
        """Gives its room back. Once."""
        self._room.add(self.tenant, -self.size)

    @property
    def whole(self) -> bool:
        """Whether every sequence has come to an end of its own."""
        ends = self._ends.values()
        failed = any(end.finish in ("abort", "timeout", "error") for end in ends)
        return len(ends) == len(self._tokens) and not failed

    def agrees(self, opened: Iterable[OpenSequence], *, ahead: bool) -> bool:
        """Whether it has the sequences, and in each what the new reader has. ahead: the latter may
        have more than there is yet of one that goes on."""
        return all(
            each.index in self._tokens
            and self._agrees(each, ahead=ahead and each.index not in self._ends)
            for each in opened
        )

    def _agrees(self, opened: OpenSequence, *, ahead: bool) -> bool:
        tokens, had = self._tokens[opened.index], opened.emitted
        return tokens[: len(had)].tolist() == (had[: len(tokens)] if ahead else had)

    def outputs(
        self, number: int, opened: Iterable[OpenSequence], prompt: int
    ) -> list[SequenceOutput]:
        """What the new reader has not got. number: by which it calls the request.  prompt: tokens
        of the prompt whose log-probabilities it has."""
        found = []
        for each in opened:
            # The end comes as it first came: what its tokens are to the reader depends on that.
            end, begin = self._ends.get(each.index), len(each.emitted)
            last = 0 if end is None else len(end.tokens)
            first = len(self._tokens[each.index]) - last
            tokens, logprobs = self._tokens[each.index], self._logprobs.get(each.index)
            of_prompt = self._prompt_of(each.index, prompt) or []
            found += [
                SequenceOutput(number, each.index, prompt_logprobs=of_prompt[at : at + PART])
                for at in range(0, len(of_prompt), PART)
            ]
            for at in range(begin, first, PART):
                to = min(first, at + PART)
                part = None if logprobs is None else logprobs[at:to]
                found.append(SequenceOutput(number, each.index, tokens[at:to].tolist(), part))
            if end is not None:
                found.append(_from(end, number, max(0, begin - first)))
        return found

    def _prompt_of(self, index: int, prompt: int) -> list[TokenLogprobs] | None:
        if index or not self._prompt_logprobs:
            return None
        return self._prompt_logprobs[max(0, prompt - 1) :]


def _from(end: SequenceOutput, number: int, begin: int) -> SequenceOutput:
    """A sequence's last output for another reader, without its first tokens, nor what came with
    others before."""
    return msgspec.structs.replace(
        end,
        request=number,
        tokens=end.tokens[begin:],
        logprobs=None if end.logprobs is None else end.logprobs[begin:],
        cached_tokens=None,
        prompt_logprobs=None,
        drafted=0,
    )
