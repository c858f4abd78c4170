"""The formats of quantised safetensors checkpoints, one to a module. A new one needs its line here,
and a reader of its settings in penstock.prepare.quantised."""

from penstock_worker.quantisation.checkpoints.awq import AWQ
from penstock_worker.quantisation.checkpoints.fp8 import FP8_WEIGHTS
from penstock_worker.quantisation.checkpoints.gptq import GPTQ
from penstock_worker.quantisation.checkpoints.int8 import INT8_WEIGHTS
from penstock_worker.quantisation.checkpoints.module import CheckpointFormat
from penstock_worker.quantisation.checkpoints.mxfp4 import MXFP4
from penstock_worker.quantisation.checkpoints.nf4 import NF4
from penstock_worker.quantisation.checkpoints.packed import PACKED

CHECKPOINT_FORMATS: dict[str, CheckpointFormat] = {
    each.storage: each for each in (AWQ, GPTQ, PACKED, INT8_WEIGHTS, FP8_WEIGHTS, MXFP4, NF4)
}
"""The formats, by WeightScheme.storage."""

__all__ = ["CHECKPOINT_FORMATS"]
