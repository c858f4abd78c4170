"""Which blocks are kept for which session, until it comes back.

A kept block is free as all others are whose contents can be found, but it is taken for something
else only when no other is free.  So sessions never keep anybody from running; what they cost others
is the chance to find older contents, and that is bounded: all sessions together keep a share of the
pool, and where it is full, the tenant gives way that has most of it for its weight, and of its
sessions the one that was there last the longest ago.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence

from penstock_engine.kv.pool import BlockPool, BrokenState


class KVSession:
    """A conversation, or an agent: requests that follow one another, each beginning with what the
    one before it ended with."""

    __slots__ = (
        "blocks",
        "keeps",
        "name",
        "num_open",
        "resume_within",
        "retention",
        "tenant",
        "until",
        "weight",
    )

    def __init__(self, tenant: str, name: str, weight: int) -> None:
        self.tenant = tenant
        self.name = name  # of the tenant's own choice
        self.weight = weight  # of its tenant's shares
        self.num_open = 0  # requests that have not ended
        self.keeps = True
        """Whether blocks are kept for it. Steps in flight may refer to some when that is over."""
        self.retention = 0.0  # seconds for which its blocks are kept after its latest request
        self.resume_within: float | None = None  # seconds, as its latest request says
        self.until = 0.0
        """The time until which its blocks are kept while none of its requests is open, in seconds
        of the engine's clock."""
        self.blocks: dict[int, None] = {}
        """Blocks that are kept for it: those of its latest request in token order, then older ones.
        """


class TenantBlocks:
    """What one tenant's sessions keep. weight: of its latest one."""

    __slots__ = ("count", "sessions", "weight")

    def __init__(self) -> None:
        self.count = 0
        self.weight = 1
        self.sessions: OrderedDict[KVSession, None] = OrderedDict()
        """Sessions that keep any blocks, the one first that was there the longest ago."""


class Retention:
    """The book. limit: blocks that all sessions keep at most.

    A block is kept for one session: of several that share it, for the one whose time is over last.
    """

    __slots__ = ("_pool", "_session_of", "_tenants", "limit")

    def __init__(self, pool: BlockPool, limit: int) -> None:
        self.limit = limit
        self._pool = pool
        self._session_of: dict[int, KVSession] = {}
        self._tenants: dict[str, TenantBlocks] = {}

    def sessions(self) -> list[KVSession]:
        """Sessions that keep any blocks."""
        return [session for tenant in self._tenants.values() for session in tenant.sessions]

    @property
    def num_blocks(self) -> int:
        """Blocks that are kept, whether anybody holds them at the moment or not."""
        return len(self._session_of)

    def keep(self, session: KVSession, blocks: Sequence[int]) -> None:
        """Keeps as many of the blocks as there is room for, the leading ones first.

        blocks: in token order, with contents that can be found.
        """
        if not session.keeps:
            return
        tenant = self._tenants.setdefault(session.tenant, TenantBlocks())
        tenant.weight = session.weight
        new = [block for block in blocks if self._is_free_for(session, block)]
        for block in new:
            self._session_of[block] = session
            session.blocks[block] = None
        tenant.count += len(new)
        self._order(session, blocks)
        fresh = [block for block in blocks if block not in self._session_of]
        spare = len(session.blocks) - sum(block in session.blocks for block in blocks)
        for block in fresh[: self._make_room(session, tenant, len(fresh), spare)]:
            self._session_of[block] = session
            session.blocks[block] = None
            self._pool.reserve(block)
            tenant.count += 1
        self._order(session, blocks)
        self._place(session, tenant)

    def _is_free_for(self, session: KVSession, block: int) -> bool:
        """Whether another session kept it, whose time is over no later: then it does so no more."""
        other = self._session_of.get(block)
        if other is None or other is session or other.until > session.until:
            return False
        self._drop_from(block)
        return True

    @staticmethod
    def _order(session: KVSession, blocks: Sequence[int]) -> None:
        """Orders a session's blocks so that those go first which are of no use without the
        others."""
        latest = {block: None for block in blocks if block in session.blocks}
        session.blocks = latest | session.blocks

    def touch(self, session: KVSession) -> None:
        """Makes a session that has come back the most recently used one of its tenant."""
        if session.blocks:
            self._tenants[session.tenant].sessions.move_to_end(session)

    def let_go(self, session: KVSession) -> None:
        """Keeps a session's blocks no longer."""
        self._shorten(session, len(session.blocks))

    def lost(self, block: int) -> None:
        """A block's contents are gone, if it was kept at all."""
        if block in self._session_of:
            self._pool.unreserve(block)
            self._drop_from(block)

    def forget_all(self) -> None:
        """The pool is gone."""
        for tenant in self._tenants.values():
            for session in tenant.sessions:
                session.blocks = {}
        self._session_of.clear()
        self._tenants.clear()

    def _place(self, session: KVSession, tenant: TenantBlocks) -> None:
        """Puts a session that keeps blocks last among its tenant's, as the most recently used."""
        if session.blocks:
            tenant.sessions[session] = None
            tenant.sessions.move_to_end(session)
        if tenant.count:
            # Who gave way to it may have been all that its tenant had.
            self._tenants[session.tenant] = tenant
        else:
            self._tenants.pop(session.tenant, None)

    def _drop_from(self, block: int) -> None:
        """Ends all retentions of a block."""
        session = self._session_of.pop(block)
        del session.blocks[block]
        self._discount(session, 1)

    def _discount(self, session: KVSession, count: int) -> None:
        tenant = self._tenants[session.tenant]
        tenant.count -= count
        if not session.blocks:
            tenant.sessions.pop(session, None)
        if not tenant.count:
            del self._tenants[session.tenant]

    def _make_room(self, session: KVSession, tenant: TenantBlocks, wanted: int, spare: int) -> int:
        """How many of so many blocks more a session may keep, once others have given way. spare: of
        its own, that it needs less."""
        while (room := self.limit - self.num_blocks) < wanted:
            victim, most = self._gives_way(session, tenant, tenant.count + room)
            if victim is None:
                victim, most, spare = session, spare, 0
            if not most:
                return room
            self._shorten(victim, min(wanted - room, most))
        return wanted

    def _gives_way(
        self, session: KVSession, tenant: TenantBlocks, count: int
    ) -> tuple[KVSession | None, int]:
        """(who does, for that session, and by how many blocks at most). count: that its tenant will
        have as it is."""
        richest = max(
            self._tenants.values(), key=lambda each: each.count / each.weight, default=tenant
        )
        weights = richest.weight + tenant.weight
        excess = (richest.count * tenant.weight - count * richest.weight) // weights
        if richest is not tenant and excess > 0:
            return next(iter(richest.sessions)), excess
        others = (other for other in tenant.sessions if other is not session)
        victim = next(others, None)
        return victim, 0 if victim is None else len(victim.blocks)

    def _shorten(self, session: KVSession, count: int) -> None:
        """Keeps a session's last blocks no longer, so many of them, or as many as there are."""
        count = min(count, len(session.blocks))
        for _ in range(count):
            block, _ = session.blocks.popitem()
            del self._session_of[block]
            self._pool.unreserve(block)
        if count:
            self._discount(session, count)

    def check(self, findable: Container[int]) -> None:
        """Proves the books. Raises BrokenState. findable: blocks whose contents can be found."""
        counted: dict[int, KVSession] = {}
        for name, tenant in self._tenants.items():
            kept = sum(len(session.blocks) for session in tenant.sessions)
            _demand(tenant.count == kept > 0, f"tenant {name!r} keeps {kept} blocks for sessions")
            for session in tenant.sessions:
                whose = session.tenant == name and bool(session.blocks)
                _demand(whose, f"a session of {session.tenant!r} is among those of {name!r}")
                counted.update(dict.fromkeys(session.blocks, session))
        _demand(counted == self._session_of, "blocks and sessions disagree on what is kept")
        _demand(self.num_blocks <= self.limit, f"{self.num_blocks} blocks are kept for sessions")
        for block in counted.keys() ^ self._pool.reserved():
            raise BrokenState(f"KV block {block} is kept for none")
        for block in counted:
            if block not in findable:
                raise BrokenState(f"kept KV block {block} can't be found")


def _demand(holds: bool, complaint: str) -> None:
    if not holds:
        raise BrokenState(complaint)
