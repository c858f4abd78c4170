"""DistilBERT. Source: Sanh et al., "DistilBERT", 2019."""

from __future__ import annotations

from penstock.families.encoder import ClassifierHead, EncoderFamily

DISTILBERT = EncoderFamily(
    "distilbert",
    ("distilbert",),
    head=ClassifierHead("pre_classifier", "classifier", "relu"),
    keys={
        "hidden_size": "dim",
        "intermediate_size": "hidden_dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "hidden_act": "activation",
    },
    tensors=(
        ("transformer.layer.", "encoder.layer."),
        (".attention.q_lin.", ".attention.self.query."),
        (".attention.k_lin.", ".attention.self.key."),
        (".attention.v_lin.", ".attention.self.value."),
        (".attention.out_lin.", ".attention.output.dense."),
        (".sa_layer_norm.", ".attention.output.LayerNorm."),
        (".ffn.lin1.", ".intermediate.dense."),
        (".ffn.lin2.", ".output.dense."),
        (".output_layer_norm.", ".output.LayerNorm."),
    ),
)
