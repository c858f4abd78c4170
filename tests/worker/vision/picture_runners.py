"""Workers' runners with models that see, and pictures that are loaded into them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import torch

from penstock.forms.registry import ImagePreparation
from penstock.model.kv_layout import KVGroup, paged
from penstock.protocol.from_worker import MediaFailed, MediaReady
from penstock.protocol.media import MediaItem
from penstock.protocol.worker_resources import LoadMedia
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.pictures_apart import PicturesApartCache
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.forward.backends import choose as choose_backend
from penstock_worker.forward.cpu.forward import CPUForward
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.forward.reference_encoder import PicturesApartForward
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.media.planning import stand_in_of
from penstock_worker.sampler import choose
from penstock_worker.states.live_states import LiveStates
from penstock_worker.steps.runner import StepRunner
from penstock_worker.vision.sight import Sight
from tests.worker.cpu_model import CPUModel
from tests.worker.runners import Observer, host_runner
from tests.worker.vision.pictures import Prepared
from tests.worker.vision.vision_cases import POSITIONS, Ours


def encodings(ours: Ours, rows: int = 256) -> MediaEncodings:
    vision = ours.config.vision
    assert vision is not None
    return MediaEncodings(
        rows=rows,
        row_bytes=4 * ours.config.hidden_size,
        load_bytes=1 << 20,
        sections=any(rope.sections for rope in ours.config.ropes),
        whole_spans=vision.spans_whole,
        stand_in=stand_in_of(ours.config),
        apart=ours.config.pictures_apart,
    )


def on_cpu(ours: Ours, dtype: str = "float32", **more: Any) -> CPUModel:
    return CPUModel(ours.config, ours.files, dtype, positions=POSITIONS, **more)


def backend_of(ours: Ours, backend: str) -> CPUModel | None:
    return on_cpu(ours) if backend == "cpu" else None


def runner_of(
    ours: Ours,
    preparation: ImagePreparation,
    *,
    observer: Observer | None = None,
    slots: int = 8,
    blocks: int = 128,
    rows: int = 256,
    cpu: CPUModel | None = None,
) -> StepRunner[Any]:
    """cpu: the decoder on the CPU kernels; None: that of the reference."""
    media = encodings(ours, rows)
    bounds = SlotBounds(slots, blocks, 16, ours.config.vocab_size, POSITIONS)
    forward: ReferenceForward | PicturesApartForward | CPUForward
    states: LiveStates | None = None
    if is_recurrent(ours):
        forward, states, groups = with_states(cpu or on_cpu(ours, backend="reference"), blocks)
        bounds = replace(bounds, groups=paged(groups))
    elif ours.config.pictures_apart:
        shape = CacheShape.of(ours.config, 16, ours.decoder.dtype)
        cache = PicturesApartCache(ReferenceAttention(shape, blocks))
        forward = PicturesApartForward(ours.decoder, cache)
    elif cpu is None:
        shape = CacheShape.of(ours.config, 16, ours.decoder.dtype)
        forward = ReferenceForward(ours.decoder, ReferenceAttention(shape, blocks))
    else:
        forward = cast("CPUForward", cpu.forward(block_size=16, num_blocks=blocks, threads=2))
        bounds = replace(bounds, groups=cpu.recipe().kv_groups)
    media.see_with(Sight(ours.tower, preparation, forward.count_layer))
    return host_runner(
        forward, choose(1), Slots(bounds), observer=observer, media=media, states=states
    )


def with_states(
    model: CPUModel, blocks: int, every: int = POSITIONS
) -> tuple[Any, LiveStates | None, tuple[KVGroup, ...]]:
    """The forward pass of a model with recurrent layers, their states and all KV groups. every:
    tokens between two checkpoints."""
    setup = msgspec.structs.replace(
        model.setup(block_size=16, num_blocks=blocks, threads=2), state_checkpoint_tokens=every
    )
    recipe = choose_backend(model.prepared(), setup, 2)
    assert isinstance(recipe.states, LiveStates)
    with torch.inference_mode():
        return recipe.build()(blocks), recipe.states, recipe.kv_groups


def is_recurrent(ours: Ours) -> bool:
    """Whether the decoder has states beside keys and values."""
    numbers = range(ours.config.num_layers)
    return any(ours.config.layer(number).recurrent is not None for number in numbers)


def load(runner: StepRunner[Any], folder: Path, *shown: Prepared) -> None:
    """Gives a runner the items as files, and waits until it has them."""
    for each in shown:
        path = folder / each.item.name
        path.write_bytes(each.content)
        answer = answered(runner, message_of(each.item, str(path)))
        assert isinstance(answer, MediaReady), answer
        assert answer.name == each.item.name


def answered(runner: StepRunner[Any], message: LoadMedia) -> MediaReady | MediaFailed:
    from queue import SimpleQueue

    answers: SimpleQueue[Any] = SimpleQueue()
    runner.feature(MediaEncodings).hear(message, (), answers.put)
    found: MediaReady | MediaFailed = answers.get(timeout=60)
    return found


def message_of(item: MediaItem, path: str = "") -> LoadMedia:
    return LoadMedia(item.name, item.kind, item.rows, item.size, item.digest, item.grid, path)
