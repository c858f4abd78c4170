"""Several engine cores, told of as if they were one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.client.client_view import arithmetics_of, combined
from penstock.protocol.to_frontend import Status
from tests.gateway.fake_engine import status

NOT_SUMS = {"block_size", "frontends"}
"""Fields that are the same everywhere."""


def sessions_of(*statuses: Status) -> Any:
    return [SimpleNamespace(connected=True, fresh=True, status=each) for each in statuses]


def together(*statuses: Status) -> Status:
    found = combined(sessions_of(*statuses))
    assert found is not None
    return found


def test_counts_are_sums() -> None:
    counts = {
        field.name
        for field in msgspec.structs.fields(Status)
        if field.type in (int, float) and field.name not in NOT_SUMS
    }
    one, two = (status(**dict.fromkeys(counts, number)) for number in (3, 4))
    found = together(one, two)
    assert {name: getattr(found, name) for name in counts} == dict.fromkeys(counts, 7)


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_any_of_them_may_get_a_request_for_words_times(first: bool, second: bool) -> None:
    assert together(status(aligns=first), status(aligns=second)).aligns == (first and second)


@pytest.mark.parametrize(
    ("told", "all_of_them"),
    [
        ((("a", "tp1"), ("a", "tp1")), (("a", "tp1"),)),
        ((("b", "tp1"), ("a", "tp2"), (), ("b", "tp1")), (("a", "tp2"), ("b", "tp1"))),
        (((), ()), ()),
    ],
)
def test_each_arithmetic_is_told_once(
    told: tuple[tuple[str, ...], ...], all_of_them: tuple[tuple[str, ...], ...]
) -> None:
    """Of what one of them computes, the state of all says nothing where another differs."""
    statuses = [status(arithmetic=each) for each in told]
    assert arithmetics_of(sessions_of(*statuses)) == all_of_them
    alone = all_of_them[0] if len(all_of_them) == 1 else ()
    assert together(*statuses).arithmetic == alone
