"""Bidirectional encoders: BERT, RoBERTa, DistilBERT and MPNet."""

from penstock_worker.pooling.encoder.model import EncoderModel

__all__ = ["EncoderModel"]
