"""Requests, their sequences, and the one table of states."""

from __future__ import annotations

import enum
from array import array

import msgspec

from penstock.protocol.common import FinishReason, Stopping, TokenSampling
from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock_engine.kv.keys import block_key
from penstock_engine.kv.table import BlockTable
from penstock_engine.request.timeline import TimelineBuilder


class SequenceState(enum.Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    WAITING_FOR_GRAMMAR = "waiting for grammar"
    WAITING_FOR_REMOTE_KV = "waiting for remote KV"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "stopped"
    FINISHED_LENGTH = "length"
    FINISHED_ABORTED = "aborted"
    FINISHED_TIMED_OUT = "timed out"
    FINISHED_FAILED = "failed"


FINISH_REASONS: dict[SequenceState, FinishReason] = {
    SequenceState.FINISHED_STOPPED: "stop",
    SequenceState.FINISHED_LENGTH: "length",
    SequenceState.FINISHED_ABORTED: "abort",
    SequenceState.FINISHED_TIMED_OUT: "timeout",
    SequenceState.FINISHED_FAILED: "error",
}

_ENDS = tuple(FINISH_REASONS)

TRANSITIONS: dict[SequenceState, tuple[SequenceState, ...]] = {
    # It gets a slot, or ends before it ran; or its grammar must be compiled (again) first, or its
    # prefix may come from elsewhere.
    SequenceState.WAITING: (
        SequenceState.RUNNING,
        SequenceState.WAITING_FOR_GRAMMAR,
        SequenceState.WAITING_FOR_REMOTE_KV,
        *_ENDS,
    ),
    SequenceState.WAITING_FOR_REMOTE_KV: (SequenceState.WAITING, *_ENDS),
    SequenceState.WAITING_FOR_GRAMMAR: (SequenceState.WAITING, *_ENDS),
    # Its blocks were needed (PREEMPTED), its worker died (WAITING), or it ends.
    SequenceState.RUNNING: (SequenceState.PREEMPTED, SequenceState.WAITING, *_ENDS),
    SequenceState.PREEMPTED: (SequenceState.RUNNING, SequenceState.WAITING_FOR_GRAMMAR, *_ENDS),
    **dict.fromkeys(_ENDS, ()),
}


class IllegalTransition(Exception):
    """A sequence was told to go where its state doesn't lead."""


WORD_COST = 8
"""Of an id in bad_words, which the worker makes an automaton of, to one that it only takes over."""


class Request:
    """What the sequences of one Submit have in common.

    session, number: who asked; together the request's key.  arrival: the engine's own count, the
    first-come-first-served order.  eos: ids that end a sequence, empty with ignore_eos.
    stops: the request's own stop ids.  open: sequences that have not ended.
    num_queued, num_running: sequences in the waiting queue, and in slots; the scheduler keeps them.
    reported_running: whether its front end knows that some of it is in a slot.
    beams: of a beam search, sequences that it may have at once; such a request stays open while it
    has none, until it is `closed`.
    root: parent of the keys of its blocks (see kv.keys).  cached_tokens: of the prompt, found in
    the KV cache when its first sequence started; None before.
    tenant, grant, priority: see Submit.  accepted: when it was, seconds.  deadline: when its time
    is over, on the same clock, or None.
    grammar: its number, which GrammarManager gives and takes; None where the output is free.
    pooling: what is asked of a model that gives vectors; None where text is.
    """

    __slots__ = (
        "_prompt_keys",
        "accepted",
        "arrival",
        "beams",
        "cached_reported",
        "cached_tokens",
        "closed",
        "deadline",
        "eos",
        "grammar",
        "grant",
        "name",
        "num_queued",
        "num_running",
        "number",
        "open",
        "pooling",
        "priority",
        "prompt",
        "reported_running",
        "root",
        "sampling",
        "sequences",
        "session",
        "stopping",
        "stops",
        "tenant",
    )

    def __init__(
        self,
        session: bytes,
        submit: Submit,
        *,
        arrival: int,
        eos_token_ids: tuple[int, ...],
        root: bytes = b"",
        now: float = 0.0,
    ) -> None:
        self.session = session
        self.number = submit.request
        self.name = submit.name
        self.arrival = arrival
        self.tenant = submit.tenant
        self.grant = submit.grant
        self.priority = submit.priority
        self.accepted = now
        left = submit.time_left_ms
        self.deadline = None if left is None else now + left / 1000
        # Four bytes a token: a full queue holds millions of them.
        self.prompt = array("i", submit.prompt)
        self.stopping: Stopping = submit.stopping
        self.eos = frozenset(() if submit.stopping.ignore_eos else eos_token_ids)
        self.stops = frozenset(submit.stopping.stop_token_ids)
        self.sampling = worker_sampling(submit.sampling, submit.stopping, eos_token_ids)
        self.num_queued = self.num_running = 0
        self.reported_running = False
        self.beams = submit.beams
        self.closed = not submit.beams
        self.root = root
        self._prompt_keys: list[bytes] = []
        self.cached_tokens: int | None = None
        self.cached_reported = False
        self.grammar: int | None = None
        self.pooling = submit.pooling
        self.sequences = {
            opened.index: Sequence(self, opened, submit.deaths) for opened in submit.sequences
        }
        first = self.sequences.get(0)
        if first is not None and submit.sampling.prompt_logprobs is not None:
            first.prompt_reported = max(1, submit.prompt_delivered)
        self.open = len(self.sequences)

    @property
    def ended(self) -> bool:
        """Whether nothing of it is to come any more."""
        return self.closed and not self.open

    @property
    def num_carried(self) -> int:
        """What its sampling parameters bring along, as so many token ids."""
        wanted = self.sampling.adjustments
        if wanted is None:
            return 0
        words = sum(map(len, wanted.bad_words))
        return len(wanted.bias) + len(wanted.allowed or ()) + WORD_COST * words

    def advance(self, opened: list[OpenSequence]) -> None:
        """Gives a beam search its next sequences; the former ones have ended."""
        self.sequences = {each.index: Sequence(self, each, 0) for each in opened}
        self.open = len(self.sequences)

    def prompt_keys(self, num_blocks: int, block_size: int) -> list[bytes]:
        """Keys of the prompt's first `num_blocks` full blocks: the same for all of its sequences,
        and hashed once. The list is the request's own."""
        keys = self._prompt_keys
        for at in range(len(keys) * block_size, num_blocks * block_size, block_size):
            parent = keys[-1] if keys else self.root
            keys.append(block_key(parent, self.prompt[at : at + block_size]))
        return keys

    def take_cached_tokens(self) -> int | None:
        """cached_tokens, once: it goes out with the first tokens."""
        if self.cached_reported:
            return None
        self.cached_reported = self.cached_tokens is not None
        return self.cached_tokens


class Sequence:
    """One of a request's sequences.

    emitted: tokens so far; the first `delivered` of them were handed to the front end.
    num_tokens: prompt and emitted.  num_expected: the same once every step in flight is settled,
    if none of them ends the sequence.  most_tokens: what max_tokens lets it grow to.
    num_computed: tokens with KV, by settled steps.  num_scheduled: the same once every step in
    flight is settled; num_computed <= num_scheduled <= num_expected.
    in_flight: steps in flight that work on it.
    last_work: grows with the step, and the place in it, that the sequence was last served in.
    slot, table: None and empty unless the worker holds it.
    deferrals: steps in a row that gave no token because its mask was late; it begins below 0 where
    emitted tokens must be replayed before the first mask.
    deaths: how often an engine or worker died while it was in flight.  suspect_until: it may share
    a step with others only after it has computed this many tokens alone (0: no suspect).
    ticket: its place in the waiting queue (0: not in it).
    keys: of its full blocks behind those that hold its prompt alone, as far as they were asked for.
    num_keyed: its full blocks when it started.  num_published: blocks of its table that others can
    find by their keys.
    num_preemptions: how often it has lost its blocks to others.
    tokens_at_start: the num_tokens with which it last got a slot.
    brought: tokens that it had emitted elsewhere, before it was submitted here.
    timeline: where its time goes, if its front end asked; whoever accepts and ends it keeps it.
    prompt_reported: tokens of the prompt whose log-probabilities its front end has; all of them
    where it wants none.
    """

    __slots__ = (
        "brought",
        "deaths",
        "deferrals",
        "delivered",
        "emitted",
        "in_flight",
        "index",
        "keys",
        "last_work",
        "most_tokens",
        "num_computed",
        "num_expected",
        "num_keyed",
        "num_preemptions",
        "num_published",
        "num_scheduled",
        "num_tokens",
        "prompt_reported",
        "request",
        "slot",
        "state",
        "suspect_until",
        "table",
        "ticket",
        "timeline",
        "tokens_at_start",
    )

    def __init__(self, request: Request, opened: OpenSequence, deaths: int) -> None:
        self.request = request
        self.index = opened.index
        self.emitted = array("i", opened.emitted)
        self.delivered = self.brought = len(self.emitted)
        self.num_tokens = self.num_expected = len(request.prompt) + len(self.emitted)
        longest = self.brought + 1 if request.beams else request.stopping.max_tokens
        self.most_tokens = len(request.prompt) + longest
        self.num_computed = 0
        self.num_scheduled = 0
        self.num_keyed = self.num_published = 0
        self.keys: list[bytes] = []
        self.in_flight = 0
        self.last_work = 0
        self.state = SequenceState.WAITING
        self.slot: int | None = None
        self.table: BlockTable | None = None
        self.ticket = 0
        self.num_preemptions = 0
        self.tokens_at_start = self.num_tokens
        self.deaths = deaths
        self.deferrals = -len(self.emitted)
        self.suspect_until = self.num_tokens if deaths else 0
        self.timeline: TimelineBuilder | None = None
        self.prompt_reported = len(request.prompt)

    @property
    def reports_prompt(self) -> bool:
        """Whether log-probabilities of its prompt are still to be delivered."""
        return self.prompt_reported < len(self.request.prompt)

    @property
    def num_generated(self) -> int:
        """Tokens that came of it here. What stands for a pooled prompt's vectors is none."""
        return 0 if self.request.pooling is not None else len(self.emitted) - self.brought

    @property
    def first_wanted(self) -> int:
        """The first token whose logits somebody waits for: it must be computed, whatever the cache
        holds, and so must all after it."""
        return self.prompt_reported - 1 if self.reports_prompt else self.num_tokens - 1

    @property
    def finished(self) -> bool:
        return self.state in FINISH_REASONS

    def tokens(self) -> list[int]:
        """Prompt and emitted ids."""
        return (self.request.prompt + self.emitted).tolist()

    def block_keys(self, first: int, last: int, block_size: int) -> list[bytes]:
        """Keys of its blocks [first, last), all full."""
        request = self.request
        most = len(request.prompt) // block_size
        shared = request.prompt_keys(min(last, most), block_size)
        for number in range(most + len(self.keys), last):
            parent = self.keys[-1] if self.keys else (shared[most - 1] if most else request.root)
            at = number * block_size
            self.keys.append(block_key(parent, self._span(at, at + block_size)))
        own = self.keys[max(first - most, 0) : max(last - most, 0)]
        return shared[first : min(last, most)] + own

    def _span(self, start: int, end: int) -> array[int]:
        """Token ids [start, end)."""
        prompt, size = self.request.prompt, len(self.request.prompt)
        return prompt[start:end] + self.emitted[max(0, start - size) : max(0, end - size)]

    def append(self, token: int) -> None:
        self.emitted.append(token)
        self.num_tokens += 1
        self.deferrals = 0

    def move(self, state: SequenceState) -> None:
        """Changes the state. Raises IllegalTransition."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(
                f"sequence {self.index} of request {self.request.name}: "
                f"{self.state.name} doesn't lead to {state.name}"
            )
        if self.timeline is not None:
            self.timeline.moved(
                ran=self.state is SequenceState.RUNNING,
                runs=state is SequenceState.RUNNING,
                preempted=state is SequenceState.PREEMPTED,
            )
        self.state = state

    def forget_computed(self) -> None:
        """The KV is gone; so is every token that the front end has not been given."""
        del self.emitted[self.delivered :]
        self.num_tokens = self.num_expected = len(self.request.prompt) + len(self.emitted)
        self.num_computed = self.num_scheduled = self.last_work = 0
        self.num_keyed = self.num_published = 0
        # Keys of blocks that hold a deleted token would be wrong; they are soon made again.
        del self.keys[:]
        self.deferrals = -len(self.emitted)


def worker_sampling(
    sampling: TokenSampling, stopping: Stopping, eos_token_ids: tuple[int, ...]
) -> TokenSampling:
    """The sampling that a worker gets: ids that would end the sequence are held back at first.

    Only the engine knows all of them: the model's EOS ids and the request's own.
    """
    ends = (
        stopping.stop_token_ids
        if stopping.ignore_eos
        else (
            *eos_token_ids,
            *stopping.stop_token_ids,
        )
    )
    held_back = tuple(sorted(frozenset(ends))) if stopping.min_tokens else ()
    return msgspec.structs.replace(sampling, min_tokens=stopping.min_tokens, held_back=held_back)
