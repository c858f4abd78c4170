"""NeoBERT in GGUF files: pre-norm layers with SwiGLU and rotary positions, of adjacent pairs. Its
code lies on the hub, not in transformers.

Source: Le Breton et al., "NeoBERT: A next-generation BERT", 2025; names of tensors: llama.cpp's
converter, which leaves queries, keys and values as the makers have them, head by head.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families.family import ClassifierHead, EncoderFamily
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.llama_relatives import GGUF_FUSED
from penstock.families.tensor_names import TensorNames
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.layer_spec import LayerSpec, NormSpec


def _gguf(model: GGUFMetadata) -> EncoderConfig:
    sizes = model.sizes()
    if sizes["num_kv_heads"] != sizes["num_heads"]:
        raise UnsupportedModel(f"{model.keys.where}: fewer keys than queries are not served")
    return EncoderConfig(
        layers=ModelConfig(
            architecture="neobert",
            **{**sizes, "tie_word_embeddings": True},
            norm=NormSpec(eps=model.rms_eps()),
            ropes=(model.rope(sizes["head_dim"]),),
            layers=(LayerSpec(),),
        ),
    )


NEOBERT = EncoderFamily(
    "neobert",
    (),
    gguf="neo-bert",
    read_gguf=_gguf,
    head=ClassifierHead("dense", "classifier", "tanh"),
    gguf_names=TensorNames(
        modules={"enc.output_norm": "norm"},
        fused={"mlp.up_proj": GGUF_FUSED["mlp.up_proj"]},
        by_kv_head={
            "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        },
        pairs_adjacent=True,
    ),
)
