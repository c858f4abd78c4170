"""Checks a core's invariants. Linear in its whole state: for tests, and after an internal error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from penstock_engine.core_state import CoreState
from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.checkpoints import Checkpoints
from penstock_engine.kv.groups import KVGroups
from penstock_engine.kv.pool import BrokenState
from penstock_engine.kv.table import BlockTable
from penstock_engine.media.manager import MediaManager
from penstock_engine.request.request import Request
from penstock_engine.request.request import Sequence as Running
from penstock_engine.request.states import SequenceState
from penstock_engine.scheduler.state import SchedulerState
from penstock_engine.sessions.frontends import Frontends, FrontendSession
from penstock_engine.sessions.shared_answers import SharedAnswers
from penstock_engine.waiting.adapters import AdapterManager
from penstock_engine.waiting.disk_kv import RemoteKV
from penstock_engine.waiting.grammars import GrammarManager

_QUEUED = (SequenceState.WAITING, SequenceState.PREEMPTED)
_FOR_OTHERS = (SequenceState.WAITING_FOR_GRAMMAR, SequenceState.WAITING_FOR_REMOTE_KV)
"""In which a sequence's grammar may still be compiled."""


def check(state: CoreState) -> None:
    """Raises BrokenState where the parts of a core's state contradict one another."""
    check_scheduling(state.scheduling)
    replays = [] if state.audits is None else list(state.audits.requests())
    check_requests(
        state.scheduling,
        state.grammars,
        state.media,
        state.remote_kv,
        state.adapters,
        chain(state.frontends.requests(), replays),
    )
    for session in state.frontends:
        check_gathered(session)
    state.media.check()
    state.disk_kv.check()
    state.expected_prompts.check([each.session for each in state.frontends])
    state.kv_sessions.check(state.frontends.requests())
    state.kept_answers.check(state.frontends.orphanage.requests.values())
    check_readers(state.frontends, state.shared_answers)
    state.calls.check()
    state.adapters.check(chain(state.frontends.requests(), replays))


def check_scheduling(scheduling: SchedulerState) -> None:
    """Raises BrokenState unless slots, blocks, queue counts and states agree with each
    other."""
    _check_holders(scheduling)
    _check_queue(scheduling)
    if scheduling.cache is not None:
        holders = [*scheduling.running.values(), *scheduling.marked.values()]
        scheduling.cache.check(s.table.blocks for s in holders if s.table is not None)
        for sequence in holders:
            check_checkpoints(scheduling.cache, scheduling.kv_groups, sequence)


def check_gathered(session: FrontendSession) -> None:
    """Raises BrokenState where outputs are held of a sequence that has ended."""
    for number, index in session.gathered:
        reader = session.readers.get(number)
        request = session.requests.get(number)
        sequence = None if request is None else request.sequences.get(index)
        lives = sequence is not None and not sequence.finished
        lives = lives if reader is None else index in reader.open
        _demand(lives, f"outputs of sequence {index} of request {number} are held after its end")


def check_readers(frontends: Frontends, shared: SharedAnswers) -> None:
    """Raises BrokenState unless each reader of a shared answer is one to its front end and to the
    answer, and waits for what is open."""
    there = [reader for session in frontends for reader in session.readers.values()]
    known = [reader for request in shared.requests.values() for reader in request.readers]
    counted = Counter(reader.tenant for reader in there)
    _demand(counted == shared.counted.by_tenant, "the tenants' readers are miscounted")
    _demand(set(there) == set(known), f"{len(there)} readers have answers, {len(known)} are known")
    for request in shared.requests.values():
        alive = {index for index, each in request.sequences.items() if not each.finished}
        _demand(bool(request.readers), f"nobody reads the shared answer of {request.name}")
        for reader in request.readers:
            waits = bool(reader.open) and reader.open <= alive
            _demand(waits, f"a reader of {request.name} waits for what has ended")


def check_requests(
    scheduling: SchedulerState,
    grammars: GrammarManager,
    media: MediaManager,
    remote_kv: RemoteKV,
    adapters: AdapterManager,
    requests: Iterable[Request],
) -> None:
    """Raises BrokenState unless each live sequence is queued, runs, or waits for its grammar, for
    media, for its adapter or for remote KV, and does only one of these; and unless each grammar has
    the holders it counts."""
    live = 0
    holders: Counter[int] = Counter()
    parked = frozenset(grammars.parked())
    aside = (
        (SequenceState.WAITING_FOR_GRAMMAR, parked),
        (SequenceState.WAITING_FOR_REMOTE_KV, frozenset(remote_kv.parked())),
        (SequenceState.WAITING_FOR_MEDIA, frozenset(media.parked())),
        (SequenceState.WAITING_FOR_ADAPTER, frozenset(adapters.parked())),
    )
    for request in requests:
        alive = [sequence for sequence in request.sequences.values() if not sequence.finished]
        live += len(alive)
        if not alive and request.closed:
            raise BrokenState(f"request {request.name} is open, but all its sequences have ended")
        if request.open != len(alive):
            raise BrokenState(f"request {request.name}: {request.open} are open")
        for sequence in alive:
            _check_place(sequence, scheduling, aside)
            waits = sequence.state in _FOR_OTHERS or grammars.is_ready(request)
            if not waits:
                where = f"sequence {sequence.index} of {request.name}"
                raise BrokenState(f"{where} is runnable, but its grammar isn't ready")
        if request.grammar is not None:
            holders[request.grammar] += 1
    grammars.check(holders)
    held = len(scheduling.running) + scheduling.queue.num_sequences
    held += sum(len(place) for _, place in aside)
    _demand(live == held, f"{live} sequences are live, the scheduler knows {held}")


def _check_place(
    sequence: Running,
    scheduling: SchedulerState,
    aside: Iterable[tuple[SequenceState, frozenset[Running]]],
) -> None:
    """Raises BrokenState unless a live sequence is in one place, and its state says so. aside:
    those that wait aside, by the state that they have."""
    state = sequence.state
    runs = sequence.slot is not None and scheduling.running.get(sequence.slot) is sequence
    places = runs + bool(sequence.ticket)
    for waits, place in aside:
        there = sequence in place
        places += there
        if (state is waits) != there:
            where = f"sequence {sequence.index} of {sequence.request.name}"
            raise BrokenState(f"{where} is {state.name}")
    if places != 1:
        where = f"sequence {sequence.index} of {sequence.request.name}"
        raise BrokenState(f"{where} is in {places} places, not 1")


def _check_holders(scheduling: SchedulerState) -> None:
    slots = [*scheduling.running, *scheduling.marked, *scheduling.free_slots]
    _demand(sorted(slots) == list(range(scheduling.max_num_seqs)), f"slots are {sorted(slots)}")
    for slot, sequence in scheduling.leaving.items():
        if scheduling.running.get(slot) is not sequence:
            raise BrokenState(f"slot {slot} is leaving, but doesn't run")
    drafts = _drafts_in_flight(scheduling)
    for slot, sequence in [*scheduling.running.items(), *scheduling.marked.items()]:
        complaint = _complaint_of_holder(scheduling, slot, sequence, drafts.get(slot, 0))
        if complaint is not None:
            raise BrokenState(f"slot {slot} {complaint}")


def _complaint_of_holder(
    scheduling: SchedulerState, slot: int, sequence: Running, drafts: int
) -> str | None:
    """What is wrong with the sequence that a slot is held by. drafts: those in flight to it."""
    progress, table = sequence.progress, sequence.table
    if scheduling.pool is None:
        return "is held without a worker"
    if sequence.slot != slot:
        return f"holds a sequence of slot {sequence.slot}"
    if table is None:
        return "has no block table"
    if not 0 <= progress.computed <= progress.scheduled <= progress.expected:
        order = [progress.computed, progress.scheduled, progress.expected]
        return f"has computed, scheduled, expected {order}"
    if progress.scheduled + progress.drafts > table.capacity:
        return "has KV beyond its blocks"
    if progress.drafts != drafts:
        return f"has {progress.drafts} drafts; {drafts} were sent"
    if sequence.ticket:
        return "is in the queue too"
    tokens = len(sequence.request.prompt_token_ids) + len(sequence.emitted)
    if sequence.num_tokens != tokens:
        return f"has {sequence.num_tokens} of {tokens} tokens"
    running = slot in scheduling.running
    ahead = progress.expected - sequence.num_tokens
    if running and not 0 <= ahead <= progress.in_flight:
        return f"expects {ahead} tokens of {progress.in_flight} steps"
    if (sequence.state is SequenceState.RUNNING) != running:
        return f"is {sequence.state.name}"
    if not running and progress.in_flight <= 0:
        return "is marked, but not in flight"
    return None


def _drafts_in_flight(scheduling: SchedulerState) -> dict[int, int]:
    """Number of drafts of all steps in flight, by slot."""
    found: Counter[int] = Counter()
    for step in scheduling.in_flight:
        found.update({s.slot: step.room(s.slot) for s, _, _ in step.items if s.slot is not None})
    return found


def _check_queue(scheduling: SchedulerState) -> None:
    queue = scheduling.queue
    queued = queue.sequences()
    requests = {id(sequence.request): sequence.request for sequence in queued}
    _demand(queue.num_sequences == len(queued), f"{queue.num_sequences} of {len(queued)} queued")
    _demand(queue.num_requests == len(requests), f"{queue.num_requests} of {len(requests)} waiting")
    tokens = sum(sequence.num_tokens for sequence in queued)
    _demand(queue.num_tokens == tokens, f"{queue.num_tokens} of {tokens} tokens queued")
    predicted = sum(len(request.prediction) for request in requests.values())
    _demand(queue.num_predicted == predicted, f"{queue.num_predicted} of {predicted} predicted")
    _demand(
        sum(request.num_queued for request in requests.values()) == len(queued),
        "the requests' counts of queued sequences don't add up",
    )
    for sequence in queued:
        complaint = _complaint_of_queued(sequence)
        if complaint is not None:
            name = f"queued sequence {sequence.index} of {sequence.request.name}"
            raise BrokenState(f"{name} {complaint}")


def _complaint_of_queued(sequence: Running) -> str | None:
    progress = sequence.progress
    if sequence.state not in _QUEUED:
        return f"is {sequence.state.name}"
    if sequence.slot is not None or sequence.table is not None:
        return "holds a slot"
    if progress.scheduled or progress.in_flight or progress.drafts:
        return "is scheduled"
    return None if progress.expected == sequence.num_tokens else "expects tokens"


def _demand(holds: bool, complaint: str) -> None:
    if not holds:
        raise BrokenState(complaint)


def check_checkpoints(cache: KVCache, groups: KVGroups, sequence: Running) -> None:
    """Raises BrokenState unless a sequence that has a table holds its newest checkpoint and those
    that there is room for, each block of them once; and unless they are named by the tokens that
    they stand for, at multiples of the rule's number, where they have been computed."""
    table = sequence.table
    states = None if table is None else table.checkpoints
    where = f"sequence {sequence.index} of {sequence.request.name}"
    if table is None or (states is None and groups.states is None):
        return
    if states is None or groups.states is None or states.rule is not groups.states:
        raise BrokenState(f"{where} has checkpoints of another model")
    _check_held(states, table, where)
    held = table.blocks
    if len(set(held)) != len(held):
        raise BrokenState(f"{where} holds a KV block twice")
    if states.tokens_found > sequence.progress.computed:
        raise BrokenState(f"{where} goes on behind {states.tokens_found} tokens, not that far")
    for blocks, names in _contents(states, sequence, table.block_size):
        _check_blocks(cache, blocks, names, where)


def _check_held(states: Checkpoints, table: BlockTable, where: str) -> None:
    rule = states.rule
    newest = states.next_number - 1
    if newest != rule.last(table.length):
        raise BrokenState(
            f"{where} has room for checkpoint {rule.last(table.length)}, not {newest}"
        )
    if any(len(blocks) != rule.pieces for blocks in states.held):
        raise BrokenState(f"{where} has a checkpoint of other than {rule.pieces} blocks")


def _contents(
    states: Checkpoints, sequence: Running, block_size: int
) -> Iterator[tuple[Sequence[int], Sequence[bytes]]]:
    """(blocks of a checkpoint, their names, or none where it isn't written)."""
    rule, start = states.rule, states.tokens_found
    for number, blocks in zip(states.numbers(), states.held, strict=True):
        tokens = number * rule.every * block_size
        if number == states.found and start:
            tokens = start
        written = tokens <= max(start, sequence.num_published * block_size)
        key = sequence.key_at(tokens, block_size) if written else b""
        yield blocks, list(rule.names(key)) if written else ()
    tail = states.tail
    if tail is not None:
        if tail.key != sequence.key_at(tail.tokens, block_size):
            raise BrokenState(f"the tail behind {tail.tokens} tokens is named by other tokens")
        yield tail.blocks + tail.partial, ()


def _check_blocks(
    cache: KVCache, blocks: Sequence[int], names: Sequence[bytes], where: str
) -> None:
    for at, block in enumerate(blocks):
        name = cache.key_of(block)
        if not names and (name is not None or cache.pool.num_owners(block) != 1):
            raise BrokenState(f"{where}: KV block {block} is to be written, and is others' as well")
        if names and name not in (None, names[at]):
            raise BrokenState(f"{where}: KV block {block} has the name of other tokens' state")
