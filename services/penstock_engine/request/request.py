"""Requests and their sequences."""

from __future__ import annotations

from array import array

import msgspec

from penstock.protocol.common import (
    BACKGROUND_LEVELS,
    LogitsAdjustments,
    Stopping,
    TokenLogprobs,
    TokenSampling,
)
from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock_engine.kv.keys import block_key
from penstock_engine.kv.retention import KVSession
from penstock_engine.kv.table import BlockTable
from penstock_engine.media.request_media import RequestMedia
from penstock_engine.request.kept import KeptAnswer
from penstock_engine.request.progress import SequenceProgress
from penstock_engine.request.reader import Reader
from penstock_engine.request.states import (
    FINISH_REASONS,
    TRANSITIONS,
    IllegalTransition,
    SequenceState,
)
from penstock_engine.request.timeline import TimelineBuilder
from penstock_engine.speculation.history import SequenceDrafts

ITEM_COST, SPAN_COST = 64, 4
"""Cost of an item and of a span of media in a message, as so many token ids."""

WORD_COST = 8
"""Cost of an id in bad_words, which the worker makes an automaton of; an id that it only takes over
costs 1."""


def priority_of(submit: Submit) -> int:
    """Priority in the queue: background requests stand below all other requests of their time."""
    return submit.priority + BACKGROUND_LEVELS * submit.background


class Request:
    """What the sequences of one Submit have in common.

    Session and number together name it.  A beam search stays open while it has no sequences, until
    it is `closed`.
    """

    __slots__ = (
        "_prompt_keys",
        "accepted",
        "adapter",
        "arrival",
        "beams",
        "cached_reported",
        "cached_tokens",
        "claimed",
        "closed",
        "deadline",
        "draft_scope",
        "eos",
        "gathered",
        "grammar",
        "grant",
        "handed_over",
        "internal",
        "kept",
        "kv_session",
        "media",
        "name",
        "num_queued",
        "num_running",
        "number",
        "open",
        "pooling",
        "prediction",
        "priority",
        "prompt_token_ids",
        "readers",
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
        suppressed: tuple[int, ...] = (),
        root: bytes = b"",
        draft_scope: bytes = b"",
        media: RequestMedia | None = None,
        now: float = 0.0,
    ) -> None:
        self.session = session  # of the front end that asked
        self.number = submit.request  # by which that front end calls it
        self.name = submit.name  # for people
        self.arrival = arrival  # the engine's own count: the order of first come, first served
        self.tenant = submit.tenant
        self.grant = submit.grant
        self.priority = priority_of(submit)
        self.accepted = now  # seconds of the engine's clock
        left = submit.time_left_ms
        self.deadline = None if left is None else now + left / 1000  # on the same clock
        # Four bytes a token: a full queue holds millions of them.
        self.prompt_token_ids = array("i", submit.prompt_token_ids)
        self.prediction = array("i", submit.prediction)  # see Submit
        self.claimed = submit.claimed  # likewise
        self.stopping: Stopping = submit.stopping
        # Ids that end a sequence: the model's own, and the request's.
        self.eos = frozenset(() if submit.stopping.ignore_eos else eos_token_ids)
        self.stops = frozenset(submit.stopping.stop_token_ids)
        never = () if submit.pooling is not None else suppressed
        self.sampling = worker_sampling(submit.sampling, submit.stopping, eos_token_ids, never)
        # Sequences in the waiting queue, and in slots; queue and scheduler keep the counts.
        self.num_queued = self.num_running = 0
        self.reported_running = False  # its front end knows that some of it is in a slot
        self.beams = submit.beams  # of a beam search, sequences that it may have at once
        self.closed = not submit.beams
        self.handed_over = False  # it goes on at another engine core
        self.gathered = submit.gathered  # nobody reads its tokens as they come
        self.internal = False  # no front end asked for it
        self.kept: KeptAnswer | None = None  # None: nobody else may claim its answer
        self.readers: list[Reader] = []  # where several front ends' requests get its answer
        self.root = root  # parent of the keys of its blocks (see kv.keys)
        self.draft_scope = draft_scope  # see NewSequence
        self.adapter = submit.adapter  # None: the model's own weights alone
        self.media = media  # what placeholders of its prompt stand for; None: it has none
        self.kv_session: KVSession | None = None  # of which it is a turn; KVSessions gives it
        self._prompt_keys: list[bytes] = []
        self.cached_tokens: int | None = None
        """Prompt tokens found in the KV cache when its first sequence started; None before."""
        self.cached_reported = False
        self.grammar: int | None = None
        """The grammar's number, which GrammarManager gives and takes; None if the output is
        free."""
        self.pooling = submit.pooling  # what is asked of a model that gives vectors; None: text
        self.sequences = {
            opened.index: Sequence(self, opened, submit.deaths) for opened in submit.sequences
        }
        first = self.sequences.get(0)
        if first is not None and submit.sampling.prompt_logprobs is not None:
            first.prompt_reported = max(1, submit.prompt_delivered)
        self.open = len(self.sequences)  # sequences that have not ended

    @property
    def ended(self) -> bool:
        """Whether nothing of it is to come any more."""
        return self.closed and not self.open

    @property
    def num_carried(self) -> int:
        """What its sampling parameters, prediction and media bring along, as so many token ids."""
        media, wanted = len(self.prediction), self.sampling.adjustments
        if self.media is not None:
            prompt_media = self.media.media
            media += ITEM_COST * len(prompt_media.items) + SPAN_COST * len(prompt_media.spans)
        if wanted is None:
            return media
        words = sum(map(len, wanted.bad_words))
        speech = wanted.speech
        if speech is not None:
            media += len(speech.suppressed) + len(speech.suppressed_first)
        return media + len(wanted.bias) + len(wanted.allowed or ()) + WORD_COST * words

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
            tokens = self.prompt_token_ids[at : at + block_size]
            keys.append(block_key(parent, tokens, self.contents(at, at + block_size)))
        return keys

    def contents(self, start: int, end: int) -> bytes:
        """Returns the media content of tokens [start, end): see RequestMedia."""
        media = self.media
        return b"" if media is None or start >= media.end else media.contents(start, end)

    def take_cached_tokens(self) -> int | None:
        """cached_tokens, once: it goes out with the first tokens."""
        if self.cached_reported:
            return None
        self.cached_reported = self.cached_tokens is not None
        return self.cached_tokens


REUSED = 4
"""A bit that is added to those of KVCache.origins: some of it was found in the KV cache."""


class AuditTrail:
    """What is noted of a sequence that is to be audited.

    hidden: whether its log-probabilities are for the audit alone.  logprobs: of the tokens that
    were sampled here, float32 values.  reused: what of its KV it found, as bits.
    """

    __slots__ = ("hidden", "logprobs", "reused")

    def __init__(self, *, hidden: bool) -> None:
        self.hidden = hidden
        self.logprobs = array("d")
        self.reused = 0

    def take(self, logprobs: list[TokenLogprobs] | None) -> list[TokenLogprobs] | None:
        """Notes what a step gave. Returns what of it is for the front end."""
        self.logprobs.extend(each.logprob for each in logprobs or ())
        return None if self.hidden else logprobs


class Sequence:
    """One sequence of a request: its emitted tokens, its state and its progress."""

    __slots__ = (
        "brought",
        "deaths",
        "delivered",
        "drafts",
        "emitted",
        "index",
        "keys",
        "most_tokens",
        "num_keyed",
        "num_preemptions",
        "num_published",
        "progress",
        "prompt_reported",
        "request",
        "slot",
        "state",
        "suspect_until",
        "table",
        "ticket",
        "timeline",
        "tokens_at_start",
        "trail",
    )

    def __init__(self, request: Request, opened: OpenSequence, deaths: int) -> None:
        num_prompt = len(request.prompt_token_ids)
        self.request = request
        self.index = opened.index
        self.emitted = array("i", opened.emitted)  # token ids
        self.brought = len(self.emitted)  # tokens emitted elsewhere, before it came here
        self.delivered = self.brought  # of the emitted tokens, handed to the front end
        self.progress = SequenceProgress(num_prompt, self.brought)
        longest = self.brought + 1 if request.beams else request.stopping.max_tokens
        self.most_tokens = num_prompt + longest  # what max_tokens lets it grow to
        self.keys: list[bytes] = []
        """Keys of its full blocks after those that hold its prompt alone, as far as asked for."""
        self.num_keyed = 0  # full blocks when it started
        self.num_published = 0  # blocks of its table that others can find by their keys
        self.state = SequenceState.WAITING
        self.slot: int | None = None  # None unless the worker holds it
        self.table: BlockTable | None = None  # likewise
        self.drafts: SequenceDrafts | None = None  # None: nothing could be drafted so far
        self.ticket = 0  # its place in the waiting queue; 0: not in it
        self.num_preemptions = 0  # how often it has lost its blocks to others
        self.tokens_at_start = self.num_tokens  # when it last got a slot
        self.deaths = deaths  # engines or workers that died while it was in flight
        # It may share a step with others only after so many tokens were computed alone.
        self.suspect_until = self.num_tokens if deaths else 0
        self.timeline: TimelineBuilder | None = None
        """Times of what happened to the sequence; None if its front end didn't ask."""
        self.trail: AuditTrail | None = None  # None: it isn't to be audited
        self.prompt_reported = num_prompt
        """Tokens of the prompt whose log-probabilities its front end has; all of them where it
        wants none."""

    @property
    def num_tokens(self) -> int:
        """Prompt and emitted."""
        return self.progress.tokens

    @property
    def reports_prompt(self) -> bool:
        """Whether log-probabilities of its prompt are still to be delivered."""
        return self.prompt_reported < len(self.request.prompt_token_ids)

    @property
    def num_generated(self) -> int:
        """Tokens that came of it here. What stands for a pooled prompt's vectors is none."""
        return 0 if self.request.pooling is not None else len(self.emitted) - self.brought

    @property
    def first_wanted(self) -> int:
        """The first token whose logits somebody waits for: it must be computed, whatever the cache
        holds, and so must all after it."""
        pooling = self.request.pooling
        if pooling is not None and pooling.task == "align":
            return 0  # Attention is looked at while it is computed.
        return self.prompt_reported - 1 if self.reports_prompt else self.num_tokens - 1

    @property
    def finished(self) -> bool:
        return self.state in FINISH_REASONS

    def all_token_ids(self) -> list[int]:
        """Prompt and emitted ids."""
        return (self.request.prompt_token_ids + self.emitted).tolist()

    def block_keys(self, first: int, last: int, block_size: int) -> list[bytes]:
        """Keys of its blocks [first, last), all full."""
        request = self.request
        most = len(request.prompt_token_ids) // block_size
        shared = request.prompt_keys(min(last, most), block_size)
        for number in range(most + len(self.keys), last):
            parent = self.keys[-1] if self.keys else (shared[most - 1] if most else request.root)
            at = number * block_size
            contents = request.contents(at, at + block_size)
            self.keys.append(block_key(parent, self._span(at, at + block_size), contents))
        own = self.keys[max(first - most, 0) : max(last - most, 0)]
        return shared[first : min(last, most)] + own

    def key_at(self, tokens: int, block_size: int) -> bytes:
        """The key of its first tokens, however many. That of full blocks is the last one's."""
        blocks, rest = divmod(tokens, block_size)
        keys = self.block_keys(blocks - 1, blocks, block_size) if blocks else []
        parent = keys[0] if keys else self.request.root
        if not rest:
            return parent
        contents = self.request.contents(tokens - rest, tokens)
        return block_key(parent, self._span(tokens - rest, tokens), contents)

    def _span(self, start: int, end: int) -> array[int]:
        """Token ids [start, end)."""
        prompt, size = self.request.prompt_token_ids, len(self.request.prompt_token_ids)
        return prompt[start:end] + self.emitted[max(0, start - size) : max(0, end - size)]

    def append(self, token: int, more: list[int]) -> None:
        """A step has sampled a token, and others after drafts that were right."""
        self.emitted.append(token)
        self.progress.append(len(more))
        if more:
            self.emitted.extend(more)

    def move(self, state: SequenceState) -> None:
        """Changes the state. Raises IllegalTransition."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(
                f"sequence {self.index} of request {self.request.name}: "
                f"{self.state.name} can't change to {state.name}"
            )
        if self.timeline is not None:
            self.timeline.moved(
                ran=self.state is SequenceState.RUNNING,
                runs=state is SequenceState.RUNNING,
                preempted=state is SequenceState.PREEMPTED,
                loaded=self.state is SequenceState.WAITING_FOR_MEDIA,
                fetched=self.state is SequenceState.WAITING_FOR_REMOTE_KV,
            )
        self.state = state

    def forget_computed(self) -> None:
        """The KV is gone; so is every token that the front end has not been given."""
        del self.emitted[self.delivered :]
        if self.drafts is not None:
            self.drafts.forget_proposed()
        self.progress.restart(len(self.request.prompt_token_ids), len(self.emitted))
        self.num_keyed = self.num_published = 0
        # Keys of blocks that hold a deleted token would be wrong; they are soon made again.
        del self.keys[:]


def worker_sampling(
    sampling: TokenSampling,
    stopping: Stopping,
    eos_token_ids: tuple[int, ...],
    suppressed: tuple[int, ...] = (),
) -> TokenSampling:
    """The sampling that a worker gets, by the request's ids and by the model's own, which the
    engine alone knows: what would end the sequence is held back at first, and what the model never
    writes (GenerationDefaults.suppress_tokens) is a bad word."""
    ends = (*(() if stopping.ignore_eos else eos_token_ids), *stopping.stop_token_ids)
    held_back = tuple(sorted(frozenset(ends))) if stopping.min_tokens else ()
    changes: dict[str, object] = {"min_tokens": stopping.min_tokens, "held_back": held_back}
    if suppressed:
        own = sampling.adjustments or LogitsAdjustments()
        words = (*own.bad_words, *((token,) for token in suppressed))
        changes["adjustments"] = msgspec.structs.replace(own, bad_words=words)
    return msgspec.structs.replace(sampling, **changes)
