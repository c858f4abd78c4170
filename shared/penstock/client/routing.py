"""Which of several engine cores gets a request, and which of their deaths are held against it.

Policies are asked with what every gateway knows alike (the prompt, and what the engine cores say of
themselves), and keep nothing of what they said before: so every gateway decides alike, and a new
one at once.  RoundRobin, which remembers whose turn it is, is there to compare with."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeVar, get_args

import msgspec

from penstock.protocol.media import Media

Why = Literal["prefix", "session", "load", "only", "turn", "prefill"]
"""prefix: it is the prompt's favourite.  session: it is the session's.  load: the favourite was
busy, or there is none.  only: there was no other.  turn: round robin.  prefill: to
compute the prompt, for another one to go on with."""
WHYS: tuple[Why, ...] = get_args(Why)

AFFINITY_TOKENS = 128
"""The first tokens that choose a favourite, at most: long enough to tell apart what follows a
common system prompt's first lines, short enough that a conversation keeps its favourite."""

LOAD_FACTOR = 1.25
"""How far above the mean load a favourite may be."""
SESSION_LOAD_FACTOR = 2.0
"""How far above the mean load a session's favourite may be: its KV is worth some waiting. So is an
answer that may be there."""
MEETING_LOAD = 8
"""Sequences that the favourite may have in any case where equal requests are to meet."""


class RoutableEngine(Protocol):
    """What a policy sees of an engine core.

    endpoint: its name, the same on every gateway.  load: sequences that it runs and has waiting.
    block_size: tokens of a KV block.
    """

    @property
    def endpoint(self) -> str: ...

    @property
    def load(self) -> int: ...

    @property
    def block_size(self) -> int: ...


AnEngine = TypeVar("AnEngine", bound=RoutableEngine)


class RoutingRequest(msgspec.Struct, frozen=True):
    """What an engine core is chosen by."""

    prompt_token_ids: list[int]
    affinity: int
    """The most of the prompt's first tokens by which the engine core is chosen."""
    tenant: str = ""
    salt: str = ""
    """KV blocks are shared among requests that have tenant and salt in common."""
    media: Media | None = None
    """What placeholders of the prompt stand for."""
    adapter: str = ""
    """Digest of the adapter; empty for none."""
    session: str = ""
    """What the tenant calls the conversation; empty for none."""
    meets: bool = False
    """Whether it should meet equal requests, as its answer may be there already, or on its way."""


class Routing(Protocol):
    """A policy. Engines are at least one, in the order in which they were named."""

    def choose(self, ask: RoutingRequest, engines: Sequence[AnEngine]) -> tuple[AnEngine, Why]: ...


class PrefixAffinity:
    """Prompts that begin alike go to the same engine, which has their KV blocks, unless that one is
    busy.  So do a session's, by its name: sessions that begin alike are spread over the engines.
    Equal requests that are to meet do so where another one would not be worth the wait.

    Rendezvous hashing orders the engines for each prefix, so that an engine that comes or goes
    moves only the prefixes whose favourite it is.  Loads are bounded after V. Mirrokni, M. Thorup,
    M. Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2016): an engine takes a request only
    while its load is below LOAD_FACTOR times what the mean will be; the next in the prefix's own
    order takes what it can't.
    """

    def choose(self, ask: RoutingRequest, engines: Sequence[AnEngine]) -> tuple[AnEngine, Why]:
        if len(engines) == 1:
            return engines[0], "only"
        session = session_key(ask)
        key = session or prefix_key(ask, max(engine.block_size for engine in engines))
        if key is None and ask.meets:
            key = _digest(ask, ask.prompt_token_ids)
        if key is None:
            return least_loaded(ask, engines), "load"
        waits = session is not None or ask.meets
        factor = SESSION_LOAD_FACTOR if waits else LOAD_FACTOR
        bound = load_bound((engine.load for engine in engines), factor)
        bound = max(bound, MEETING_LOAD) if ask.meets else bound
        favourite, *others = rendezvous(key, engines)
        if favourite.load < bound:
            return favourite, "prefix" if session is None else "session"
        # One is: the least loaded is not above the mean.
        return next(engine for engine in others if engine.load < bound), "load"


class LeastLoaded:
    """The engine with the least to do; of several, the one that the prompt's hash names."""

    def choose(self, ask: RoutingRequest, engines: Sequence[AnEngine]) -> tuple[AnEngine, Why]:
        if len(engines) == 1:
            return engines[0], "only"
        return least_loaded(ask, engines), "load"


def load_bound(loads: Iterable[int], factor: float = LOAD_FACTOR) -> int:
    """An engine takes one more while its load is below this."""
    known = list(loads)
    return bound_of(sum(known), len(known), factor)


def bound_of(total: int, engines: int, factor: float) -> int:
    """Returns the bound of so many engines' loads. total: of all of them."""
    # Whole numbers: every gateway rounds alike.
    return -(-round(factor * 100) * (total + 1) // (100 * engines))


def least_loaded(ask: RoutingRequest, engines: Sequence[AnEngine]) -> AnEngine:
    """The engine core with the least load. Of equals, the prompt's favourite: else all gateways
    would send to the same one."""
    least = min(engine.load for engine in engines)
    equals = [engine for engine in engines if engine.load == least]
    if len(equals) == 1:
        return equals[0]
    return rendezvous(_digest(ask, ask.prompt_token_ids[:AFFINITY_TOKENS]), equals)[0]


def prefix_key(ask: RoutingRequest, block_size: int) -> bytes | None:
    """Names the blocks that the prompt begins with; None where it fills none.

    It covers 1, 2, 4, … blocks, at most AFFINITY_TOKENS where a block is not larger: a prompt that
    grows changes its key only when it has doubled, and no more once it is that long.
    """
    length = min(len(ask.prompt_token_ids), ask.affinity)
    if length < block_size:
        return None
    covered = block_size
    while 2 * covered <= min(length, AFFINITY_TOKENS):
        covered *= 2
    return _digest(ask, ask.prompt_token_ids[:covered])


def session_key(ask: RoutingRequest) -> bytes | None:
    """Names the session; None where there is none."""
    if not ask.session:
        return None
    whose = f"{len(ask.tenant)} {ask.tenant} {ask.session}".encode()
    return hashlib.blake2b(whose, digest_size=16, person=b"session").digest()


def rendezvous(key: bytes, engines: Sequence[AnEngine]) -> list[AnEngine]:
    """The engines in the key's own order, the favourite first."""
    return sorted(engines, key=lambda engine: score(key, engine), reverse=True)


def score(key: bytes, engine: RoutableEngine) -> tuple[bytes, str]:
    """Returns what an engine has of a key; the highest is the key's favourite."""
    name = engine.endpoint.encode()
    return hashlib.blake2b(name, key=key, digest_size=8).digest(), engine.endpoint


def _digest(ask: RoutingRequest, prompt_token_ids: list[int]) -> bytes:
    ids = array("I", prompt_token_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    owner = f"{len(ask.tenant)} {ask.tenant} {ask.salt}".encode()
    if ask.adapter:
        owner = f"{ask.adapter} ".encode() + owner
    hashed = hashlib.blake2b(owner, digest_size=16)
    hashed.update(b"\0" + ids.tobytes())
    if ask.media is not None:
        for span in ask.media.spans:
            if span.offset < len(ids):
                name = ask.media.items[span.item].name
                hashed.update(f"\0{name} {span.offset} {span.tokens} {span.first}".encode())
    return hashed.digest()


MOST_PENDING = 64
"""Most lost engine cores that a request remembers at once whose fate isn't known yet."""


class Blame:
    """Deaths of engine cores that are held against one request.  Only this class decides whether it
    can be distinguished from a bystander.

    Suspected is only what had entered a step of an engine core and had gained nothing since, when
    the session with it was lost.  A session that ends is not a death yet: it is one when another
    life of an engine core answers at that place, and none when the same life does.  Until then the
    suspicion is pending; where nothing ever comes back there (a name may lead elsewhere), it stays
    so, and has no effect.

    deaths: as Submit's: those that are certain, since the request last gained something.
    """

    __slots__ = ("_entered", "_pending", "deaths")

    def __init__(self) -> None:
        self.deaths = 0
        self._entered = False
        self._pending: dict[str, str] = {}
        """Boots of lost engine cores, by endpoint."""

    def entered(self) -> None:
        """The engine core that has it says that one of its sequences is in a step."""
        self._entered = True

    def left(self) -> None:
        """Notes that none of the request's sequences is in a step any more: all wait again."""
        self._entered = False

    def gained(self) -> None:
        """Clears the request of all blame: it has got a token, so it is past whatever killed an
        engine core."""
        if self._entered or self._pending or self.deaths:
            self._entered = False
            self._pending.clear()
            self.deaths = 0

    def lost(self, endpoint: str, boot: str | None, *, innocent: bool) -> None:
        """The session that it ran in has ended. boot: of the engine core there; None: not known.
        innocent: it is known that no running request caused the end."""
        suspected, self._entered = self._entered, False
        if suspected and not innocent and boot and len(self._pending) < MOST_PENDING:
            self._pending[endpoint] = boot

    def answered(self, endpoint: str, boot: str) -> None:
        """An engine core has come at `endpoint`, in the life `boot`."""
        if not self._pending:
            return
        # That life goes on, wherever it was met before.
        self._pending = {place: life for place, life in self._pending.items() if life != boot}
        if self._pending.pop(endpoint, None) is not None:
            self.deaths += 1
