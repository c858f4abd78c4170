"""Random histories of two engine cores over several ranks, whose workers keep blocks on disk and
fetch each other's, each rank those of the same place: of models with several KV groups, too."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from penstock.model.kv_layout import KVGroup
from penstock.protocol.from_frontend import ExpectPrompt, ForgetPrompt
from tests.engine.histories.groups import Drawing
from tests.engine.histories.rank_disk import RankDiskWalker
from tests.engine.rank_workers import RankHarness
from tests.engine.scores import Front
from tests.engine.walked_harness import Choices, drawn_options


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

    def __init__(self, choose: Choices, drawn: Drawing) -> None:
        ranks = choose.whole(1, 3)
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

    @property
    def h(self) -> RankHarness:
        """The harness of the first walker."""
        return self.walkers[0].h

    def connect(self) -> None:
        for walker in self.walkers:
            walker.connect()

    def walk(self) -> None:
        """One operation of one of them."""
        self.walkers[self.choose.whole(0, 1)].walk()

    def end(self) -> None:
        """Both are drained."""
        for walker in self.walkers:
            walker.end()

    def outcome(self) -> Counter[str]:
        """What both have met."""
        met = sum((walker.outcome() for walker in self.walkers), Counter[str]())
        for walker in self.walkers:
            met["of the other"] += sum(disk.num_fetched for disk in walker.h.disks.values())
        return met
