"""Threads that encode an item together: its bits don't depend on how many they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from penstock_worker.media.pieces import MILLION, Pieces
from penstock_worker.vision.mobile_blocks import BAND
from penstock_worker.vision.rows import CHUNK, RowThreads
from penstock_worker.vision.vision_model import VisionModel, open_tower
from tests.worker.vision.pictures import picture
from tests.worker.vision.vision_cases import CASES, both

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One thread, as a worker's operations have: several threads of torch's sum long rows
    otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _paused(pieces: Pieces[torch.Tensor], works: list[int]) -> torch.Tensor:
    """The result. Between pieces, other products are made."""
    while True:
        try:
            works.append(next(pieces))
        except StopIteration as done:
            return done.value
        torch.randn(40, 30) @ torch.randn(30, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "size"),
    [
        ("qwen2.5-vl", 9),
        ("qwen3-vl", 9),
        ("idefics3", 11),
        ("minimax-m3", 9),
        ("deepseek-ocr2", 5),
        ("step-3.7", 9),
    ],
)
def test_encodings_have_the_same_bits_on_any_number_of_threads(case: str, size: int) -> None:
    _, ours = both(case)
    shown = picture(CASES[case].preparation, size, 1)
    found = []
    for threads in (1, 2, 5):
        tower = VisionModel(ours.config, open_tower(ours.files, torch.float32), threads=threads)
        with torch.inference_mode():
            read = tower.read(shown.inputs)
            parts = [part for part in (read, read.behind) if part is not None]
            assert sum(len(part.patches) for part in parts) > 3 * CHUNK
            found += [tower.encode(read), tower.encode(read)]
            works: list[int] = []
            found.append(_paused(tower.pieces(read), works))
            said = tower.check(shown.inputs, shown.item.rows, shown.item.grid)
            assert 0.7 < sum(works) / (said * MILLION) < 1.3
    assert len(found[0]) == shown.item.rows
    assert all(torch.equal(each, found[0]) for each in found[1:])


@pytest.mark.slow
def test_planes_have_the_same_bits_on_any_number_of_threads() -> None:
    """Gemma 3n's convolutions, in bands. The first one's plane has several."""
    case = "gemma3n-whole"
    _, ours = both(case)
    shown = picture(CASES[case].preparation, 1, 1)
    found, works = [], list[int]()
    for threads in (1, 2, 5):
        tower = VisionModel(ours.config, open_tower(ours.files, torch.float32), threads=threads)
        with torch.inference_mode():
            read = tower.read(shown.inputs)
            assert len(read.patches) * tower.spec.tower.patch**2 / 4 > 3 * BAND
            found += [tower.encode(read), _paused(tower.pieces(read), works)]
    said = tower.check(shown.inputs, shown.item.rows, shown.item.grid)
    assert 0.7 < sum(works) / (3 * said * MILLION) < 1.3
    assert all(torch.equal(each, found[0]) for each in found[1:])


@pytest.mark.parametrize("threads", [1, 3])
def test_every_row_is_computed_once(threads: int) -> None:
    shared = RowThreads(threads)
    for rows in (1, CHUNK, CHUNK + 1, 2 * CHUNK, 1000):
        x, y = torch.randn(rows, 3), torch.randn(rows, 1)
        assert torch.equal(shared.map(lambda a, b: 2 * a + b, x, y), 2 * x + y)


@pytest.mark.parametrize("lengths", [[300], [4] * 20, [130, 7, 160]])
def test_attention_within_parts(lengths: list[int]) -> None:
    rows = sum(lengths)
    query, key, value = torch.randn(3, rows + 5, 4, 16)
    found = RowThreads(2).attend(query, key, value, lengths)
    assert torch.equal(found[rows:], torch.zeros(5, 4, 16))
    start = 0
    for length in lengths:
        part = slice(start, start + length)
        own = (each[part].transpose(0, 1).double() for each in (query, key, value))
        true = functional.scaled_dot_product_attention(*own).transpose(0, 1)
        assert torch.allclose(found[part].double(), true, atol=1e-5)
        start += length


def test_what_a_row_raises_is_raised() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise MemoryError("there is no more")

    with pytest.raises(MemoryError):
        RowThreads(2).map(broken, torch.zeros(1000, 1))
