"""The formats of quantised safetensors checkpoints. A new one needs its line here, and a
reader of its settings in penstock.prepare.quantised."""

from penstock_worker.quantisation.checkpoints.awq import AWQ
from penstock_worker.quantisation.checkpoints.bitnet import TERNARY
from penstock_worker.quantisation.checkpoints.compressed_tensors import (
    INT4_WEIGHTS,
    INT8_WEIGHTS,
    PACKED,
)
from penstock_worker.quantisation.checkpoints.fp8 import FP8_WEIGHTS
from penstock_worker.quantisation.checkpoints.gptq import GPTQ
from penstock_worker.quantisation.checkpoints.hqq import HQQ
from penstock_worker.quantisation.checkpoints.module import CheckpointFormat
from penstock_worker.quantisation.checkpoints.mxfp4 import MXFP4
from penstock_worker.quantisation.checkpoints.nf4 import FP4, NF4
from penstock_worker.quantisation.checkpoints.nvfp4 import NVFP4

CHECKPOINT_FORMATS: dict[str, CheckpointFormat] = {
    each.storage: each
    for each in (
        AWQ,
        GPTQ,
        PACKED,
        INT4_WEIGHTS,
        INT8_WEIGHTS,
        FP8_WEIGHTS,
        MXFP4,
        NVFP4,
        NF4,
        FP4,
        HQQ,
        TERNARY,
    )
}
"""The formats, by WeightScheme.storage."""

__all__ = ["CHECKPOINT_FORMATS"]
