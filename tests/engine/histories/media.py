"""Random histories of requests with pictures, under budgets so small that they want each other's
room."""

from __future__ import annotations

from penstock.protocol.media import Media
from tests.engine.fake_media import drawn_media, picture
from tests.engine.harness import Harness
from tests.engine.walked_harness import FEW, POLICIES, Choices
from tests.engine.walker import Walker


def make_harness(choose: Choices) -> Harness:
    h = Harness(
        scheduling_policy=POLICIES[choose.whole(0, len(POLICIES) - 1)],
        max_model_len=40,
        block_size=choose.whole(1, 4),
        max_num_seqs=choose.whole(2, 5),
        max_num_batched_tokens=choose.whole(3, 8),
        max_encoded_rows=choose.whole(1, 9),
        max_steps_in_flight=choose.whole(1, 3),
        prefix_caching=choose.whole(0, 3) > 0,
        encoder_cache=choose.whole(0, 3) > 0,
        preemption_mode=("auto", "recompute", "swap")[choose.whole(0, 2)],
    )
    h.media_at_once = False
    h.media_rows = choose.whole(6, 12)
    h.media_work = (0, 30, 150)[choose.whole(0, 2)]
    h.whole_spans = choose.whole(0, 1) == 0
    h.by_file = choose.whole(0, 1) == 1
    h.reads_files = choose.whole(0, 2) > 0
    h.bad_media = {picture(0).digest}
    if not choose.whole(0, 3):
        # Steps may hold from ten to thousands of what the pictures take.
        h.encode_seconds = lambda: (0.0, 0.0001, 0.001, 0.01, 0.1)[choose.whole(0, 4)]
    return h


class MediaWalker(Walker):
    """Requests bring pictures, and little else."""

    def __init__(self, choose: Choices) -> None:
        super().__init__(make_harness(choose), choose)
        self.has_media = True
        self._parts = 0
        self.only(FEW, media=60)

    def walk(self) -> None:
        super().walk()
        media = self.h.core.state.media
        asked = [front.in_step & {need.request} for front, need in self.h.asked_media]
        self.met["asked for again"] += any(asked)
        self.met["too short"] += self.h.core.state.scheduling.short is not None
        self.met["two held"] += len(media.encodings._pinned) > 1
        parts = self.h.worker.media.num_parts if self.h.worker is not None else 0
        self.met["divided"] += max(parts - self._parts, 0)
        self._parts = parts
        self.met["room wanted"] += media.encodings._next is not None

    def kill(self) -> None:
        self.met["killed in parts"] += self.h.core.state.media.encodings._begun is not None
        super().kill()

    def submit(self) -> None:
        front, whole = self._front(), self.choose.whole
        if front is None:
            return
        prompt = self._prompt(whole(4, 36))
        self.h.submit(
            front,
            prompt,
            n=1 + whole(0, 3) // 3,
            seed=whole(0, 9),
            tenant=("", "a")[whole(0, 1)],
            media=self._media(len(prompt)),
            grammar=self._grammar() if whole(0, 7) == 0 else None,
            prompt_logprobs=1 if whole(0, 3) == 0 else None,
            time_left_ms=whole(0, 40_000) if whole(0, 9) == 0 else None,
            max_tokens=whole(0, 6),
        )

    def _media(self, length: int) -> Media | None:
        whole = self.choose.whole
        media = drawn_media(whole, length, joined=self.h.whole_spans and whole(0, 4) == 0)
        self.met["joined"] += media is not None and media.joined
        return media

    def step(self) -> None:
        super().step()
        self.compile_all()
