"""Bidirectional encoders: BERT, RoBERTa, DistilBERT and MPNet.

names   their checkpoints' names for tensors, made one
model   embedding and layers
"""

from penstock_worker.encoder.model import EncoderModel

__all__ = ["EncoderModel"]
