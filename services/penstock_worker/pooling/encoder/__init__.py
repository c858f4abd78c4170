"""Bidirectional encoders: BERT, RoBERTa, DistilBERT and MPNet.

names   their checkpoints' names for tensors, made one
model   embedding and layers
ops     what layers are written in; reference_ops, triton_ops: whose kernels
"""

from penstock_worker.pooling.encoder.model import EncoderModel

__all__ = ["EncoderModel"]
