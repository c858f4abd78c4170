"""The measured kernels' tensors lie as a worker's do."""

from __future__ import annotations

import torch

from loadtest.gpu.parts import kernels_attention
from loadtest.gpu.shapes import TINY_LLAMA
from penstock_worker.attention.interface import CacheShape
from tests.interpreted_triton import DEVICE

BATCH, CONTEXT = 2, 40


def test_keys_and_values_have_the_workers_strides() -> None:
    # Under the interpreter, which tests.interpreted_triton has chosen.
    from penstock_worker.attention.triton import TritonAttention
    from penstock_worker.forward.triton_limits import attention_of

    block = kernels_attention.BLOCK
    measured = kernels_attention.Shape(TINY_LLAMA, BATCH, CONTEXT - 1, 1).caches(DEVICE)
    shape = CacheShape.of(TINY_LLAMA, block, torch.bfloat16)
    blocks = BATCH * -(-CONTEXT // block)
    choices = attention_of(TINY_LLAMA, (torch.bfloat16,), batch_invariant=False)
    own = TritonAttention(shape, blocks, DEVICE, choices).of_layer(0)[:2]
    for mine, workers in zip(measured, own, strict=True):
        assert (mine.shape, mine.stride()) == (workers.shape, workers.stride())
        assert mine.dtype == workers.dtype
