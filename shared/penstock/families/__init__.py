"""The families of models that are served. A new one needs its line here."""

from penstock.families.afmoe import AFMOE
from penstock.families.albert import ALBERT
from penstock.families.apertus import APERTUS
from penstock.families.baichuan import BAICHUAN, BAICHUAN2
from penstock.families.bailing import BAILING_MOE, BAILING_MOE_V2
from penstock.families.bailing_v3 import BAILING_MOE_V3
from penstock.families.bamba import BAMBA
from penstock.families.bert import BERT, DISTILBERT, MPNET, ROBERTA
from penstock.families.bitnet import BITNET
from penstock.families.clip import CLIP, SIGLIP
from penstock.families.cohere import COHERE, COHERE2, COHERE2_MOE
from penstock.families.dbrx import DBRX
from penstock.families.deberta import DEBERTA_V2
from penstock.families.decilm import DECILM
from penstock.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE, YOUTU
from penstock.families.deepseek_v4 import DEEPSEEK_V4
from penstock.families.deepseek_v32 import DEEPSEEK_V32, GLM_MOE_DSA
from penstock.families.dots1 import DOTS1
from penstock.families.electra import ELECTRA
from penstock.families.ernie4_5_moe import ERNIE4_5_MOE
from penstock.families.eurobert import EUROBERT
from penstock.families.exaone4 import EXAONE3, EXAONE4, EXAONE_MOE
from penstock.families.falcon_h1 import FALCON_H1
from penstock.families.family import EncoderFamily, Family
from penstock.families.gemma2 import GEMMA, GEMMA2, VAULT_GEMMA
from penstock.families.gemma3 import EMBEDDING_GEMMA, GEMMA3
from penstock.families.gemma3n import GEMMA3N
from penstock.families.gemma4 import GEMMA4
from penstock.families.gemma4_unified import GEMMA4_UNIFIED
from penstock.families.glm4 import CHATGLM, GLM, GLM4, GLM4_MOE, SOLAR_OPEN
from penstock.families.gpt_oss import GPT_OSS
from penstock.families.granite import GRANITE, GRANITE_HYBRID, GRANITE_MOE, GRANITE_MOE_SHARED
from penstock.families.granite_relatives import GRANITE_MOE_SWA, GRANITE_SWA, HYPERCLOVAX
from penstock.families.gte import GTE
from penstock.families.hunyuan_v1 import HUNYUAN_V1_DENSE, HUNYUAN_V1_MOE
from penstock.families.hy_v3 import HY_V3
from penstock.families.internlm import INTERNLM2, INTERNLM3
from penstock.families.jamba import JAMBA
from penstock.families.jina_v2 import JINA_BERT_V2
from penstock.families.jina_v3 import JINA_EMBEDDINGS_V3
from penstock.families.kimi_linear import KIMI_LINEAR
from penstock.families.laguna import LAGUNA
from penstock.families.layer_norm_relatives import JAIS2, NANOCHAT, OLMO, PHI
from penstock.families.lfm2 import LFM2, LFM2_MOE
from penstock.families.llama import HELIUM, LLAMA
from penstock.families.llama4 import LLAMA4
from penstock.families.llama_relatives import (
    ARCEE,
    CWM,
    ERNIE4_5,
    PHI3,
    SEED_OSS,
    SMOLLM3,
    STABLELM,
    STARCODER2,
)
from penstock.families.mamba import FALCON_MAMBA, MAMBA
from penstock.families.mamba2 import MAMBA2
from penstock.families.mimo_v2 import MIMO_V2_FLASH
from penstock.families.minicpm import MINICPM, MINICPM3
from penstock.families.minimax_m2 import MINIMAX_M2
from penstock.families.minimax_m3 import MINIMAX_M3
from penstock.families.mistral import MISTRAL, MIXTRAL
from penstock.families.mistral4 import MISTRAL4
from penstock.families.modernbert import MODERNBERT
from penstock.families.muse_glimmer import MUSE_GLIMMER
from penstock.families.nanbeige import NANBEIGE
from penstock.families.nemotron import NEMOTRON, NEMOTRON_H
from penstock.families.neobert import NEOBERT
from penstock.families.nomic_bert import NOMIC_BERT
from penstock.families.olmo2 import FLEX_OLMO, OLMO2, OLMO3, OLMOE
from penstock.families.olmo_hybrid import OLMO_HYBRID
from penstock.families.phimoe import PHIMOE
from penstock.families.qwen import QWEN
from penstock.families.qwen2 import MIMO, QWEN2, QWEN2_MOE
from penstock.families.qwen3 import MELLUM, QWEN3, QWEN3_MOE
from penstock.families.qwen3_next import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from penstock.families.step3p5 import STEP3P5
from penstock.families.whisper import WHISPER

FAMILIES: dict[str, Family] = {
    each.name: each
    for each in (
        LLAMA,
        LLAMA4,
        MUSE_GLIMMER,
        MISTRAL,
        MIXTRAL,
        MISTRAL4,
        QWEN,
        QWEN2,
        QWEN2_MOE,
        QWEN3,
        QWEN3_MOE,
        QWEN3_NEXT,
        QWEN3_5,
        QWEN3_5_MOE,
        GEMMA,
        GEMMA2,
        VAULT_GEMMA,
        GEMMA3,
        GEMMA3N,
        GEMMA4,
        GEMMA4_UNIFIED,
        PHI,
        PHI3,
        PHIMOE,
        SMOLLM3,
        OLMO,
        OLMO2,
        OLMO3,
        OLMOE,
        FLEX_OLMO,
        GRANITE,
        GRANITE_MOE,
        GRANITE_MOE_SHARED,
        GRANITE_HYBRID,
        GRANITE_SWA,
        GRANITE_MOE_SWA,
        HYPERCLOVAX,
        CHATGLM,
        GLM,
        GLM4,
        GLM4_MOE,
        GPT_OSS,
        DEEPSEEK_V2,
        DEEPSEEK_V3,
        GLM4_MOE_LITE,
        YOUTU,
        DEEPSEEK_V32,
        GLM_MOE_DSA,
        DEEPSEEK_V4,
        COHERE,
        COHERE2,
        COHERE2_MOE,
        NEMOTRON,
        NEMOTRON_H,
        STARCODER2,
        STABLELM,
        SEED_OSS,
        BAICHUAN,
        BAICHUAN2,
        EXAONE3,
        EXAONE4,
        EXAONE_MOE,
        ERNIE4_5,
        ERNIE4_5_MOE,
        HY_V3,
        HUNYUAN_V1_DENSE,
        HUNYUAN_V1_MOE,
        BAILING_MOE,
        BAILING_MOE_V2,
        BAILING_MOE_V3,
        INTERNLM2,
        INTERNLM3,
        MIMO,
        MIMO_V2_FLASH,
        DECILM,
        DBRX,
        DOTS1,
        SOLAR_OPEN,
        CWM,
        MINICPM,
        MINICPM3,
        ARCEE,
        AFMOE,
        APERTUS,
        MELLUM,
        JAIS2,
        NANBEIGE,
        NANOCHAT,
        HELIUM,
        BITNET,
        MINIMAX_M2,
        MINIMAX_M3,
        LFM2,
        LFM2_MOE,
        FALCON_H1,
        BAMBA,
        KIMI_LINEAR,
        OLMO_HYBRID,
        STEP3P5,
        LAGUNA,
        MAMBA,
        FALCON_MAMBA,
        MAMBA2,
        JAMBA,
        WHISPER,
    )
}
"""Decoders, by ModelConfig.architecture."""

MODEL_NAMES = ", ".join(family.known_as for family in FAMILIES.values())
"""What people call the decoders that are served."""

GGUF_ARCHITECTURES: dict[str, Family] = {
    name: family
    for family in FAMILIES.values()
    if family.gguf is not None
    for name in (family.gguf, *family.gguf_also)
}
"""Decoder families by the architecture that a GGUF file names."""

HUB_CLASSES: dict[str, Family] = {
    name: family for family in FAMILIES.values() for name in family.hub_classes
}
"""Decoder families by the class that a hub folder's config.json names."""

ENCODERS: dict[str, EncoderFamily] = {
    each.name: each
    for each in (
        BERT,
        ROBERTA,
        DISTILBERT,
        MPNET,
        ELECTRA,
        ALBERT,
        DEBERTA_V2,
        NOMIC_BERT,
        MODERNBERT,
        GTE,
        JINA_BERT_V2,
        JINA_EMBEDDINGS_V3,
        EUROBERT,
        NEOBERT,
        EMBEDDING_GEMMA,
        CLIP,
        SIGLIP,
    )
}
"""Encoder families by EncoderConfig.family."""

ENCODER_TYPES: dict[str, EncoderFamily] = {
    kind: family for family in ENCODERS.values() for kind in family.model_types
}
"""Encoder families by the model_type that a hub folder's config.json names."""

GGUF_ENCODERS: dict[str, EncoderFamily] = {
    name: family
    for family in ENCODERS.values()
    for name in (family.gguf, *family.gguf_also)
    if name
}
"""Encoder families by the architecture that a GGUF file names, but for those whose files are
BERT's."""

__all__ = [
    "ENCODERS",
    "ENCODER_TYPES",
    "FAMILIES",
    "GGUF_ARCHITECTURES",
    "GGUF_ENCODERS",
    "HUB_CLASSES",
    "MODEL_NAMES",
    "EncoderFamily",
    "Family",
]
