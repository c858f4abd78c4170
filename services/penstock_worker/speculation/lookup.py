"""Drafts that are looked up, in what a slot has said so far and in outputs that have ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.speculation.drafting import Proposer
from penstock_worker.speculation.matches import SEPARATOR
from penstock_worker.speculation.run_search import RunIndex, run_search

TOKENS = 262_144
"""The tokens that are kept of all scopes together: some 40 MB."""
SCOPE_TOKENS = 65_536
"""The tokens that are kept of one scope."""


class _Generation:
    """Outputs one after another, and where their runs are."""

    def __init__(self, width: int) -> None:
        self.tokens: list[int] = []
        self.index = run_search().index(width, self.tokens)

    def add(self, output: Sequence[int]) -> None:
        self.tokens += [*output, SEPARATOR]
        self.index.extend(len(self.tokens))


class _Scope:
    """The outputs of those who may be drafted from one another: a generation that grows, and the
    one before. When the new one is full, the old one is forgotten as a whole, so nothing is ever
    searched for what is too old."""

    def __init__(self, width: int, tokens: int) -> None:
        self._width = width
        self._room = tokens // 2
        self.generations = [_Generation(width)]

    @property
    def size(self) -> int:
        return sum(len(each.tokens) for each in self.generations)

    def add(self, output: Sequence[int]) -> None:
        output = output[: self._room - 1]
        newest = self.generations[0]
        if len(newest.tokens) + len(output) + 1 > self._room:
            newest = _Generation(self._width)
            self.generations = [newest, *self.generations[:1]]
        newest.add(output)


class RecentOutputs:
    """Recent outputs by scope. The scope that has gone longest without an output is forgotten first
    where there are too many tokens."""

    def __init__(
        self, width: int, *, tokens: int = TOKENS, scope_tokens: int = SCOPE_TOKENS
    ) -> None:
        """`width`: of the shortest run that is looked for. At most `tokens` are kept, and
        `scope_tokens` of one scope, separators included."""
        self._width = width
        self._tokens = tokens
        self._scope_tokens = min(tokens, scope_tokens)
        self._scopes: OrderedDict[bytes, _Scope] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """Tokens that are kept."""
        return self._size

    def of(self, scope: bytes) -> list[RunIndex]:
        """Returns the indexes of a scope, the newer one first."""
        held = self._scopes.get(scope)
        return [] if held is None else [each.index for each in held.generations]

    def add(self, scope: bytes, output: Sequence[int]) -> None:
        """Adds an output, with the last tokens before it. Nothing is kept for the empty scope."""
        if not scope or len(output) <= self._width:
            return
        held = self._scopes.pop(scope, None) or _Scope(self._width, self._scope_tokens)
        self._scopes[scope] = held
        before = held.size
        held.add(output)
        self._size += held.size - before
        while self._size > self._tokens:
            _, oldest = self._scopes.popitem(last=False)
            self._size -= oldest.size

    def clear(self) -> None:
        self._scopes.clear()
        self._size = 0


class FollowedSlot:
    """A slot whose tokens are indexed as they come."""

    def __init__(self, slot: Slot, new: NewSequence, like: FollowedSlot | None) -> None:
        self.slot = slot
        self.scope: bytes = new.draft_scope if like is None else like.scope
        self.prediction: list[int] = new.prediction if like is None else like.prediction
        self.guess: list[int] = []
        """The latest guess of what follows the slot's tokens."""
        self.guessed_at = -1
        """How many tokens were known then."""
        self.pace = LookPace()
        self._like = like
        self._prompt: RunIndex | None = None
        self._index: RunIndex | None = None

    @property
    def known(self) -> int:
        """Number of its tokens that the host knows."""
        return self.slot.known

    def judge(self, known: int) -> None:
        """More tokens are known, and the last guess is of no use any more."""
        if self.guess and 0 <= self.guessed_at < known:
            self.pace.judge(self.guess, self.slot.token_ids[self.guessed_at])
        self.guess, self.guessed_at = [], -1

    def tail(self, most: int) -> list[int]:
        """Returns its last tokens that are known, at most `most`."""
        known = self.known
        return self.slot.token_ids[max(0, known - most) : known]

    def index(self, width: int) -> RunIndex:
        """Returns an index of all runs but the last one. It is made at the first call, and is an
        index of the prompt that all sequences of a request share, and one of the output."""
        if self._index is None:
            prompt = self._prompt_index(width)
            self._index = run_search().index(width, self.slot.token_ids, prompt, prompt.end)
        self._index.extend(self.known - 1)
        return self._index

    def _prompt_index(self, width: int) -> RunIndex:
        if self._prompt is None:
            if self._like is not None:
                self._prompt = self._like._prompt_index(width)
                self._like = None
            else:
                prompt = run_search().index(width, self.slot.token_ids[: self.slot.num_prompt])
                prompt.extend(self.slot.num_prompt - 1)
                self._prompt = prompt
        return self._prompt


class FollowedSlots:
    """The slots that have sequences, whose tokens are followed."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._held: dict[int, FollowedSlot] = {}

    def __getitem__(self, number: int) -> FollowedSlot:
        return self._held[number]

    def __contains__(self, number: int) -> bool:
        return number in self._held

    def clear(self) -> None:
        self._held.clear()

    def take(self, plan: Plan) -> Sequence[FollowedSlot]:
        """Follows the plan's releases and admissions. Returns what was released."""
        held = self._held
        # One that is released in the plan may be named by it: others are like it before it goes.
        released = [held.pop(number) for number in plan.released if number in held]
        for new in plan.admitted:
            like = None if new.like is None else held.get(new.like)
            held[new.slot] = FollowedSlot(self._slots[new.slot], new, like)
        return released


WRONG = 3
"""Guesses in a row that may be wrong before a sequence is left alone for a while."""
LONGEST = 16
"""Tokens for which it is left alone at most."""
IDLE, GLANCE = 8, 4
"""After IDLE tokens in a row with nothing found, only every GLANCE-th token is looked at."""


class LookPace:
    """A look costs up to 12 µs of every step, and of each sequence in it; 50 without the kernels'
    library. Text that repeats nothing gains nothing by that: so where guesses turn out wrong, or
    there are none, looks become rare. One guess that is right brings them all back."""

    __slots__ = ("_idle", "_next", "_wrong")

    def __init__(self) -> None:
        self._wrong = 0  # guesses in a row
        self._idle = 0  # looks in a row that found nothing
        self._next = 0  # number of tokens at the next look

    def due(self, known: int) -> bool:
        """Whether there is a look, where so many tokens are known."""
        return known >= self._next

    def judge(self, guess: Sequence[int], came: int) -> None:
        """`came`: the token that came where `guess` was expected."""
        self._wrong = 0 if guess[0] == came else self._wrong + 1

    def looked(self, known: int, *, found: bool) -> None:
        """Notes a look at what could be drafted, and whether anything was found."""
        self._idle = 0 if found else self._idle + 1
        rest = GLANCE if self._idle > IDLE else 1
        if self._wrong > WRONG:
            rest = max(rest, min(2 ** (self._wrong - WRONG), LONGEST))
        self._next = known + rest


class RunLengths(NamedTuple):
    """How long the runs are that are looked for."""

    least: int
    most: int


class Lookup(Protocol):
    """A way to look drafts up. Sequences may be looked at by several threads at once, each by one
    of them."""

    def guess(self, followed: FollowedSlot, most: int) -> list[int]:
        """Returns at most `most` ids that may follow."""

    def ended(self, followed: FollowedSlot) -> None:
        """The sequence is gone. Called between steps."""

    def clear(self) -> None:
        """Forgets everything, because a new session with the engine core begins."""


class LookupProposer(Proposer):
    """Asks several ways in turn; the first that has an idea is followed."""

    def __init__(
        self, slots: Slots, ways: Sequence[Lookup], most: int, *, together: bool = False
    ) -> None:
        """`most`: ids of a draft. `together`: other ranks draft the same, and may be asked for
        `proposed` at other times."""
        self._slots = slots
        self._ways = ways
        self._most = most
        self._together = together
        self._followed = FollowedSlots(slots)

    def take(self, plan: Plan) -> None:
        for followed in self._followed.take(plan):
            for way in self._ways:
                way.ended(followed)

    def propose(self, scheduled: Sequence[SlotWork]) -> list[list[int]]:
        return [self._of_work(work) if work.draft else [] for work in scheduled]

    def proposed(self, slot: int) -> int:
        if slot not in self._followed:
            return 0
        followed = self._followed[slot]
        known = followed.known
        if followed.guessed_at == known:
            return len(followed.guess)
        followed.judge(known)
        if not followed.pace.due(known) and not followed.prediction:
            return 0
        guess = self._look_up(followed, self._most)
        followed.pace.looked(known, found=bool(guess))
        followed.guess, followed.guessed_at = guess, known
        return len(guess)

    def first(self, slot: int) -> int | None:
        if slot not in self._followed:
            return None
        followed = self._followed[slot]
        if not followed.guess or followed.guessed_at != followed.known - 1:
            return None
        return followed.guess[0]

    def reset(self) -> None:
        self._followed.clear()
        for way in self._ways:
            way.clear()

    def _of_work(self, work: SlotWork) -> list[int]:
        if work.start + work.count < len(self._slots[work.slot].token_ids):
            return []
        followed = self._followed[work.slot]
        most = min(work.draft, self._most)
        if not self._together and followed.guessed_at == followed.known:
            return followed.guess[:most]
        return self._look_up(followed, most)

    def _look_up(self, followed: FollowedSlot, most: int) -> list[int]:
        for way in self._ways:
            guess = way.guess(followed, most)
            if guess:
                return guess
        return []
