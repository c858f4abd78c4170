"""Plans with media: what fails fails alone, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.protocol.from_worker import MediaFailed, Result
from penstock.protocol.media import Media, MediaItem, MediaSpan
from penstock.protocol.to_worker import NewSequence, PartlyEncoded, Plan, SlotWork
from penstock.protocol.worker_resources import DropMedia
from penstock_worker.batch.slots import PlanError
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.steps.errors import DeviceLost, OutOfDeviceMemory
from penstock_worker.steps.runner import StepRunner
from tests.worker.driver import GREEDY
from tests.worker.vision.picture_runners import answered, load, message_of, runner_of
from tests.worker.vision.pictures import Prepared, picture, prompt_of, words
from tests.worker.vision.vision_cases import CASES, both

CASE = "llava"


@pytest.fixture
def runner() -> StepRunner[Any]:
    return runner_of(both(CASE)[1], CASES[CASE].preparation)


@pytest.fixture
def shown() -> Prepared:
    return picture(CASES[CASE].preparation, 1, 1)


def media_of(runner: StepRunner[Any]) -> MediaEncodings:
    media = runner.feature(MediaEncodings)
    assert isinstance(media, MediaEncodings)
    return media


def sequence(slot: int, media: Media | None, tokens: list[int]) -> NewSequence:
    blocks = [10 * slot + each for each in range(-(-len(tokens) // 16))]
    return NewSequence(slot, tokens, len(tokens), 0, GREEDY, blocks, media=media)


def step(runner: StepRunner[Any], new: list[NewSequence], number: int = 1, **more: Any) -> Result:
    works = [SlotWork(each.slot, 0, len(each.tokens)) for each in new]
    plan = Plan(number, number - 1, more.pop("released", []), new, works, **more)
    return runner.execute(plan)


def prompts_with(shown: Prepared) -> list[NewSequence]:
    tokens, media = prompt_of([words(4, 1), shown, words(3, 2)])
    return [sequence(0, media, tokens), sequence(1, None, words(20, 3))]


def test_the_time_of_encoding_is_part_of_a_steps(
    runner: StepRunner[Any], shown: Prepared, tmp_path: Path
) -> None:
    load(runner, tmp_path, shown)
    before = runner.layers_done
    result = step(runner, prompts_with(shown), encode=[shown.item.name])
    assert 0 < result.encode_seconds < result.compute_seconds
    assert runner.layers_done == before + 2 + 3, "the tower's layers count, so that it isn't stuck"
    again = step(runner, [], 2)
    assert again.encode_seconds == 0


def test_rows_that_are_missing_fail_their_slots_alone(
    runner: StepRunner[Any], shown: Prepared
) -> None:
    result = step(runner, prompts_with(shown))
    first, second = result.slots
    assert "could not be encoded" in (first.error or "")
    assert second.error is None
    assert second.token is not None


def test_an_encoding_that_fails_is_told_before_the_result(
    runner: StepRunner[Any], shown: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = tmp_path / "item", []
    path.write_bytes(shown.content)
    load(runner, tmp_path, shown)

    def broken(*ignored: Any) -> Tensor:
        return torch.full((16, 72), float("nan"))

    monkeypatch.setattr(type(both(CASE)[1].tower), "encode", broken)
    store = media_of(runner)._store
    assert store is not None
    store._items[shown.item.name].tell = told.append
    result = step(runner, prompts_with(shown), encode=[shown.item.name])
    assert [type(each) for each in told] == [MediaFailed]
    assert result.slots[0].error is not None
    assert result.slots[1].error is None


def test_rows_are_kept_until_they_are_dropped(
    runner: StepRunner[Any], shown: Prepared, tmp_path: Path
) -> None:
    load(runner, tmp_path, shown)
    first = step(runner, prompts_with(shown), encode=[shown.item.name])
    second = step(runner, prompts_with(shown), 2, released=[0, 1])
    assert second.slots[0].token == first.slots[0].token
    gone = step(
        runner, prompts_with(shown), 3, released=[0, 1], dropped_media=[shown.item.name, "unknown"]
    )
    assert gone.slots[0].error is not None


def test_a_new_session_finds_nothing(
    runner: StepRunner[Any], shown: Prepared, tmp_path: Path
) -> None:
    load(runner, tmp_path, shown)
    step(runner, prompts_with(shown), encode=[shown.item.name])
    load(runner, tmp_path, shown)
    runner.reset()
    held = media_of(runner)
    assert not held._rows
    assert held._store is not None
    assert not held._store._items
    assert step(runner, prompts_with(shown), encode=[shown.item.name]).slots[0].error is not None


def test_an_item_is_forgotten_when_the_core_says_so(
    runner: StepRunner[Any], shown: Prepared, tmp_path: Path
) -> None:
    load(runner, tmp_path, shown)
    for name in (shown.item.name, "unknown"):
        runner.feature(MediaEncodings).hear(DropMedia(name), (), lambda answer: None)
    assert step(runner, prompts_with(shown), encode=[shown.item.name]).slots[0].error is not None


def test_spans_that_dont_fit_fail_their_sequence_alone(runner: StepRunner[Any]) -> None:
    item = MediaItem("a" * 64, "image", 16, 100, "b" * 64)
    media = Media((item,), (MediaSpan(0, 3, 17),))
    result = step(runner, [sequence(0, media, words(30, 1)), sequence(1, None, words(20, 3))])
    assert "more tokens" in (result.slots[0].error or "")
    assert result.slots[1].error is None


def test_a_step_that_cuts_a_span_that_is_seen_as_a_whole_fails_it(tmp_path: Path) -> None:
    case = "gemma3"
    runner = runner_of(both(case)[1], CASES[case].preparation)
    shown = picture(CASES[case].preparation, 1, 1)
    load(runner, tmp_path, shown)
    tokens, media = prompt_of([words(4, 1), shown, words(3, 2)])
    plan = Plan(
        1, 0, [], [sequence(0, media, tokens)], [SlotWork(0, 0, 9)], encode=[shown.item.name]
    )
    (found,) = runner.execute(plan).slots
    assert "within a span" in (found.error or "")


def test_joined_spans_fail_their_sequence_alone_where_kernels_cant_compute_them(
    tmp_path: Path,
) -> None:
    preparation = CASES["molmo2"].preparation
    runner = runner_of(both("molmo2")[1], preparation)
    media_of(runner).joins_spans = False
    one, other = picture(preparation, 1, 1), picture(preparation, 1, 2)
    load(runner, tmp_path, one, other)
    tokens, media = prompt_of([words(4, 1), one, words(3, 2), other])
    alone, single = prompt_of([words(4, 1), one, words(3, 2)])
    result = step(
        runner,
        [sequence(0, media, tokens), sequence(1, single, alone)],
        encode=[one.item.name, other.item.name],
    )
    assert "Send one picture" in (result.slots[0].error or "")
    assert result.slots[1].error is None


@pytest.mark.parametrize("case", ["llava", "idefics3", "qwen2-vl"])
def test_pictures_of_another_form_are_refused(case: str, tmp_path: Path) -> None:
    runner = runner_of(both(case)[1], CASES[case].preparation)
    other = {"llava": "idefics3", "idefics3": "llava", "qwen2-vl": "llava"}[case]
    shown = picture(CASES[other].preparation, 1, 1)
    path = tmp_path / "item"
    path.write_bytes(shown.content)
    found = answered(runner, message_of(shown.item, str(path)))
    assert isinstance(found, MediaFailed)
    assert found.code == "unfit"


def test_an_item_that_isnt_there_is_told(
    runner: StepRunner[Any], shown: Prepared, tmp_path: Path
) -> None:
    """The engine core counts it as encoded otherwise. Also one that is being read."""
    told: list[Any] = []
    load(runner, tmp_path, shown)
    runner.feature(MediaEncodings).hear(DropMedia(shown.item.name), (), told.append)
    step(runner, prompts_with(shown), encode=[shown.item.name])
    runner.feature(MediaEncodings).hear(message_of(shown.item), (), told.append)
    step(runner, [], 2, encode=[shown.item.name])
    assert [(each.name, each.code) for each in told] == [(shown.item.name, "unfit")] * 2
    held = media_of(runner)._store
    assert held is not None
    assert not held._items, "of what has failed nothing is kept"


def test_no_more_rows_are_kept_than_were_told(tmp_path: Path) -> None:
    runner = runner_of(both(CASE)[1], CASES[CASE].preparation, rows=40)
    first, second, third = (picture(CASES[CASE].preparation, 1, seed) for seed in (1, 2, 3))
    load(runner, tmp_path, first, second, third)
    step(runner, [], encode=[first.item.name, second.item.name])
    with pytest.raises(PlanError, match="16 rows are to be kept beside 32; at most 40"):
        step(runner, [], 2, encode=[third.item.name])


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (GroupLost, GroupLost),
        (DeviceLost, DeviceLost),
        (MemoryError, MemoryError),
        (torch.OutOfMemoryError, OutOfDeviceMemory),
    ],
)
def test_an_item_isnt_blamed_for_what_the_machine_lacks(
    error: type[Exception],
    becomes: type[Exception],
    runner: StepRunner[Any],
    shown: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load(runner, tmp_path, shown)

    def lost(*ignored: Any) -> Tensor:
        raise error("another rank is gone, or memory is")

    monkeypatch.setattr(type(both(CASE)[1].tower), "encode", lost)
    with pytest.raises(becomes):
        step(runner, prompts_with(shown), encode=[shown.item.name])


def test_an_encoding_that_is_divided_over_steps_has_the_same_bits(
    runner: StepRunner[Any], shown: Prepared, tmp_path: Path
) -> None:
    """Wherever it is divided; a new session forgets what was begun, and a drop too."""
    held, name, found = media_of(runner), shown.item.name, []
    for cuts in ((), (1,), (1, 2, 3, 5, 9), (10**6,)):
        load(runner, tmp_path, shown)
        for number, until in enumerate(cuts, 1):
            begun = step(runner, [], number, partly=[PartlyEncoded(name, until)])
            assert begun.encode_seconds > 0
            assert name not in held._rows
        step(runner, [], len(cuts) + 1, encode=[name])
        found.append(held._rows[name])
        load(runner, tmp_path, shown)
        step(runner, [], len(cuts) + 2, dropped_media=[name], partly=[PartlyEncoded(name, 1)])
        if cuts:
            step(runner, [], len(cuts) + 3, dropped_media=[name])
        else:
            runner.reset()
        assert held._begun is None
        runner.reset()
    assert all(torch.equal(each, found[0]) for each in found)


def test_one_item_at_a_time_is_begun(runner: StepRunner[Any], tmp_path: Path) -> None:
    one, other = (picture(CASES[CASE].preparation, 1, seed) for seed in (1, 2))
    load(runner, tmp_path, one, other)
    step(runner, [], partly=[PartlyEncoded(one.item.name, 1)])
    with pytest.raises(PlanError, match="before"):
        step(runner, [], 2, partly=[PartlyEncoded(other.item.name, 1)])


def test_an_encoding_that_fails_halfway_is_told_once(
    runner: StepRunner[Any], shown: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    load(runner, tmp_path, shown)

    def breaks(*ignored: Any) -> Iterator[int]:
        yield 10**6
        raise ValueError("it doesn't fit")

    monkeypatch.setattr(type(both(CASE)[1].tower), "pieces", breaks)
    store = media_of(runner)._store
    assert store is not None
    store._items[shown.item.name].tell = told.append
    for number in (1, 2, 3):
        step(runner, [], number, partly=[PartlyEncoded(shown.item.name, number)])
    step(runner, [], 4, encode=[shown.item.name])
    assert [(each.name, each.code) for each in told] == [(shown.item.name, "unfit")]
