"""MPNet, with its relative attention bias. Source: Song et al., "MPNet", 2020."""

from __future__ import annotations

from penstock.families.encoder import ClassifierHead, EncoderFamily

MPNET = EncoderFamily(
    "mpnet",
    ("mpnet",),
    head=ClassifierHead("classifier.dense", "classifier.out_proj", "tanh"),
    first_behind_padding=True,
    relative_buckets=32,
    tensors=(
        (".attention.attn.q.", ".attention.self.query."),
        (".attention.attn.k.", ".attention.self.key."),
        (".attention.attn.v.", ".attention.self.value."),
        (".attention.attn.o.", ".attention.output.dense."),
        (".attention.LayerNorm.", ".attention.output.LayerNorm."),
    ),
)
