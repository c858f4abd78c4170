"""Engine cores over several ranks, and what is asked of them."""

from __future__ import annotations

from typing import Any

from penstock.protocol.from_worker import Ready
from tests.engine.rank_workers import RankHarness
from tests.engine.scores import RequestScore


def started(tensor: int = 2, pipeline: int = 1, **options: Any) -> RankHarness:
    h = RankHarness(tensor, pipeline, **options)
    h.connect()
    h.start_worker()
    return h


def ask(h: RankHarness, count: int = 1, tokens: int = 12, **more: Any) -> list[RequestScore]:
    terms = {"max_tokens": tokens, "ignore_eos": "grammar" not in more, **more}
    return [h.submit(h.fronts[0], [3 + at] * 3, **terms) for at in range(count)]


def finishes(request: RequestScore) -> list[str | None]:
    ends = [score.terminal for score in request.sequences.values()]
    return [None if end is None else end.finish for end in ends]


def ready(**fields: Any) -> Ready:
    same = {"num_kv_blocks": 50, "device": "cpu", "fingerprint": "f", "load_seconds": 1.0}
    return Ready(**{**same, **fields})
