"""Whose prompt a modelled engine core computes next: the policies `fcfs` and `fair`, in short."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from penstock.errors import InvalidRequest
from penstock_engine.policies.fair_accounts import GENERATED_COST, PROMPT_COST

TURN = 64
"""Prompt tokens by which a tenant may get ahead of another before that one's prompt goes on."""


class Waits(Protocol):
    """Whose it is, and a number that says who came first."""

    @property
    def tenant(self) -> str: ...

    @property
    def number(self) -> int: ...


class ByArrival:
    """Who came first is next."""

    def place(self, one: Waits) -> tuple[float, int]:
        """The least is next."""
        return 0.0, one.number

    def turn(self, prompts: Sequence[Waits]) -> int:
        """Tokens of the first one's prompt before another's may be next."""
        return 1 << 40

    def charge(self, tenant: str, computed: int, generated: int) -> None:
        """So many tokens of a prompt were computed, and so many generated."""

    def comes(self, tenant: str, working: Iterable[str]) -> None:
        """A tenant's request comes; `working`: tenants that have some already."""


class Shares:
    """The tenant that was given least is next, as by start-time fair queueing with the policy's
    costs of tokens."""

    def __init__(self) -> None:
        self._given: dict[str, float] = {}

    def place(self, one: Waits) -> tuple[float, int]:
        """The least is next."""
        return self._given.get(one.tenant, 0.0), one.number

    def turn(self, prompts: Sequence[Waits]) -> int:
        """Tokens of the first one's prompt before another's may be next."""
        own = prompts[0].tenant
        given = [self._given.get(each.tenant, 0.0) for each in prompts if each.tenant != own]
        if not given:
            return 1 << 40
        return TURN + int((min(given) - self._given.get(own, 0.0)) / PROMPT_COST)

    def charge(self, tenant: str, computed: int, generated: int) -> None:
        """So many tokens of a prompt were computed, and so many generated."""
        cost = PROMPT_COST * computed + GENERATED_COST * generated
        self._given[tenant] = self._given.get(tenant, 0.0) + cost

    def comes(self, tenant: str, working: Iterable[str]) -> None:
        """Who had nothing here begins with what the least served of the others has."""
        there = set(working)
        if there and tenant not in there:
            least = min(self._given.get(each, 0.0) for each in there)
            self._given[tenant] = max(self._given.get(tenant, 0.0), least)


ORDERS: dict[str, Callable[[], ByArrival | Shares]] = {"fcfs": ByArrival, "fair": Shares}


def make_order(policy: str) -> ByArrival | Shares:
    """Raises InvalidRequest for a policy that has no such model."""
    if policy not in ORDERS:
        known = ", ".join(ORDERS)
        raise InvalidRequest(f"steps at once are modelled for {known}, not for {policy!r}")
    return ORDERS[policy]()
