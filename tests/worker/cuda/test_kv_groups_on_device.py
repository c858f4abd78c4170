"""Layers in several KV groups on the CUDA kernels: no block is read behind a window, and the bits
are those of one group."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from penstock.model.attention_spec import AttentionSpec
from penstock.model.kv_layout import KVLayout, kv_layout
from penstock.protocol.to_worker import NO_BLOCK
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.device.memory import memory_of
from penstock_worker.forward.buckets import Buckets
from penstock_worker.forward.captures import captures_of
from penstock_worker.forward.queued import TritonForward
from penstock_worker.forward.triton_limits import attention_of
from tests.worker.cuda.small_models import BLOCK, DEVICE, GROUPED, small_model
from tests.worker.models.forgetful import Course, Forgetful, in_one_chunk

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

POSITIONS, BLOCKS = 64, 24
LAYER = GROUPED.layers[0]
CONFIG = msgspec.structs.replace(
    GROUPED,
    num_layers=2,
    layers=tuple(
        msgspec.structs.replace(LAYER, attention=AttentionSpec(window=window))
        for window in (5, None)
    ),
)


def on_device(layout: KVLayout | None) -> TritonForward:
    with torch.inference_mode():
        shape = CacheShape.of(CONFIG, BLOCK, torch.float32, layout)
        choices = attention_of(CONFIG, (torch.float32,), batch_invariant=False)
        attention = TritonAttention(shape, BLOCKS, DEVICE, choices)
        memory = memory_of(DEVICE)
        forward = TritonForward(small_model(CONFIG), attention, DEVICE, slots=2, memory=memory)
        buckets = Buckets(2, POSITIONS, BLOCK, mixed_rows=(16,))
        forward.use_graphs(buckets, captures_of(DEVICE), torch.float32)
    return forward


@pytest.mark.skipif(DEVICE.type != "cpu", reason="blocks are poisoned through views on the host")
def test_no_block_is_read_behind_a_window() -> None:
    """Two chunks, then decodes, by graphs."""
    layout = kv_layout(CONFIG, POSITIONS)
    assert len(layout.groups) == 2
    tokens = np.random.default_rng(1).integers(0, CONFIG.vocab_size, 16)
    course = Course(tokens, (8, 5, 1, 1, 1), BLOCK, BLOCKS)
    with torch.inference_mode():
        true = in_one_chunk(on_device(None), 1, course)
        assert bool(true.isfinite().all())
        assert torch.equal(true, Forgetful(on_device(layout), layout, course, NO_BLOCK).run())
