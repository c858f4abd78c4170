"""Rows of drafted tokens that are sampled together, before it is known whether they will count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from penstock_worker.sampler import SampledToken, SampleRequest
from penstock_worker.steps.drafted import LogitsRows
from penstock_worker.steps.launch import DraftedTokens

MOST = 32
"""Rows of a slot that are sampled together."""


class RowsAhead:
    """Samples a slot's rows in ever larger groups, as if all of its drafts were right.

    A row is asked for only if the drafts before it were right, and then it was sampled just as it
    would have been by itself: from the same logits, with the tokens before it counted. One call
    for many rows takes several threads, and its own time once. The groups begin with one row and
    double, so that no more rows are sampled in vain than there were right drafts.
    """

    def __init__(self, rows: LogitsRows, drafted: Mapping[int, DraftedTokens]) -> None:
        self._rows = rows
        self._drafted = drafted
        self._found: dict[int, SampledToken] = {}
        """What was sampled and not asked for yet, by row."""
        self._next: dict[int, int] = {}
        """How many rows the next group of each slot has."""

    def __call__(
        self, rows: list[int], requests: list[SampleRequest], slots: list[int]
    ) -> list[SampledToken]:
        group: list[tuple[int, SampleRequest, int]] = []
        for row, request, slot in zip(rows, requests, slots, strict=True):
            if row not in self._found:
                group += [(row + at, each, slot) for at, each in self._group(row, request, slot)]
        if group:
            numbers, asked, of = (list(each) for each in zip(*group, strict=True))
            self._found |= zip(numbers, self._rows(numbers, asked, of), strict=True)
        return [self._found.pop(row) for row in rows]

    def _group(
        self, row: int, request: SampleRequest, slot: int
    ) -> Iterator[tuple[int, SampleRequest]]:
        """Yields the requests of this row and of those after it in its group, with their places."""
        yield 0, request
        count = self._next.get(slot, 1)
        self._next[slot] = min(2 * count, MOST)
        drafts = self._drafted[slot]
        at = row - drafts.first_row
        yield from enumerate(_requests_after(request, drafts.ids[at + 1 : at + count]), start=1)


def _requests_after(request: SampleRequest, ids: Sequence[int]) -> Iterator[SampleRequest]:
    """Yields what is asked for after each of these ids, if they are emitted; nothing where that
    isn't known ahead, as with a grammar."""
    if request.allowed is not None:
        return
    adjustments = request.adjustments
    for count, token in enumerate(ids, start=1):
        if adjustments is not None:
            adjustments = adjustments.after(token)
            if adjustments is None:
                return
        emitted = request.emitted + count
        yield msgspec.structs.replace(request, emitted=emitted, adjustments=adjustments)
