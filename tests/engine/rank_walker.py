"""Random histories of a model over several ranks: they come, go, run ahead, and contradict."""

from __future__ import annotations

from penstock.protocol.from_worker import Fault, Progress, Result
from penstock_engine.request.request import Sequence
from tests.engine.rank_workers import RankHarness
from tests.engine.walked_harness import Choices, drawn_options
from tests.engine.walker import Walker

SIZES = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 3))


def make_rank_harness(choose: Choices, size: tuple[int, int] | None = None) -> RankHarness:
    """size: tensor, pipeline; None: drawn."""
    tensor, pipeline = size or SIZES[choose.whole(0, len(SIZES) - 1)]
    options = drawn_options(choose)
    budgets = choose.whole(0, 2)
    if budgets == 0:
        # So large that it can be halved several times: early, and while a rank fails.
        options["max_num_batched_tokens"] = choose.whole(65, 1000)
    elif pipeline > 1:
        # So small that most prompts take many steps.
        options["max_num_batched_tokens"] = choose.whole(1, 6)
        options["max_model_len"] = choose.whole(32, 64)
    return RankHarness(tensor, pipeline, **options)


class RankWalker(Walker):
    """What a Walker does to its worker is done to the ranks, one at a time."""

    h: RankHarness

    def __init__(self, harness: RankHarness, choose: Choices) -> None:
        super().__init__(harness, choose)
        self.walks["disagree"] = (1, self.disagree)
        self.walks["fail"] = (2, self.fail)
        self.walks["out of memory"] = (1, self.out_of_memory)
        self._wheel = [name for name, (weight, _) in self.walks.items() for _ in range(weight)]

    def _rank(self) -> int:
        return self.choose.whole(0, self.h.size - 1)

    def step(self) -> None:
        if self.h.worker is None:
            self.worker()
        elif self.choose.whole(0, 2):
            self.h.run_step()
        else:
            for _ in range(self.choose.whole(1, 4)):
                rank = self._rank()
                self.h.rank_step(rank)
                self.met["ahead"] += any(len(one.plans) > 1 for one in self.h.ranks.values())

    def worker(self) -> None:
        """A rank dials in, late or again; or one that loads is ready."""
        h, rank = self.h, self._rank()
        if h.formed and h.worker is None:
            loading = [each for each, one in h.ranks.items() if one.worker is None]
            h.rank_ready(loading[rank % len(loading)], *self._group_size())
        elif h.formed:
            if self.choose.whole(0, 9) == 0:
                self.met["replaced"] += 1
                h.hello(rank)
        elif rank not in h.ranks or self.choose.whole(0, 9) == 0:
            h.hello(rank)

    def _group_size(self) -> tuple[int, int]:
        """Blocks and host blocks: what the first rank that is ready has, the others have too."""
        for one in self.h.ranks.values():
            worker = one.worker
            if worker is not None:
                return self._size
        self._size = (self._pool_size(), self._host_size())
        return self._size

    def walk(self) -> None:
        several = self._several_in_flight()
        super().walk()
        lost = self.h.worker is None
        self.met["lost between chunks"] += lost and bool(several)
        self.met["ended between chunks"] += any(sequence.finished for sequence in several)

    def _several_in_flight(self) -> list[Sequence]:
        """Who is in several steps in flight, over stages."""
        running = self.h.core.state.scheduling.running.values() if self.h.pipeline > 1 else ()
        return [sequence for sequence in running if sequence.progress.in_flight > 1]

    def kill(self) -> None:
        if self.h.ranks:
            self.met["killed"] += self.h.worker is not None
            self.h.kill_rank(sorted(self.h.ranks)[self._rank() % len(self.h.ranks)])

    def unfit(self) -> None:
        rank = self._sound_rank()
        if rank is not None:
            self.h.rank_says(rank, Result(self.h.worker.last_step + 7, []))
            assert not self.h.ranks

    def progress(self) -> None:
        rank = self._sound_rank()
        if rank is not None:
            self.h.rank_says(rank, Progress(1, self.choose.whole(0, 99)))

    def disagree(self) -> None:
        """Ranks of the last stage that sampled differently are dropped, once both have told."""
        h = self.h
        if h.worker is None or h.tensor == 1 or not h.plans or self._failing():
            return
        step = h.plans[0][0].step
        for rank in range(h.size):
            mine = h.ranks[rank]
            if mine.plans and mine.plans[0].step == step:
                liar = rank == h.size - 1
                h.rank_step(rank, **({"sampled": -1} if liar else {}))
                self.met["disagreed"] += liar

    def _sound(self) -> list[int]:
        """Ranks of a group that computes, which haven't failed."""
        if self.h.worker is None:
            return []
        return [rank for rank, one in sorted(self.h.ranks.items()) if not one.failed]

    def _sound_rank(self) -> int | None:
        sound = self._sound()
        return sound[self._rank() % len(sound)] if sound else None

    def fail(self) -> None:
        """Some fail, one after the other; the group is over with the last, or in a while."""
        for rank in self._sound()[self._rank() :]:
            if rank in self._sound():
                self.h.rank_says(rank, Fault("another rank is gone", final=False))
        failing = bool(self._sound()) and self._failing()
        self.met["failing"] += failing
        if failing and self.choose.whole(0, 3):
            self.out_of_memory()

    def _failing(self) -> bool:
        return any(one.failed for one in self.h.ranks.values())

    def end(self) -> None:
        self.h.now += 2.0  # Nobody's fault is waited for any more.
        self.h.settle()
        super().end()

    def out_of_memory(self) -> None:
        rank = self._sound_rank()
        if rank is None:
            return
        before = self.h.core.state.scheduling.budget
        halved = bool(self.h.plans) and before > max(64, self.h.facts.block_size)
        self.met["halved"] += halved
        self.met["halved late"] += halved and self._failing()
        self.h.accuses = not halved
        self.h.rank_says(rank, Fault("no memory", final=False, out_of_memory=True))
        self.h.accuses = True
        assert (self.h.core.state.scheduling.budget < before) == halved
        assert not self.h.ranks
