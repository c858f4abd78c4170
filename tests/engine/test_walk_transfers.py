"""Random histories of two engine cores over several ranks, whose workers keep blocks on disk and
fetch each other's, each rank those of the same place: of models with several KV groups, too."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.kv_layout import ONE_GROUP, KVGroup
from penstock.protocol.from_frontend import ExpectPrompt, ForgetPrompt
from penstock_engine.record.replay import restore
from penstock_engine.record.snapshot import snapshot
from tests.engine.record.twins import Twins
from tests.engine.scores import Front
from tests.engine.test_walk import Drawn
from tests.engine.test_walk_disk import Drawing, single_blocks_are_worth_it  # noqa: F401
from tests.engine.test_walk_groups import drawn_groups, drawn_with_states
from tests.engine.test_walk_rank_disk import RankDiskWalker
from tests.engine.walked_harness import Choices, Seeded, drawn_options
from tests.engine.walks import SHORT, recorded, replayed
from tests.met import met as is_met

DRAWN = (drawn_groups, drawn_with_states)


class SharingWalker(RankDiskWalker):
    """A rank that ends takes with it what it kept for others; its disk stays.

    other: that of the other engine core, which is given prompts that are expected here.
    """

    def __init__(
        self,
        choose: Choices,
        ranks: int,
        options: dict[str, Any],
        groups: tuple[KVGroup, ...],
    ) -> None:
        super().__init__(choose, ranks, options, groups)
        self.other = self
        self._expected: list[tuple[Front, ExpectPrompt]] = []
        self._numbers = itertools.count(1)
        self.walks |= {"apart": (25, self.apart), "follow": (20, self.follow)}
        self._wheel += ["apart"] * 25 + ["follow"] * 20

    def apart(self) -> None:
        """The other engine core is to compute a prompt first; sometimes it never hears of it."""
        front, ahead = self._front(), self.other._front()
        if front is None or ahead is None:
            return
        prompt = self._prompt(self.choose.whole(1, self.h.facts.max_model_len - 1))
        salt = ("", "x")[self.choose.whole(0, 1)]
        expected = ExpectPrompt(next(self._numbers), prompt, salt)
        self.h.send(front, expected)
        self._expected.append((front, expected))
        if self.choose.whole(0, 4):
            self.other.h.submit(ahead, prompt, salt=salt, max_tokens=1, ignore_eos=True)

    def follow(self) -> None:
        """The request comes, or not; sometimes nobody says that it was the one, or will not be."""
        if not self._expected:
            return
        at = self.choose.whole(0, len(self._expected) - 1)
        front, expected = self._expected.pop(at)
        if front not in self.h.fronts:
            return
        self.met["followed in mid-fetch"] += bool(self.h.core.state.disk_kv._of_prompt)
        says = self.choose.whole(0, 3)
        if says == 0:
            self.h.send(front, ForgetPrompt(expected.number))
        if self.choose.whole(0, 3):
            salt = expected.cache_salt
            self.h.submit(front, expected.prompt_token_ids, n=self.choose.whole(1, 2), salt=salt)
        if says == 1:
            self.h.send(front, ForgetPrompt(expected.number))

    def kill(self) -> None:
        before = set(self.h.ranks)
        super().kill()
        for rank in before - set(self.h.ranks):
            shared = self.h.disks[rank].shared
            assert shared is not None
            self.met["gone with its rank"] += bool(shared)
            shared.clear()


class Pair:
    """Two engine cores that serve the same model, and say nothing to each other: workers do."""

    def __init__(self, choose: Choices, ranks: int, drawn: Drawing) -> None:
        options = drawn_options(choose)
        groups = drawn(choose, options["block_size"])
        self.choose = choose
        self.walkers = [SharingWalker(choose, ranks, options, groups) for _ in range(2)]
        one, two = self.walkers
        one.other, two.other = two, one
        two.h.join(one.h)
        disks = [walker.h.disks for walker in self.walkers]
        for mine, others in (disks, disks[::-1]):
            for rank, disk in mine.items():
                disk.shared, disk.others = {}, [others[rank]]

    def walked(self, operations: int) -> Pair:
        """After so many, the first of which connect front ends."""
        for walker in self.walkers:
            walker.connect()
        self.walk(operations)
        return self

    def walk(self, operations: int) -> None:
        for _ in range(operations):
            self.walkers[self.choose.whole(0, 1)].walk()

    def end(self) -> Counter[str]:
        """Both are drained. What was met."""
        met = Counter[str]()
        for walker in self.walkers:
            walker.end()
            met += walker.met
            counts = walker.h.core.state.counts
            met["read"] += counts.disk_blocks_read
            met["missed"] += counts.disk_blocks_missed
            met["read before it came"] += counts.prefetched["disk"]
            disks = walker.h.disks.values()
            met["of the other"] += sum(disk.num_fetched for disk in disks)
        return met


@SHORT
@given(st.data(), st.integers(1, 60), st.integers(1, 3), st.sampled_from(DRAWN))
def test_short_histories(data: st.DataObject, length: int, ranks: int, drawn: Drawing) -> None:
    is_met("read", Pair(Drawn(data), ranks, drawn).walked(length).end()["read"])


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [lambda choose, size: ONE_GROUP, *DRAWN])
def test_long_histories_and_that_they_meet_what_they_are_for(drawn: Drawing) -> None:
    met = Counter[str]()
    for seed in range(12):
        met += Pair(Seeded(seed), 1 + seed % 3, drawn).walked(800).end()
    for what in (
        "lost",
        "answered before others",
        "missed",
        "killed",
        "gone with its rank",
        "followed in mid-fetch",
    ):
        assert met[what], (what, met)
    assert met["read"] > 40, met
    assert met["of the other"] > 20, met
    assert met["read before it came"] > 20, met


@pytest.mark.parametrize("seed", range(3))
def test_a_replay_decides_alike(tmp_path: Path, seed: int) -> None:
    pair = Pair(Seeded(seed), 2, DRAWN[seed % 2])
    with recorded(pair.walkers[0].h, tmp_path):
        pair.walked(600)
    assert replayed(tmp_path) > 100


@pytest.mark.parametrize("seed", range(2))
def test_a_restored_core_goes_on_like_the_original(seed: int) -> None:
    pair = Pair(Seeded(seed), 2, DRAWN[seed]).walked(400)
    h = pair.walkers[0].h
    twins = Twins(h.core, restore(snapshot(h.core)))
    h.core = twins  # type: ignore[assignment]
    pair.walk(400)
    pair.end()
    assert twins.steps > 30
