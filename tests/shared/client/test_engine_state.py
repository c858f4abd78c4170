"""Several engine cores, told of as if they were one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.client.client_view import combined
from penstock.protocol.to_frontend import Status
from tests.gateway.fake_engine import status

NOT_SUMS = {"block_size", "frontends"}
"""Fields that are the same everywhere."""


def together(*statuses: Status) -> Status:
    sessions: Any = [SimpleNamespace(connected=True, fresh=True, status=each) for each in statuses]
    found = combined(sessions)
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
