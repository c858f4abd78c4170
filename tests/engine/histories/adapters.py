"""Random histories of requests with adapters, of which there are more than places."""

from __future__ import annotations

from penstock_engine.waiting.adapter_entry import AdapterStage
from tests.engine.fake_adapters import adapter
from tests.engine.fake_media import drawn_media
from tests.engine.harness import Harness
from tests.engine.walked_harness import FEW, POLICIES, TENANTS, Choices
from tests.engine.walker import Walker


def make_harness(choose: Choices) -> Harness:
    h = Harness(
        scheduling_policy=POLICIES[choose.whole(0, len(POLICIES) - 1)],
        tenants=TENANTS,
        max_model_len=40,
        block_size=choose.whole(1, 4),
        max_num_seqs=choose.whole(1, 5),
        max_num_batched_tokens=choose.whole(3, 12),
        max_steps_in_flight=choose.whole(1, 3),
        prefix_caching=choose.whole(0, 3) > 0,
        preemption_mode=("auto", "recompute", "swap")[choose.whole(0, 2)],
        max_loras=choose.whole(1, 3),
    )
    h.adapters_at_once = False
    h.bad_adapters = {adapter(0).digest}
    if choose.whole(0, 3) == 0:
        h.media_rows = 12
    return h


class AdapterWalker(Walker):
    """Half of the requests have an adapter, one of six."""

    def __init__(self, choose: Choices) -> None:
        super().__init__(make_harness(choose), choose)
        self.only(FEW, adapter=20)

    def walk(self) -> None:
        adapters = self.h.core.state.adapters
        super().walk()
        self.met["waited"] += bool(adapters.num_waiting)
        self.met["in line"] += bool(adapters.places.line)
        entries = adapters.places.loaded.values()
        self.met["leaving"] += any(entry.stage is AdapterStage.LEAVING for entry in entries)

    def kill(self) -> None:
        if self.h.worker is not None:
            self.met["killed while loading"] += bool(self.h.worker.adapters.loading)
            self.met["killed with adapters"] += bool(self.h.worker.adapters.loaded)
        super().kill()

    def submit(self) -> None:
        front, whole = self._front(), self.choose.whole
        if front is None:
            return
        prompt = self._prompt(whole(1, 36))
        number = whole(0, 11)
        media = None
        if self.h.media_rows and whole(0, 1):
            media = drawn_media(whole, len(prompt))
        self.h.submit(
            front,
            prompt,
            n=1 + whole(0, 3) // 3,
            seed=whole(0, 9),
            tenant=("", "a")[whole(0, 1)],
            media=media,
            adapter=adapter(number) if number < 6 else None,
            grammar=self._grammar() if whole(0, 7) == 0 else None,
            time_left_ms=whole(0, 40_000) if whole(0, 9) == 0 else None,
            max_tokens=whole(0, 9),
        )

    def step(self) -> None:
        super().step()
        self.compile_all()

    def end(self) -> None:
        super().end()
        adapters = self.h.core.state.adapters
        assert not adapters.num_waiting
        assert not adapters.places.line
        assert {entry.running for entry in adapters.places.loaded.values()} <= {0}
