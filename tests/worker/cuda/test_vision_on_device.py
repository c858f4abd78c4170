"""Models that see on the CUDA kernels: numbers are the reference's, and nothing is mixed up between
host and device."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from penstock.model.prepared_model import PreparedModel
from penstock.protocol.from_worker import MediaReady
from penstock.protocol.media import Media
from penstock.protocol.to_worker import Plan, Setup
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.forward.backends import choose
from penstock_worker.forward.buckets import Buckets
from penstock_worker.forward.captures import EagerCaptures
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.forward.padded_inputs import decodes_text, rotary_positions
from penstock_worker.forward.queued import TritonForward
from penstock_worker.forward.triton import recipe as on_device
from penstock_worker.forward.triton_limits import ranks_with_towers
from penstock_worker.loading.device import load_on_device
from penstock_worker.loading.load import load
from penstock_worker.media.interface import BatchMedia
from penstock_worker.media.memory import USUAL_ROWS
from penstock_worker.parallel.place import RankPlace
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.vision.picture_runners import message_of
from tests.worker.vision.pictures import Prepared, picture, prompt_of, words
from tests.worker.vision.test_vision_bits import new, work
from tests.worker.vision.test_vision_loading import setup
from tests.worker.vision.vision_cases import CASES, prepared_folder

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

BLOCKS, POSITIONS = 16, 96
SIZES = {"num_kv_blocks": BLOCKS, "max_model_len": POSITIONS, "max_num_batched_tokens": 40}


def asked_of(folder: Path, **options: Any) -> Setup:
    return setup(folder, **(SIZES | {"attention_backend": "triton", "max_num_seqs": 2} | options))


def shown_in(case: str) -> tuple[Prepared, list[int], Media]:
    shown = picture(CASES[case].preparation, 2, 1)
    tokens, media = prompt_of([words(5, 1), shown, words(4, 2)])
    assert media is not None
    return shown, tokens, media


class Stepping:
    """A forward pass whose slots hold a prompt with a picture, and a text beside it."""

    def __init__(self, prepared: PreparedModel, asked: Setup, case: str, file: Path) -> None:
        shown, tokens, media = shown_in(case)
        recipe = choose(prepared, asked, 1)
        made: Any = recipe.build()
        self.forward: Forward = made(BLOCKS)
        if isinstance(self.forward, TritonForward):
            buckets = Buckets(2, POSITIONS, asked.block_size)
            self.forward.use_graphs(buckets, EagerCaptures(), torch.float32)
        held = recipe.media
        assert held is not None
        self.media = held
        file.write_bytes(shown.content)
        answers: SimpleQueue[Any] = SimpleQueue()
        held.hear(message_of(shown.item, str(file)), (), answers.put)
        assert isinstance(answers.get(timeout=60), MediaReady)
        self.length = len(tokens)
        # Each further KV group has blocks of its own.
        further = len(recipe.kv_groups) - 1
        mine = [3, 1, 5, *range(6, 6 + 3 * further)]
        beside = [0, *(2, 4, 15)[:further]]
        slots = [
            new(0, tokens, media, mine),
            msgspec.structs.replace(new(1, words(6, 7), media, beside), media=None),
        ]
        plan = Plan(1, 0, [], slots, [work(0, 0, tokens)], encode=[shown.item.name])
        held.encode(plan)
        vocab = prepared.config.vocab_size
        self.slots = Slots(SlotBounds.of(asked, vocab, BLOCKS, recipe.kv_groups))
        self.slots.apply(plan)

    def step(self, *works: tuple[int, int, int]) -> torch.Tensor:
        """Computes a step of (slot, start, count) each."""
        scheduled = [msgspec.structs.replace(work(0, 0, [1]), slot=slot, start=start, count=count)
                     for slot, start, count in works]  # fmt: skip
        batch = prepare_inputs(scheduled, self.slots, [self.media])
        return self.forward.logits(batch, np.arange(len(batch.tokens))).cpu()

    def grow(self) -> None:
        """Each slot has another token."""
        for number, token in ((0, 9), (1, 8)):
            self.slots[number].token_ids.append(token)


@pytest.mark.parametrize("case", ["gemma3", "qwen3-vl", "llava", "llama4"])
def test_logits_are_the_references(case: str, tmp_path: Path) -> None:
    """A chunk that ends within the picture, or in front of one whose rows see one another; the rest
    beside another prompt; and a decode of both, which is captured, and turns by the positions
    behind the picture."""
    prepared = prepared_folder(case, tmp_path)
    with torch.inference_mode():
        ours, true = (
            Stepping(prepared, asked_of(tmp_path, attention_backend=name), case, tmp_path / name)
            for name in ("triton", "reference")
        )
        length = ours.length
        first = 5 if ours.media.whole_spans else 8
        for works in (
            [(0, 0, first)],
            [(1, 0, 6), (0, first, length - first)],
            [(0, length, 1), (1, 6, 1)],
        ):
            if works[0][1] == length:
                ours.grow()
                true.grow()
            found, wanted = ours.step(*works), true.step(*works)
            assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max()
    assert isinstance(ours.forward, TritonForward)
    assert ours.forward._graphs is not None
    assert {each.sequences for each in ours.forward._graphs._graphs} == {1, 2}
    for each in (ours, true):
        each.media.close()


def test_a_worker_says_that_it_takes_pictures(tmp_path: Path) -> None:
    prepared_folder("llava", tmp_path)
    asked = asked_of(tmp_path, enforce_eager=True, max_num_batched_tokens=8, max_model_len=40)
    loaded = load(asked)
    assert loaded.ready.media_rows == USUAL_ROWS
    assert loaded.ready.media_bytes > 0
    assert not loaded.ready.whole_spans
    shown, tokens, media = shown_in("llava")
    answers: SimpleQueue[Any] = SimpleQueue()
    (tmp_path / "item").write_bytes(shown.content)
    loaded.runner.features.hear(message_of(shown.item, str(tmp_path / "item")), (), answers.put)
    assert isinstance(answers.get(timeout=60), MediaReady)
    first = work(0, 0, tokens[:8])
    plan = Plan(1, 0, [], [new(0, tokens, media, [0, 1])], [first], encode=[shown.item.name])
    (result,) = loaded.runner.execute(plan).slots
    assert result.error is None
    loaded.runner.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("case", ["qwen2.5-vl", "qwen3-vl", "idefics3", "gemma3", "llama4"])
def test_nothing_is_mixed_up_between_host_and_device(case: str, tmp_path: Path) -> None:
    """On a simulated GPU, with shapes only: tower, rows and positions are there."""
    prepared = prepared_folder(case, tmp_path)
    shown, tokens, _ = shown_in(case)
    asked = asked_of(tmp_path, device="cuda", enforce_eager=True)
    with simulated(Device(1 << 30, computes=False, pace=1)), torch.inference_mode():
        recipe = on_device(prepared, asked, 1)
        parts = load_on_device(recipe, asked, prepared.config.vocab_size)
        held: Any = recipe.media
        tower = held._sees._model
        rows = tower.encode(tower.read(shown.inputs))
        assert rows.is_cuda
        assert rows.shape == (shown.item.rows, prepared.decoder.media_width)
        sectioned = any(rope.sections for rope in prepared.decoder.ropes)
        media = BatchMedia(
            np.arange(5, 5 + len(rows)),
            rows,
            np.tile(np.arange(len(tokens)), (3, 1)) if sectioned else None,
        )
        batch = Batch(
            np.array(tokens),
            [np.arange(BLOCKS)],
            np.zeros(1, np.int64),
            np.array([len(tokens)]),
            media=media,
            more_tables=([np.arange(BLOCKS)],) * (len(recipe.kv_groups) - 1),
        )
        assert parts.forward.logits(batch, np.array([len(tokens) - 1])).is_cuda
        held.close()


def test_several_gpus_take_no_pictures(tmp_path: Path) -> None:
    prepared = prepared_folder("gemma3", tmp_path)
    seeing = prepared.decoder
    assert ranks_with_towers(seeing, RankPlace()) is None
    assert "2 GPUs share it" in (ranks_with_towers(seeing, RankPlace(tensor=2)) or "")


def test_which_decodes_are_captured() -> None:
    """Decodes whose rows are text are captured: they turn by one number, which isn't the token's
    place."""
    one = np.ones(2, np.int64)
    plain = Batch(one, [one, one], np.array([4, 9]), one)
    assert decodes_text(plain)
    assert rotary_positions(plain).tolist() == [4, 9]

    def showing(rows: list[int], positions: list[list[int]] | None) -> Batch:
        at = None if positions is None else np.array(positions)
        media = BatchMedia(np.array(rows, np.int64), None, at)
        return Batch(one, [one, one], np.array([4, 9]), one, media=media)

    behind = showing([], [[4, 3]] * 3)
    assert decodes_text(behind)
    assert rotary_positions(behind).tolist() == [4, 3]
    assert decodes_text(showing([], None))
    assert not decodes_text(showing([1], None))
    assert not decodes_text(showing([], [[4, 3], [4, 3], [4, 5]]))
