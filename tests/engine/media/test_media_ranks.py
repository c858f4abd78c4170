"""Which ranks get items, and whose answers are waited for."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocol.common import Stopping, TokenSampling
from penstock.protocol.from_frontend import Hello, MediaChunk, MediaFile, OpenSequence, Submit
from penstock.protocol.from_worker import (
    MediaFailed,
    MediaReady,
    Ready,
    Result,
    SlotResult,
    WorkerHello,
)
from penstock.protocol.media import Media
from penstock.protocol.to_frontend import NeedMedia, Outputs
from penstock.protocol.to_worker import Plan
from penstock.protocol.worker_resources import DropMedia, LoadMedia, LoadMediaChunk
from penstock_engine.core import EngineCore
from tests.engine.fake_media import picture, shown
from tests.engine.small_facts import facts

FRONT = b"f" * 16
TENSOR = STAGES = 2


class Group:
    """A core with four ranks, rank r's session being the byte r."""

    def __init__(self) -> None:
        self.core = EngineCore(facts(tensor=TENSOR, pipeline=STAGES))
        self.core.frontend_opened(FRONT, Hello([2], "test", 1), 0.0)
        for rank in range(TENSOR * STAGES):
            hello = WorkerHello([2], rank, 1, rendezvous=f"host:{rank}")
            self.core.worker_opened(bytes([rank]), hello, 0.0)
        ready = Ready(
            num_kv_blocks=50, device="cpu", fingerprint="f", load_seconds=0.1, media_rows=16
        )
        for rank in range(TENSOR * STAGES):
            self.says(rank, ready)

    def says(self, rank: int, message: Any) -> None:
        self.core.worker_received(bytes([rank]), message, 0.0)

    def step(self) -> dict[type, list[tuple[int, Any]]]:
        """What was sent to ranks, by its kind; and to the front end."""
        effects = self.core.step(0.0)
        self.core.check()
        found: dict[type, list[tuple[int, Any]]] = {}
        for session, message, _ in effects.to_workers:
            found.setdefault(type(message), []).append((session[0], message))
        for _, told, _ in effects.to_frontends:
            found.setdefault(type(told), []).append((-1, told))
        return found

    def submit(self, number: int, media: Media | None = None) -> None:
        prompt = [3, 9, 9, 9, 9, 4]
        opened, sampling = [OpenSequence(0)], TokenSampling(1)
        submit = Submit(number, "r", prompt, opened, sampling, Stopping(3), media=media)
        self.core.frontend_received(FRONT, submit, 0.0)

    def ask(self) -> None:
        """Submits a prompt with a picture, which its front end has as a file."""
        self.submit(1, shown((picture(1), 1)))
        assert NeedMedia in self.step()
        self.core.frontend_received(FRONT, MediaFile(1, 0, "/run/media/x"), 0.0)


def test_items_go_to_the_first_stage_and_all_of_it_must_have_them() -> None:
    group = Group()
    group.ask()
    sent = group.step()[LoadMedia]
    assert [rank for rank, _ in sent] == [0, 1]
    name = sent[0][1].name
    group.says(0, MediaReady(name))
    assert Plan not in group.step()
    group.says(1, MediaReady(name))
    plans = group.step()[Plan]
    assert [rank for rank, _ in plans] == [0, 1, 2, 3], "positions are everybody's"
    assert all(plan.encode == [name] for _, plan in plans)
    assert all(plan.admitted[0].media.items[0].name == name for _, plan in plans)


def test_one_rank_that_can_not_open_the_file_has_all_get_chunks() -> None:
    group = Group()
    group.ask()
    ((_, load), _) = group.step()[LoadMedia]
    group.says(1, MediaFailed(load.name, "no such file", "unreachable"))
    assert NeedMedia not in group.step(), "the other has not answered yet"
    group.says(0, MediaReady(load.name))
    told = group.step()
    assert [rank for rank, _ in told[DropMedia]] == [0, 1]
    assert told[NeedMedia][0][1].chunks


def test_chunks_are_asked_for_once_if_no_rank_can_open_the_file() -> None:
    """Not that one which says so after another ends the request."""
    group = Group()
    group.ask()
    ((_, load), _) = group.step()[LoadMedia]
    for rank in range(TENSOR):
        group.says(rank, MediaFailed(load.name, "no such file", "unreachable"))
    told = group.step()
    assert Outputs not in told
    assert told[NeedMedia][0][1].chunks
    size = picture(1).size
    group.core.frontend_sent_chunk(FRONT, MediaChunk(1, 0, 0, size), bytes(size), 0.0)
    sent = group.step()
    assert [rank for rank, _ in sent[LoadMediaChunk]] == [0, 1]
    group.says(0, MediaFailed(load.name, "no such thing", "unreachable"))
    group.says(1, MediaReady(load.name))
    assert group.step()[Outputs][0][1].outputs[0].error_code == "invalid_media", "not for ever"


def test_rows_that_only_some_ranks_have_are_dropped() -> None:
    group = Group()
    group.ask()
    ((_, load), _) = group.step()[LoadMedia]
    for rank in range(TENSOR):
        group.says(rank, MediaReady(load.name))
    assert group.step()[Plan][0][1].encode == [load.name]
    group.says(1, MediaFailed(load.name, "it is too bright", "unfit"))
    group.submit(2)
    told = group.step()
    if Plan not in told:
        for rank in range(TENSOR * STAGES):
            group.says(rank, Result(1, [SlotResult(0, error="no rows")] if rank == 2 else []))
        told = group.step()
    assert [plan.dropped_media for _, plan in told[Plan]] == [[load.name]] * 4


@pytest.mark.parametrize("ready_first", [True, False])
def test_one_rank_that_finds_it_bad_fails_it(ready_first: bool) -> None:
    group = Group()
    group.ask()
    ((_, load), _) = group.step()[LoadMedia]
    answers = [(0, MediaReady(load.name)), (1, MediaFailed(load.name, "it is bad", "damaged"))]
    for rank, answer in answers if ready_first else answers[::-1]:
        group.says(rank, answer)
    told = group.step()
    assert [rank for rank, _ in told[DropMedia]] == [0, 1]
    (output,) = told[Outputs][0][1].outputs
    assert (output.finish, output.error_code) == ("error", "invalid_media")


def test_ranks_that_disagree_about_media_form_no_group() -> None:
    core = EngineCore(facts(tensor=2))
    for rank in range(2):
        hello = WorkerHello([2], rank, 1, rendezvous=f"host:{rank}")
        core.worker_opened(bytes([rank]), hello, 0.0)
    for rank in range(2):
        ready = Ready(
            num_kv_blocks=50, device="cpu", fingerprint="f", load_seconds=0.1, media_rows=rank
        )
        core.worker_received(bytes([rank]), ready, 0.0)
    ends = core.step(0.0).end_workers
    assert "media_rows is 0 and 1" in ends[0][1]
