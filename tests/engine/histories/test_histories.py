"""Random histories, each about a part of the engine core: Hypothesis finds small ones that break a
rule, seeded ones go far, recordings of them decide alike, and so does a core restored half-way.

Requests of plain texts have histories of their own, which run at every landing (test_walk.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock_engine.waiting import adapters, disk_kv
from tests.engine.histories.adapters import AdapterWalker
from tests.engine.histories.audits import AuditWalker
from tests.engine.histories.claims import ClaimWalker
from tests.engine.histories.disk import DiskWalker
from tests.engine.histories.drafts import DraftWalker, RankDraftWalker
from tests.engine.histories.groups import (
    Drawing,
    GroupWalker,
    drawn_groups,
    drawn_with_states,
    one_group,
)
from tests.engine.histories.media import MediaWalker
from tests.engine.histories.multi_step import MultiStepWalker
from tests.engine.histories.rank_disk import RankDiskWalker
from tests.engine.histories.sessions import SessionWalker
from tests.engine.histories.shared import ShareWalker
from tests.engine.histories.transfers import Pair
from tests.engine.walked_harness import Choices, Drawn, Seeded
from tests.engine.walks import History, check_replay, check_restored, walked
from tests.met import met as is_met


@dataclass(frozen=True)
class Kind:
    """Histories of one kind."""

    begin: Callable[[Choices], History]
    seeds: int
    """How many seeded ones there are, from seed 0 on."""
    operations: int
    """How many operations each of them has."""
    met: dict[str, int]
    """How often all of them together meet what they are for, at least."""
    about: str = "steps"
    """What drawn ones, recorded ones and restored ones meet, too; of steps there are three."""
    recorded: tuple[int, ...] = (0, 1)
    """Seeds of those that are recorded, and restored half-way: none where snapshots don't know a
    class of the tests."""
    patches: tuple[tuple[object, str, int], ...] = ()
    """Constants that are others meanwhile: (module, name, value)."""

    @contextmanager
    def patched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for module, name, value in self.patches:
                patch.setattr(module, name, value)
            yield

    def meets(self, outcome: Counter[str]) -> bool:
        """Whether a history met what it is about."""
        return outcome[self.about] >= (3 if self.about == "steps" else 1)


SINGLE_BLOCKS = ((disk_kv, "LEAST_FETCHED_BLOCKS", 1),)
"""Single blocks are worth being fetched."""
FEW_FETCHES = (*SINGLE_BLOCKS, (disk_kv, "MAX_FETCHES", 3))


def disk(drawn: Drawing, seeds: int, operations: int, about: str = "steps", **met: int) -> Kind:
    return Kind(
        lambda choose: DiskWalker(choose, drawn),
        seeds,
        operations,
        {"lost": 1, "waited": 1, "missed": 1, "killed while reading": 1, "read": 61}
        | {"prefetched from disk": 1}
        | met,
        about=about,
        recorded=(0, 2, 3, 4),
        patches=FEW_FETCHES,
    )


def drafts(drawn: Drawing) -> Kind:
    return Kind(
        lambda choose: DraftWalker(choose, drawn),
        24,
        300,
        {
            "drafted": 501,
            "kept drafts": 201,
            "preempted": 11,
            "deferred": 21,
            "killed in a draft": 2,
        },
        about="drafted",
        recorded=(),
    )


def transfers(drawn: Drawing, recorded: tuple[int, ...] = (0, 1, 2)) -> Kind:
    return Kind(
        lambda choose: Pair(choose, drawn),
        12,
        800,
        {
            "lost": 1,
            "answered before others": 1,
            "missed": 1,
            "killed": 1,
            "gone with its rank": 1,
            "followed in mid-fetch": 1,
            "read": 41,
            "of the other": 21,
            "prefetched from disk": 21,
        },
        about="read",
        recorded=recorded,
        patches=FEW_FETCHES,
    )


KINDS: dict[str, Kind] = {
    "disk": disk(one_group, 12, 500, "waited", **{"left while reading": 1}),
    "disk-of-groups": disk(drawn_groups, 14, 600),
    "disk-with-states": disk(drawn_with_states, 14, 600),
    "adapters": Kind(
        AdapterWalker,
        10,
        250,
        {
            "waited": 1,
            "in line": 1,
            "leaving": 1,
            "killed while loading": 1,
            "killed with adapters": 1,
            "preempted": 1,
            "reused": 101,
        },
        about="waited",
        patches=((adapters, "MAX_STARTS", 3),),
    ),
    "audits": Kind(
        AuditWalker,
        8,
        600,
        {
            "equal": 1,
            "replayed": 1,
            "killed in a replay": 1,
            "skipped: worker_lost": 1,
            "skipped: aborted": 1,
        },
        recorded=(3, 4),
    ),
    "claims": Kind(
        ClaimWalker,
        8,
        300,
        {
            "adopted": 5,
            "adopted at its end": 5,
            "adopted within": 5,
            "orphans": 5,
            "preempted": 5,
        },
        about="adopted",
    ),
    "drafts": drafts(one_group),
    "drafts-of-groups": drafts(drawn_groups),
    "drafts-with-states": drafts(drawn_with_states),
    "drafts-over-ranks": Kind(
        RankDraftWalker,
        8,
        200,
        {"kept drafts": 21, "ahead": 21},
        about="drafted",
        recorded=(),
    ),
    "groups": Kind(
        GroupWalker,
        10,
        300,
        {"forgotten": 5001, "preempted": 6, "reused": 501},
        about="forgotten",
        recorded=(1, 2),
    ),
    "states": Kind(
        lambda choose: GroupWalker(choose, drawn_with_states),
        6,
        300,
        {"checkpoints": 1001, "preempted": 6, "reused": 501, "deferred": 21},
        about="checkpoints",
    ),
    "media": Kind(
        MediaWalker,
        16,
        250,
        {
            "joined": 1,
            "encodings dropped": 1,
            "asked for again": 1,
            "in line": 1,
            "two held": 1,
            "room wanted": 1,
            "too short": 1,
            "waited for media": 101,
            "killed with media": 1,
            "preempted": 1,
            "divided": 101,
            "killed in parts": 1,
            "reused": 101,
        },
        about="waited for media",
    ),
    "steps-that-go-on": Kind(
        MultiStepWalker, 20, 400, {"went on": 101, "killed on the way": 2}, about="went on"
    ),
    "disks-of-ranks": Kind(
        lambda choose: RankDiskWalker(choose, choose.whole(2, 3)),
        20,
        500,
        {"lost": 1, "answered before others": 1, "missed": 1, "killed": 1, "read": 21},
        patches=SINGLE_BLOCKS,
    ),
    "sessions": Kind(
        SessionWalker,
        8,
        300,
        {
            "in a session": 41,
            "kept": 201,
            "at the limit": 6,
            "expected": 21,
            "prefetched from host": 1,
        },
        about="in a session",
    ),
    "shared": Kind(
        ShareWalker,
        8,
        300,
        {
            "shared": 5,
            "shared with some of it": 5,
            "shared while it waits": 5,
            "three readers": 5,
            "preempted": 5,
        },
    ),
    "transfers": transfers(one_group),
    "transfers-of-groups": transfers(drawn_groups),
    "transfers-with-states": transfers(drawn_with_states, recorded=(3, 8)),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), length=st.integers(1, 60))
def test_short_histories(kind: str, data: st.DataObject, length: int) -> None:
    with KINDS[kind].patched():
        history = walked(KINDS[kind].begin(Drawn(data)), length)
        history.end()
    is_met(KINDS[kind].about, KINDS[kind].meets(history.outcome()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_long_histories_meet_what_they_are_for(kind: str) -> None:
    """Else they would prove little."""
    met = Counter[str]()
    with KINDS[kind].patched():
        for seed in range(KINDS[kind].seeds):
            history = walked(KINDS[kind].begin(Seeded(seed)), KINDS[kind].operations)
            history.end()
            met += history.outcome()
    for what, least in KINDS[kind].met.items():
        assert met[what] >= least, (what, met)


RECORDED = [name for name, kind in KINDS.items() if kind.recorded]


@pytest.mark.parametrize("kind", RECORDED)
def test_a_recording_decides_alike(tmp_path: Path, kind: str) -> None:
    met = Counter[str]()
    for seed in KINDS[kind].recorded:
        history = KINDS[kind].begin(Seeded(seed))
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        with KINDS[kind].patched():
            _, steps = check_replay(history, folder, 400)
        assert steps > 40
        met += history.outcome()
    assert KINDS[kind].meets(met), met


@pytest.mark.parametrize("kind", RECORDED)
def test_a_core_restored_half_way_goes_on_like_the_original(kind: str) -> None:
    met = Counter[str]()
    for number, seed in enumerate(KINDS[kind].recorded):
        with KINDS[kind].patched():
            history = walked(KINDS[kind].begin(Seeded(seed)), 150 + 40 * number)
            assert check_restored(history, 200) > 20
        met += history.outcome()
    assert KINDS[kind].meets(met), met


def test_a_snapshot_holds_a_held_audit_and_a_shared_answer() -> None:
    audited = walked(AuditWalker(Seeded(4)), 120)
    assert audited.audits.num_held > 0
    check_restored(audited, 60)
    shared = walked(ShareWalker(Seeded(1)), 120)
    assert shared.met["shared"] >= 5
    check_restored(shared, 60)
