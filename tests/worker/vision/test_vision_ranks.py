"""Pictures over ranks: the first stage's ranks encode, and all of them have the positions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch

from penstock.errors import StartupError
from penstock.protocol.from_worker import MediaReady
from penstock.protocol.to_worker import Plan
from penstock_worker.batch.logits import in_torch
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.forward.backends import choose
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.parallel.shard import shard_of
from tests.worker.parallel.together import Formed
from tests.worker.vision.picture_runners import message_of
from tests.worker.vision.pictures import picture, prompt_of, words
from tests.worker.vision.test_vision_bits import new, work
from tests.worker.vision.test_vision_loading import setup
from tests.worker.vision.vision_cases import CASES, prepared_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def _as_in_a_worker() -> Iterator[None]:
    """Torch's own threads are one, as `load` has them: two would divide products otherwise, and a
    new thread need not have as many as this one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_rows_behind_layers_of_another_stage_are_refused(tmp_path: Path) -> None:
    config = prepared_folder("qwen3-vl", tmp_path).decoder
    shard_of(config, RankPlace(1, 2))
    with pytest.raises(StartupError, match="behind the first 2 of them"):
        shard_of(config, RankPlace(1, 3))


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("case", ["qwen2.5-vl", "qwen3-vl", "gemma3"])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_ranks_see_what_one_worker_sees(
    backend: str, case: str, tensor: int, pipeline: int, tmp_path: Path
) -> None:
    prepared = prepared_folder(case, tmp_path)
    asked = setup(tmp_path, attention_backend=backend)
    shown = picture(CASES[case].preparation, 2, 1)
    tokens, media = prompt_of([words(9, 1), shown, words(12, 2)])
    assert media is not None
    blocks = list(range(6))
    plan = Plan(
        1,
        0,
        [],
        [new(0, tokens, media, blocks)],
        [work(0, 0, tokens)],
        encode=[shown.item.name],
    )
    file = tmp_path / "item"
    file.write_bytes(shown.content)

    def logits(ranks: Ranks) -> torch.Tensor:
        with torch.inference_mode():
            recipe = choose(prepared, asked, 1, ranks)
            forward = recipe.build()(16)
            held = recipe.media
            assert held is not None
            answers: SimpleQueue[Any] = SimpleQueue()
            if ranks.place.first:
                held.hear(message_of(shown.item, str(file)), (), answers.put)
                assert isinstance(answers.get(timeout=60), MediaReady)
            held.encode(plan)
            bounds = SlotBounds.of(asked, prepared.config.vocab_size, 16, recipe.kv_groups)
            slots = Slots(bounds)
            slots.apply(plan)
            batch = prepare_inputs(plan.work, slots, [held])
            found = in_torch(forward.logits(batch, np.arange(len(tokens))))
            held.close()
        assert slots[0].failed is None
        return found

    true = logits(ALONE)
    with Formed(tensor, pipeline) as formed:
        found = [each for each in formed.each(logits) if len(each)]
    assert len(found) == tensor
    for each in found:
        assert torch.allclose(each, true, rtol=1e-3, atol=1e-3)
        assert (backend, pipeline) == ("reference", 1) or torch.equal(each, true)
