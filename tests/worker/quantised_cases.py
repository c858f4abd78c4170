"""Quantised checkpoints of each method and layout, as tests write them."""

from __future__ import annotations

import torch

from tests.worker.quantised_checkpoints import (
    AUTO_ROUND,
    AWQ_SETTINGS,
    BRAIN,
    FLOAT8,
    FP8_SETTINGS,
    GPTQ_SETTINGS,
    HALF,
    MODELOPT,
    NF4_SETTINGS,
    ODD,
    V2,
    WIDER,
    Case,
    both,
    bytes_of_two_schemes,
    compressed,
    hqq_settings,
    three_schemes,
    two_schemes,
)
from tests.worker.quantised_writers import (
    auto_round,
    awq,
    fp8,
    gptq,
    hqq,
    int4_in_bytes,
    int4_of_modelopt,
    int8,
    llm_int8,
    mixed,
    mxfp4,
    mxfp4_of_modelopt,
    nf4,
    nvfp4,
    packed,
    ternary,
)

CASES = {
    "AWQ": Case(AWQ_SETTINGS, awq(32)),
    "AWQ, one group": Case(AWQ_SETTINGS | {"group_size": -1}, awq(None)),
    "GPTQ, first format": Case(GPTQ_SETTINGS, gptq(4, 32, first=True)),
    "GPTQ, second format": Case(GPTQ_SETTINGS | V2, gptq(4, 32, first=False)),
    "GPTQ, 8 bits": Case(
        GPTQ_SETTINGS | {"bits": 8, "group_size": -1}, gptq(8, None, first=True)
    ),
    "GPTQ, act-order": Case(
        GPTQ_SETTINGS | {"desc_act": True}, gptq(4, 32, first=True, spread=True)
    ),
    "GPTQ, groups of 16": Case(GPTQ_SETTINGS | {"group_size": 16}, gptq(4, 16, first=True)),
    "GPTQ, 2 bits": Case(GPTQ_SETTINGS | {"bits": 2}, gptq(2, 32, first=True)),
    "GPTQ, 3 bits": Case(GPTQ_SETTINGS | {"bits": 3}, gptq(3, 32, first=True)),
    "AutoRound": Case(
        AUTO_ROUND | {"packing_format": "auto_round:auto_gptq"}, auto_round(4, 32), plain=BRAIN
    ),
    "AutoRound as AWQ": Case(AUTO_ROUND | {"packing_format": "auto_round:auto_awq"}, awq(32)),
    "AutoRound, mixed bits": Case(
        AUTO_ROUND | {"packing_format": "auto_round:auto_gptq", "extra_config": WIDER},
        three_schemes,
    ),
    "W4A16": Case(
        compressed("pack-quantized", num_bits=4, strategy="group", group_size=32),
        packed(4, 32, HALF, symmetric=True),
    ),
    "W4A16, asymmetric": Case(
        compressed(
            "pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False
        ),
        packed(4, 32, BRAIN, symmetric=False),
        plain=BRAIN,
    ),
    "W2A16": Case(
        compressed("pack-quantized", num_bits=2, strategy="group", group_size=32),
        packed(2, 32, BRAIN, symmetric=True),
        plain=BRAIN,
    ),
    "W3A16, asymmetric": Case(
        compressed(
            "pack-quantized", num_bits=3, strategy="group", group_size=32, symmetric=False
        ),
        packed(3, 32, BRAIN, symmetric=False),
        plain=BRAIN,
        sizes=ODD,
    ),
    "W4A8": Case(
        compressed("int-quantized", num_bits=4, strategy="group", group_size=32),
        int4_in_bytes(32),
        plain=BRAIN,
    ),
    "W4A16, act-order": Case(
        compressed(
            "pack-quantized", num_bits=4, strategy="group", group_size=32, actorder="group"
        ),
        packed(4, 32, HALF, symmetric=True, spread=True),
    ),
    "W8A16": Case(compressed("pack-quantized"), packed(8, None, BRAIN, symmetric=True)),
    "W8A16, wide scales": Case(
        compressed("pack-quantized"), packed(8, None, torch.float32, symmetric=True)
    ),
    "W4A16 and W8A16": Case(
        both(
            compressed("pack-quantized", num_bits=4, strategy="group", group_size=32),
            compressed("pack-quantized"),
        ),
        two_schemes,
    ),
    "W4A8 and W8A8": Case(
        both(compressed("int-quantized", num_bits=4), compressed("int-quantized")),
        bytes_of_two_schemes,
        plain=BRAIN,
    ),
    "INT8": Case(compressed("int-quantized"), int8(BRAIN), plain=BRAIN, sizes=ODD),
    "INT8, asymmetric": Case(
        compressed("int-quantized", symmetric=False), int8(HALF, symmetric=False)
    ),
    "INT8, per tensor": Case(
        compressed("int-quantized", strategy="tensor"), int8(torch.float32, per_matrix=True)
    ),
    "FP8, per tensor": Case(
        compressed("float-quantized", strategy="tensor", **FLOAT8),
        fp8(None, BRAIN, name="weight_scale"),
        plain=BRAIN,
    ),
    "FP8, per channel": Case(
        compressed("float-quantized", **FLOAT8),
        fp8((1, 1 << 20), name="weight_scale"),
        plain=BRAIN,
        sizes=ODD,
    ),
    "FP8, blocks": Case(
        FP8_SETTINGS | {"weight_block_size": [40, 32]},
        fp8((40, 32), name="weight_scale_inv"),
        plain=BRAIN,
        sizes=ODD,
    ),
    "FP8, blocks of 128": Case(
        FP8_SETTINGS | {"weight_block_size": [128, 128]},
        fp8((128, 128), name="weight_scale_inv"),
        plain=BRAIN,
        sizes={"hidden_size": 160, "intermediate_size": 288},
    ),
    "FP8, blocks of powers": Case(
        FP8_SETTINGS | {"weight_block_size": [32, 32], "scale_fmt": "ue8m0"},
        fp8((32, 32), name="weight_scale_inv", power=True),
        plain=BRAIN,
    ),
    "FP8 of fbgemm": Case(
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        fp8((1, 1 << 20), name="weight_scale"),
        plain=BRAIN,
    ),
    "MXFP4": Case(
        compressed(
            "mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32
        ),
        mxfp4,
        plain=BRAIN,
    ),
    "MXFP8, as MiniMax M3": Case(
        {"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"},
        fp8((1, 32), name="weight_scale_inv", power=True, exponents=True),
        plain=BRAIN,
    ),
    "MXFP8": Case(
        compressed("mxfp8-quantized", strategy="group", group_size=32, **FLOAT8),
        fp8((1, 32), name="weight_scale", power=True, exponents=True),
        plain=BRAIN,
    ),
    "NVFP4": Case(
        compressed(
            "nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16
        ),
        nvfp4(modelopt=False),
        plain=BRAIN,
    ),
    "NVFP4 of Model Optimizer": Case(
        MODELOPT | {"quant_algo": "NVFP4", "group_size": 16}, nvfp4(modelopt=True), plain=BRAIN
    ),
    "FP8 in blocks, of Model Optimizer": Case(
        MODELOPT | {"quant_algo": "FP8_PB_WO"},
        fp8((128, 128), name="weight_scale", apart=True),
        plain=BRAIN,
        sizes={"hidden_size": 160, "intermediate_size": 288},
    ),
    "FP8 by channel, of Model Optimizer": Case(
        MODELOPT | {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
        fp8((1, 1 << 20), name="weight_scale"),
        plain=BRAIN,
    ),
    "mixed by Model Optimizer": Case(
        MODELOPT
        | {
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
                "model.layers.1.self_attn.q_proj": {"quant_algo": "FP8"},
                "model.layers.0.mlp.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
            },
        },
        mixed,
        plain=BRAIN,
    ),
    "FP8 of Model Optimizer": Case(
        MODELOPT | {"quant_algo": "FP8"}, fp8(None, name="weight_scale"), plain=BRAIN
    ),
    "NVFP4 in groups of 32, of Model Optimizer": Case(
        MODELOPT | {"quant_algo": "W4A8_NVFP4_FP8", "group_size": 32},
        nvfp4(modelopt=True, group=32),
        plain=BRAIN,
    ),
    "MXFP4 of Model Optimizer": Case(
        MODELOPT | {"quant_algo": "W4A8_MXFP4_FP8", "group_size": 32},
        mxfp4_of_modelopt,
        plain=BRAIN,
    ),
    "MXFP8 of Model Optimizer": Case(
        MODELOPT | {"quant_algo": "MXFP8"},
        fp8((1, 32), name="weight_scale", power=True, exponents=True),
        plain=BRAIN,
    ),
    "INT4 of Model Optimizer": Case(
        MODELOPT | {"quant_algo": "W4A16_AWQ", "group_size": 32},
        int4_of_modelopt(scaled=False),
        plain=BRAIN,
    ),
    "AWQ of Model Optimizer, scaled inputs": Case(
        MODELOPT | {"quant_algo": "W4A8_AWQ", "group_size": 32, "pre_quant_scale": True},
        int4_of_modelopt(scaled=True),
        plain=BRAIN,
    ),
    "INT8 of Model Optimizer": Case(
        MODELOPT | {"quant_algo": "W8A8_SQ_PER_CHANNEL"}, int8(torch.float32), plain=BRAIN
    ),
    "NF4": Case(NF4_SETTINGS, nf4(double=False), plain=BRAIN),
    "NF4 as bfloat16": Case(
        NF4_SETTINGS | {"bnb_4bit_quant_storage": "bfloat16"},
        nf4(double=False, stored_as=BRAIN),
        plain=BRAIN,
    ),
    "FP4, stored as NF4": Case(
        NF4_SETTINGS | {"bnb_4bit_quant_type": "fp4"}, nf4(double=False, kind="fp4"), plain=BRAIN
    ),
    "LLM.int8": Case(
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}, llm_int8
    ),
    "HQQ, 4 bits": Case(hqq_settings(4), hqq(4, 32)),
    "HQQ, 8 bits": Case(hqq_settings(8), hqq(8, 32), plain=BRAIN),
    "HQQ, 2 bits": Case(hqq_settings(2), hqq(2, 32)),
    "BitNet": Case(
        {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"},
        ternary(divides=False),
        plain=BRAIN,
        sizes=ODD,
    ),
    "BitNet, as BitLinear": Case({"quant_method": "bitnet"}, ternary(divides=True), plain=BRAIN),
    "NF4, scales quantised too": Case(
        NF4_SETTINGS | {"bnb_4bit_use_double_quant": True}, nf4(double=True), plain=BRAIN
    ),
}  # fmt: skip
