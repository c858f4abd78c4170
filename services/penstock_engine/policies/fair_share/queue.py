"""The sequences that wait, in a line for each tenant."""

from __future__ import annotations

from penstock_engine.policies.fair_share.accounts import Accounts
from penstock_engine.request.request import Sequence
from penstock_engine.waiting.queue import Ahead, Part, Waiting


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
