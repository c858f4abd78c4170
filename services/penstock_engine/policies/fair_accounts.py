"""What each tenant has been given, as virtual time, and the queue that serves the tenant with the
least of it first.

Start-time fair queueing (Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996), with the
token costs of a serving engine as in the Virtual Token Counter (Sheng et al.: Fairness in Serving
Large Language Models, OSDI 2024), weighted, and with the KV memory that is held charged as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from penstock.protocol.common import Grant
from penstock_engine.policies.order import QueueOrder
from penstock_engine.policies.tenants import Tenants
from penstock_engine.request.request import Sequence
from penstock_engine.waiting.queue import Ahead, Line, Part, Waiting

PROMPT_COST = 32
"""Cost of computing a token that is not the newest: a prompt's, or a preempted sequence's again."""
GENERATED_COST = 64
"""Cost of a token that is sampled, computing its predecessor included."""
BLOCK_COST = 1
"""Cost of holding one KV block for one step."""

SCALE = 1 << 20
"""Virtual time per unit of cost at weight 1: whole numbers, so that nothing is rounded away."""

MAX_DEBTORS = 4096
"""Tenants without work that are remembered because they had more than their share."""


class Account:
    """What one tenant was given, and what of it waits."""

    __slots__ = (
        "line",
        "listed",
        "name",
        "num_waiting",
        "open",
        "requests_waiting",
        "serial",
        "time",
        "tokens_waiting",
        "weight",
    )

    def __init__(self, name: str, weight: int, serial: int, time: int, line: Line) -> None:
        self.name = name
        self.weight = weight
        self.serial = serial  # breaks ties
        self.time = time
        """Total of what the tenant was charged, divided by its weight, on a common scale: the least
        is served first."""
        self.line = line  # its part of the queue, counted below
        self.open = 0  # its sequences that live
        self.num_waiting = 0  # sequences
        self.requests_waiting = 0
        self.tokens_waiting = 0
        self.listed = False  # it has an entry among those that wait

    @property
    def place(self) -> tuple[int, int]:
        """The order among tenants."""
        return (self.time, self.serial)

    def price(self, cost: int) -> int:
        """The virtual time that a cost is to this tenant."""
        return cost * SCALE // self.weight


class Earliest:
    """The waiting account with the least time.

    Times only grow, so an entry that has become wrong stands too far in front, and is put right
    when it surfaces; so is one whose account waits no more.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Account]] = []
        self._limit = 64

    def add(self, account: Account) -> None:
        """An account that has begun to wait."""
        if account.listed:
            return
        account.listed = True
        heapq.heappush(self._heap, (account.time, account.serial, account))
        if len(self._heap) > self._limit:
            self._tidy()

    def peek(self) -> Account | None:
        """The account whose turn it is; None if nothing waits."""
        heap = self._heap
        while heap:
            time, serial, account = heap[0]
            if not account.num_waiting:
                account.listed = False
                heapq.heappop(heap)
            elif time != account.time:
                heapq.heapreplace(heap, (account.time, serial, account))
            else:
                return account
        return None

    def _tidy(self) -> None:
        for _, _, account in self._heap:
            account.listed = account.num_waiting > 0
        live = [account for _, _, account in self._heap if account.listed]
        self._heap = [(account.time, account.serial, account) for account in live]
        heapq.heapify(self._heap)
        self._limit = 2 * len(live) + 64


class Accounts:
    """All tenants that have work, and those without that have had more than their share.

    credit: cost of the work that a tenant may have saved up by not asking for its share.  Unused
    share beyond that is lost, so that no tenant saves up a claim to the whole machine.
    """

    def __init__(self, tenants: Tenants, order: QueueOrder, credit: int) -> None:
        self._tenants = tenants
        self._order = order
        self._credit = credit
        self._accounts: dict[str, Account] = {}
        self._debtors: dict[str, Account] = {}
        """Accounts of tenants without work, in the order in which these left."""
        self._serial = 0
        self._now = 0
        """The virtual time of the whole: what those that wait have been given at least."""
        self.waiting = Earliest()
        self.num_waiting = 0
        """Tenants that wait; the queue keeps it."""

    def __getitem__(self, name: str) -> Account:
        return self._accounts[name]

    def __contains__(self, name: str) -> bool:
        return name in self._accounts

    def owes(self, to: Account) -> bool:
        """Whether some tenant has been given more than `to`."""
        return any(account.time > to.time for account in self._accounts.values())

    def debts(self, names: Iterable[str]) -> dict[str, int]:
        """What each of these tenants, as far as it has work, was given beyond what the one that
        was given least was, as a cost at its own weight. Linear in the tenants with work."""
        least = min((account.time for account in self._accounts.values()), default=0)
        known = [self._accounts[name] for name in names if name in self._accounts]
        return {each.name: (each.time - least) * each.weight // SCALE for each in known}

    def all(self) -> list[Account]:
        """Accounts of tenants with work, first served first."""
        return sorted(self._accounts.values(), key=lambda account: account.place)

    def ahead(self) -> dict[str, int]:
        """The virtual time of each tenant that is remembered, beyond the least among those with
        work."""
        least = min((account.time for account in self._accounts.values()), default=None)
        if least is None:
            return {}
        known = [*self._accounts.values(), *self._debtors.values()]
        return {account.name: max(account.time - least, 0) for account in known}

    def first_waiting(self, count: int) -> list[Account]:
        """The first `count` of those that wait, in order."""
        waiting = (account for account in self._accounts.values() if account.num_waiting)
        return heapq.nsmallest(count, waiting, key=lambda account: account.place)

    def joined(self, name: str, grant: Grant | None = None) -> None:
        """One more sequence of a tenant lives. It must not be waiting yet. grant: see Tenants.of;
        a weight that has changed counts from now on."""
        weight = self._tenants.of(name, grant).weight
        account = self._accounts.get(name) or self._open(name, weight)
        account.weight = weight
        account.open += 1
        if not account.num_waiting:
            # It wanted nothing that it didn't get: only a little of that is kept for it.
            account.time = max(account.time, self._start_time(account))

    def left(self, name: str) -> None:
        """A tenant's sequence has ended."""
        account = self._accounts[name]
        account.open -= 1
        if account.open:
            return
        del self._accounts[name]
        if not self._accounts:
            self._debtors.clear()  # Nothing runs that debts could delay: all are forgiven.
            self._now = max(self._now, account.time)
        elif account.time > self._start_time(account):
            self._debtors[name] = account
            self._forget_debts()

    def charge(self, name: str, cost: int) -> None:
        """A tenant has been given something."""
        account = self._accounts[name]
        account.time += cost * SCALE // account.weight
        if not self.num_waiting and account.time > self._now:
            # No tenant waits: a new one starts level with the one that has had most, less the
            # credit.
            self._now = account.time

    def _open(self, name: str, weight: int) -> Account:
        account = self._debtors.pop(name, None)
        if account is None:
            self._serial += 1
            account = Account(name, weight, self._serial, 0, Line(self._order))
            account.time = self._start_time(account)
        self._accounts[name] = account
        return account

    def _start_time(self, account: Account) -> int:
        first = self.waiting.peek()
        if first is not None:
            self._now = max(self._now, first.time)
        return self._now - account.price(self._credit)

    def _forget_debts(self) -> None:
        while self._debtors:
            name, oldest = next(iter(self._debtors.items()))
            if len(self._debtors) <= MAX_DEBTORS and oldest.time > self._start_time(oldest):
                return
            del self._debtors[name]


class FairQueue(Waiting):
    """The head is that of the tenant which has been given least.

    A head that finds no room may be overtaken by other tenants' heads that do, but only
    MOST_PASSES times: then all wait for it.
    """

    MOST_PASSES = 128

    def __init__(self, accounts: Accounts) -> None:
        super().__init__()
        self._accounts = accounts
        self._held: Sequence | None = None
        self._held_ticket = 0
        self._passes = 0

    def head(self, tenant: str | None = None) -> Sequence | None:
        barring = self._holding() if self._passes >= self.MOST_PASSES else None
        if barring is not None:
            return barring if tenant in (None, barring.request.tenant) else None
        if tenant is None:
            first = self._accounts.waiting.peek()
            return None if first is None else first.line.head()
        return self._accounts[tenant].line.head() if tenant in self._accounts else None

    def hold(self, head: Sequence) -> None:
        if self._holding() is None:
            self._held, self._held_ticket, self._passes = head, head.ticket, 0

    def sequences(self) -> list[Sequence]:
        return [s for account in self._accounts.all() for s in account.line.sequences()]

    def first(self, count: int) -> list[Sequence]:
        found: list[Sequence] = []
        for account in self._accounts.first_waiting(count):
            found += account.line.first(count - len(found))
            if len(found) >= count:
                break
        return found

    def ahead(self, tenant: str, priority: int) -> Ahead:
        """Returns what waits of the request's own tenant: nothing of the others' work is sure to
        come before it."""
        if tenant not in self._accounts:
            return Ahead(0, 0)
        account = self._accounts[tenant]
        return Ahead(min(account.num_waiting, self.num_requests), account.tokens_waiting)

    def part_of(self, tenant: str) -> Part:
        if tenant not in self._accounts:
            return Part(0, 0, 0)
        account = self._accounts[tenant]
        return Part(account.requests_waiting, account.num_waiting, account.tokens_waiting)

    def _holding(self) -> Sequence | None:
        held = self._held
        if held is not None and held.ticket != self._held_ticket:
            self._held = held = None
            self._passes = 0
        return held

    def _enter(self, sequence: Sequence) -> None:
        account = self._accounts[sequence.request.tenant]
        account.line.push(sequence)
        account.requests_waiting += sequence.request.num_queued == 1
        account.num_waiting += 1
        account.tokens_waiting += sequence.num_tokens
        if account.num_waiting == 1:
            self._accounts.num_waiting += 1
            self._accounts.waiting.add(account)

    def _leave(self, sequence: Sequence) -> None:
        account = self._accounts[sequence.request.tenant]
        account.requests_waiting -= sequence.request.num_queued == 0
        account.num_waiting -= 1
        account.tokens_waiting -= sequence.num_tokens
        if not account.num_waiting:
            self._accounts.num_waiting -= 1
        account.line.tidy(account.num_waiting)
        if self._holding() is not None:
            self._passes += 1
