"""A naive model of what front ends are told: it knows nothing of slots, blocks or steps.

It says which tokens each sequence gives when it runs alone (`undisturbed`), and keeps score of what
each front end was told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.protocol.common import NamedAdapter, Repetition
from penstock.protocol.from_frontend import Submit
from penstock.protocol.to_frontend import (
    Called,
    Rejected,
    SequenceOutput,
    Status,
    Unchanged,
    Welcome,
)
from penstock_engine.scheduler.multi_step import MOST
from penstock_engine.sessions.gathered_outputs import MOST_HELD
from tests.engine.fake_adapters import adapted
from tests.engine.fake_media import marks
from tests.engine.fake_model import EOS, next_token, told_of


def loops(tokens: list[int], bound: Repetition) -> bool:
    """Whether they end in a pattern that comes so often in a row: each size is written out."""
    return any(
        len(tokens) >= size * bound.count
        and tokens[-size * bound.count :] == tokens[-size:] * bound.count
        for size in range(bound.min_pattern, bound.max_pattern + 1)
    )


def undisturbed(submit: Submit, index: int, max_len: int) -> tuple[list[int], str, int | None]:
    """(all emitted tokens, finish reason, stop token) of a sequence that runs alone."""
    stopping = submit.stopping
    sampling = msgspec.structs.replace(submit.sampling, min_tokens=stopping.min_tokens)
    eos = frozenset() if stopping.ignore_eos else frozenset(EOS)
    ends = eos | frozenset(stopping.stop_token_ids)
    emitted: list[int] = []
    prompt = marks(submit.prompt_token_ids, submit.media)
    if submit.adapter is not None:
        prompt = adapted(prompt, submit.adapter.digest)
    while (
        len(emitted) < stopping.max_tokens and len(submit.prompt_token_ids) + len(emitted) < max_len
    ):
        token = next_token(prompt, emitted, index, sampling, ends, submit.grammar)
        emitted.append(token)
        if submit.grammar is not None and token in eos:
            return emitted, "stop", None
        if len(emitted) > stopping.min_tokens:
            if token in eos:
                return emitted, "stop", None
            if token in stopping.stop_token_ids:
                return emitted, "stop", token
            if stopping.repetition is not None and loops(emitted, stopping.repetition):
                return emitted, "repetition", None
    return emitted, "length", None


@dataclass
class SequenceScore:
    """What the front end was told of one sequence."""

    tokens: list[int]
    logprobs: list[Any] = field(default_factory=list)
    prompt_logprobs: list[Any] = field(default_factory=list)
    """Log probabilities of the prompt's tokens after the first."""
    terminal: SequenceOutput | None = None
    finished_by_us: bool = False
    deaths: int = 0
    drafted: int = 0
    kept: int = 0


@dataclass
class RequestScore:
    submit: Submit
    deadline: float | None = None
    during_trial: bool = False
    """Whether it came while a worker was told of other weights than it will go on with."""
    accepted: bool = False
    rejected: Rejected | None = None
    aborted: bool = False
    left: bool = False
    """Whether its front end has left it to whoever claims it."""
    cached: int | None = None
    prepared: bool = False
    shared: bool = False
    """Whether it was told that it gets the answer of an earlier one."""
    sequences: dict[int, SequenceScore] = field(default_factory=dict)
    _known: dict[tuple[int, int], tuple[list[int], str, int | None]] = field(default_factory=dict)

    def _alone(self, index: int, longest: int) -> tuple[list[int], str, int | None]:
        """`undisturbed`, of which each output is a part, computed once."""
        found = self._known.get((index, longest))
        if found is None:
            found = self._known[index, longest] = undisturbed(self.submit, index, longest)
        return found

    @property
    def over(self) -> bool:
        """Whether all of it has ended."""
        scores = self.sequences.values()
        return bool(scores) and all(score.terminal is not None for score in scores)

    @property
    def nothing_since_a_trial(self) -> bool:
        """Whether it came with tokens during one, and has no others. What is to be thought of
        those tokens' weights, front ends know (`EngineSession._compare_weights`)."""
        came = {each.index: list(each.emitted) for each in self.submit.sequences}
        has = {index: score.tokens for index, score in self.sequences.items()}
        return self.during_trial and all(has[index] == came[index] for index in came)

    def take(
        self, output: SequenceOutput, *, now: float, longest: int, capacity: int | None
    ) -> None:
        """One of its sequences has given something. longest: tokens that a sequence may have.
        capacity: that the whole pool holds."""
        assert self.accepted
        score = self.sequences[output.sequence]
        assert self.prepared or not output.tokens or self.submit.grammar is None
        assert score.terminal is None, "an output after the terminal one"
        if output.cached_tokens is not None:
            assert self.cached is None, "told twice"
            self.cached = output.cached_tokens
        score.tokens += output.tokens
        score.drafted += output.drafted
        if output.drafted:
            score.kept += len(output.tokens) - 1
        self._take_prompt(score, output)
        if self.submit.sampling.logprobs is not None and output.tokens:
            assert output.logprobs is not None
            assert len(output.logprobs) == len(output.tokens)
        score.logprobs += output.logprobs or []
        expected, finish, stop = self._alone(output.sequence, longest)
        assert score.tokens == expected[: len(score.tokens)], "not the tokens of a run alone"
        if output.finish is None:
            assert output.tokens or output.prompt_logprobs
            most = MOST_HELD + MOST if self.submit.gathered else 0
            # All that was computed comes at once.
            adopts = self.submit.claim is not None or self.shared
            assert adopts or len(output.tokens) <= 1 + max(output.drafted, most)
            return
        score.terminal = output
        if output.finish in ("stop", "length", "repetition") and not (
            score.finished_by_us and not output.tokens
        ):
            self._check_natural_end(score, output, (expected, finish, stop), capacity)
        elif output.finish == "abort":
            assert self.aborted
        elif output.finish == "timeout":
            assert self.deadline is not None
            assert self.deadline <= now
        elif output.finish == "error":
            assert output.error

    def _take_prompt(self, score: SequenceScore, output: SequenceOutput) -> None:
        """Each once, in order, with the first sequence alone, and before any token."""
        score.prompt_logprobs += output.prompt_logprobs or []
        prompt = self.submit.prompt_token_ids
        asked = self.submit.sampling.prompt_logprobs is not None and output.sequence == 0
        expected = [told_of(prompt, at) for at in range(1, len(prompt))] if asked else []
        told = score.prompt_logprobs
        assert told == expected[: len(told)], "not the prompt's, skipped, or told twice"
        ended_well = output.finish in ("stop", "length", "repetition") and not score.finished_by_us
        if output.tokens or ended_well:
            assert len(told) == len(expected), "tokens before the prompt was told about"

    def _check_natural_end(
        self,
        score: SequenceScore,
        output: SequenceOutput,
        expected: tuple[list[int], str, int | None],
        capacity: int | None,
    ) -> None:
        if score.tokens != expected[0]:
            # The pool was so small that the context ended before.
            assert output.finish == "length"
            assert capacity is not None
            assert len(self.submit.prompt_token_ids) + len(score.tokens) == capacity
            return
        assert (output.finish, output.stop_token) == expected[1:]


@dataclass
class Front:
    session: bytes
    welcome: Welcome | None = None
    frames: tuple[bytes, ...] = ()
    """What came with it."""
    status: Status | None = None
    heard: list[Status | Unchanged] = field(default_factory=list)
    """All that told it of the core's state."""
    requests: dict[int, RequestScore] = field(default_factory=dict)
    ended: str | None = None
    adapters: dict[str, NamedAdapter] = field(default_factory=dict)
    """What it was told of their names."""
    in_step: set[int] = field(default_factory=set)
    """Requests that it was told are in a step."""
    num_outputs: int = 0
    """Messages that told it of sequences."""
    called: list[Called] = field(default_factory=list)
    """What ranks answered to its calls."""
