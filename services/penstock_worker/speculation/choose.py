"""Chooses what drafts tokens, for the model and settings that a worker has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from penstock.errors import StartupError
from penstock.model.prepared_model import PreparedModel
from penstock.model.speculation import DraftMethod, SpeculativeConfig
from penstock.process import logs
from penstock.protocol.to_worker import FetchKV, Plan, Setup, SlotWork
from penstock_worker.batch.slots import Slots
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.parallel.place import RankPlace
from penstock_worker.speculation.drafting import Drafting, Proposer, proposed_otherwise
from penstock_worker.speculation.lookup import (
    FollowedSlot,
    Lookup,
    LookupProposer,
    RecentOutputs,
    RunLengths,
)
from penstock_worker.speculation.matches import FoundRun, longest_matches
from penstock_worker.speculation.run_search import run_search
from penstock_worker.speculation.token_index import TokenIndex

log = logs.get(__name__)


def drafting_for(
    prepared: PreparedModel,
    setup: Setup,
    slots: Slots,
    place: RankPlace,
    *,
    grammars: SlotGrammars,
    runs_ahead: bool = False,
    model: Proposer | None = None,
) -> Drafting | None:
    """Returns what drafts for a model; None: nothing does. `model` (a draft model, or a head)
    drafts where nothing can be looked up. For the other parameters see `choose_proposer`."""
    config = setup.speculation
    if model is None or config is None:
        proposer: Proposer | None = choose_proposer(setup, slots, place, runs_ahead=runs_ahead)
    else:
        lookup = _beside_model(config, slots, together=place.ranks > 1)
        proposer = LookupFirst(lookup, model)
    if config is None or proposer is None:
        return None
    if place.ranks == 1:
        proposer = ForcedTokens(grammars, proposer, config.num_speculative_tokens)
    ends = prepared.generation.eos_token_ids
    return Drafting(slots, proposer, ends=ends, together=place.ranks > 1)


def choose_proposer(
    setup: Setup,
    slots: Slots,
    place: RankPlace,
    *,
    runs_ahead: bool = False,
) -> Proposer | None:
    """Returns what drafts for these slots; None where that is not asked for or not possible.

    `runs_ahead`: whether steps are begun before the host knows the tokens of those before.
    """
    config = setup.speculation
    if config is None:
        return None
    reason = _hindrance(config, place, runs_ahead=runs_ahead)
    if reason is not None:
        log.info("no tokens are drafted", reason=reason)
        return None
    log.info("tokens are drafted", method=config.method, most=config.num_speculative_tokens)
    return lookup_proposer(config, slots, together=place.ranks > 1, runs_ahead=runs_ahead)


def lookup_proposer(
    config: SpeculativeConfig, slots: Slots, *, together: bool = False, runs_ahead: bool = False
) -> Proposer:
    """Returns what looks drafts up. Raises StartupError for a method that computes them."""
    if config.method not in _WAYS:
        raise StartupError(
            f"speculative_config: method {config.method} is not served here; allowed are"
            f" {', '.join(_WAYS)}"
        )
    # Ranks that run ahead learn at different times what a released slot's last tokens were.
    shared = not (runs_ahead and together)
    ways = _ways((*config.before, config.method), config, shared=shared)
    return LookupProposer(slots, ways, config.num_speculative_tokens, together=together)


def _beside_model(config: SpeculativeConfig, slots: Slots, *, together: bool) -> LookupProposer:
    """Returns what looks drafts up before a model or a head is asked: by the methods that are
    preferred to it; without any, only what is better than theirs: what follows long runs, and
    what the request says will come."""
    long = config.prompt_lookup_max
    ways = _ways(config.before, config, shared=True)
    if not config.before:
        ways.append(SuffixLookup(RunLengths(long, long), RecentOutputs(long)))
    return LookupProposer(slots, ways, config.num_speculative_tokens, together=together)


def _ways(
    methods: Sequence[DraftMethod], config: SpeculativeConfig, *, shared: bool
) -> list[Lookup]:
    """Returns how drafts are looked up by these methods, in their order. `shared`: whether outputs
    of other sequences are kept."""
    further = [_WAYS[method](config, shared) for method in methods]
    return [PredictionLookup(_run_lengths(config)), *further]


def _hindrance(config: SpeculativeConfig, place: RankPlace, *, runs_ahead: bool) -> str | None:
    """Returns why nothing is drafted; None if drafts can be checked, and are wanted."""
    if config.automatic and runs_ahead:
        return "on a GPU, speculative_config has to ask for it"
    if not (place.first and place.last):
        return "the stages of a pipeline don't know one another's drafts"
    return None


def _run_lengths(config: SpeculativeConfig) -> RunLengths:
    return RunLengths(config.prompt_lookup_min, config.prompt_lookup_max)


def _ngram(config: SpeculativeConfig, shared: bool) -> Lookup:
    return PromptLookup(_run_lengths(config))


def _suffix(config: SpeculativeConfig, shared: bool) -> Lookup:
    recent = RecentOutputs(config.prompt_lookup_min) if shared else None
    return SuffixLookup(_run_lengths(config), recent)


_WAYS: dict[DraftMethod, Callable[[SpeculativeConfig, bool], Lookup]] = {
    "ngram": _ngram,
    "suffix": _suffix,
}
"""Ways to look drafts up, by method."""


WAIT = 0.0005
"""Seconds that a step's hints may wait for grammars, all slots together."""


class ForcedTokens(Proposer):
    """Proposes what a slot's grammar forces (the keys of a JSON schema, the rest of a word), and
    asks another proposer where it forces nothing.

    The grammar's masks allow other ways to write the same text; the model mostly takes this one.
    What is forced is known when the grammar has followed the newest token, in a thread of its own:
    so ranks that must draft the same can't have this.
    """

    def __init__(self, grammars: SlotGrammars, other: Proposer, most: int) -> None:
        """`most`: ids of a draft."""
        self._grammars = grammars
        self._other = other
        self._most = most
        self._counted: dict[int, int] = {}
        """The first of the ids that `proposed` counted for each slot, where a grammar forced
        them."""

    def take(self, plan: Plan) -> None:
        for slot in plan.released:
            self._counted.pop(slot, None)
        self._other.take(plan)

    def fetched(self, message: FetchKV) -> None:
        self._other.fetched(message)

    def propose(self, scheduled: Sequence[SlotWork]) -> list[list[int]]:
        found = [
            self._grammars.forced(work.slot)[: work.draft] if work.draft else []
            for work in scheduled
        ]
        return proposed_otherwise(self._other, scheduled, found)

    def proposed(self, slot: int) -> int:
        held = self._grammars.count
        forced = self._grammars.forced(slot, WAIT / held)[: self._most] if held else []
        if not forced:
            self._counted.pop(slot, None)
            return self._other.proposed(slot)
        self._counted[slot] = forced[0]
        return len(forced)

    def first(self, slot: int) -> int | None:
        counted = self._counted.pop(slot, None)  # There may be no look before the next token.
        return self._other.first(slot) if counted is None else counted

    def upkeep_seconds(self) -> float:
        return self._other.upkeep_seconds()

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        self._other.undo(scheduled)

    def reset(self) -> None:
        self._counted.clear()
        self._other.reset()


class LookupFirst(Proposer):
    """Looks drafts up, and has a draft model or a head compute those of which nothing was found."""

    def __init__(self, lookup: LookupProposer, model: Proposer) -> None:
        self._lookup = lookup
        self._model = model

    def take(self, plan: Plan) -> None:
        self._lookup.take(plan)
        self._model.take(plan)

    def fetched(self, message: FetchKV) -> None:
        self._model.fetched(message)

    def propose(self, scheduled: Sequence[SlotWork]) -> list[list[int]]:
        return proposed_otherwise(self._model, scheduled, self._lookup.propose(scheduled))

    def proposed(self, slot: int) -> int:
        # The model's are as many as are allowed, unless it rests.
        return self._model.proposed(slot) or self._lookup.proposed(slot)

    def first(self, slot: int) -> int | None:
        return (self._model if self._model.proposed(slot) else self._lookup).first(slot)

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        self._lookup.undo(scheduled)
        self._model.undo(scheduled)

    def upkeep_seconds(self) -> float:
        return self._model.upkeep_seconds()

    def reset(self) -> None:
        self._lookup.reset()
        self._model.reset()


class PromptLookup:
    """Prompt lookup decoding (Saxena 2023), as vLLM's `ngram`: the longest run of the last tokens
    that occurred earlier in prompt or output, and what followed it the last time."""

    def __init__(self, lengths: RunLengths) -> None:
        self._lengths = lengths

    def guess(self, followed: FollowedSlot, most: int) -> list[int]:
        tail = followed.tail(self._lengths.most)
        if len(tail) < self._lengths.least:
            return []
        return run_search().latest(followed.index(self._lengths.least), tail, most)

    def ended(self, followed: FollowedSlot) -> None:
        """Does nothing: nothing is kept of other sequences."""

    def clear(self) -> None:
        """Does nothing: nothing is kept."""


class _Followed:
    """How far an output has followed its prediction."""

    def __init__(self, prediction: list[int], width: int) -> None:
        self.index = TokenIndex(width, prediction)
        self.index.extend(len(prediction) - 1)
        self.seen = 0
        """Emitted tokens that `at` takes into account."""
        self.at = 0
        """The prediction's token that comes next if the output follows it."""
        self.astray = False
        """Whether the output has left it."""


class PredictionLookup:
    """Follows `Submit.prediction` from its beginning. Where the output leaves it, it is taken up
    again after the longest run of the output's last tokens that it has, and of several such runs
    after the next one."""

    def __init__(self, lengths: RunLengths) -> None:
        self._lengths = lengths
        self._states: WeakKeyDictionary[FollowedSlot, _Followed] = WeakKeyDictionary()

    def guess(self, followed: FollowedSlot, most: int) -> list[int]:
        if not followed.prediction:
            return []
        state = self._states.get(followed)
        if state is None:
            state = self._states[followed] = _Followed(followed.prediction, self._lengths.least)
        self._follow(state, followed)
        if state.astray:
            return []
        return followed.prediction[state.at : state.at + most]

    def ended(self, followed: FollowedSlot) -> None:
        self._states.pop(followed, None)

    def clear(self) -> None:
        self._states.clear()

    def _follow(self, state: _Followed, followed: FollowedSlot) -> None:
        slot, prediction = followed.slot, followed.prediction
        known = followed.known - slot.num_prompt
        for count in range(state.seen + 1, known + 1):
            token = slot.token_ids[slot.num_prompt + count - 1]
            if not state.astray and prediction[state.at : state.at + 1] == [token]:
                state.at += 1
            else:
                self._take_up(state, followed, count)
        state.seen = max(state.seen, known)

    def _take_up(self, state: _Followed, followed: FollowedSlot, emitted: int) -> None:
        end = followed.slot.num_prompt + emitted
        tail = followed.slot.token_ids[end - min(emitted, self._lengths.most) : end]
        found = longest_matches(state.index, tail) if emitted >= self._lengths.least else []
        state.astray = not found
        if found:
            state.at = _next(found, state.at) + 1


def _next(matches: list[FoundRun], at: int) -> int:
    """Returns the place of the first match that is not before `at`; of the last one if all are."""
    places = sorted(match.place for match in matches)
    return next((place for place in places if place >= at), places[-1])


class SuffixLookup:
    """After SuffixDecoding (Oliaro et al. 2024, arXiv:2411.04975): what followed the longest suffix
    of the tokens, the most frequent first, where that is likely enough, and the longer the longer
    the suffix.

    There, trees hold all suffixes of the request and of earlier outputs, with counts. Here, a chain
    leads to the newest occurrences of a run, and what followed these is counted when it is needed:
    a token is added in the same time whatever the tokens are, and old ones are forgotten by the
    list. Other sequences are looked at only if they had the same scope.
    """

    def __init__(self, lengths: RunLengths, recent: RecentOutputs | None = None) -> None:
        """`recent`: outputs that have ended; None: the request's own tokens are all that is
        known."""
        self._lengths = lengths
        self._recent = recent

    def guess(self, followed: FollowedSlot, most: int) -> list[int]:
        tail = followed.tail(self._lengths.most)
        if len(tail) < self._lengths.least:
            return []
        indexes = [followed.index(self._lengths.least)]
        if self._recent is not None:
            indexes += self._recent.of(followed.scope)
        return run_search().voted(indexes, tail, self._lengths.most, most)

    def ended(self, followed: FollowedSlot) -> None:
        if self._recent is not None:
            begin = max(0, followed.slot.num_prompt - self._lengths.most)
            output = followed.slot.token_ids[begin : followed.known]
            self._recent.add(followed.scope, output)

    def clear(self) -> None:
        if self._recent is not None:
            self._recent.clear()
