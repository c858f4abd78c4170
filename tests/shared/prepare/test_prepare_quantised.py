"""What config.json says of a checkpoint's quantisation: what is understood, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.prepared_model import PreparedModel
from penstock.model.quantised_checkpoint import QuantisedCheckpoint, WeightScheme
from penstock.prepare import load_manifest, prepare
from penstock.prepare.quantised import read_quantisation
from testing.tiny_models import LLAMA_CONFIG, write_hub_folder

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


AUTO_ROUND = {
    "quant_method": "auto-round",
    "packing_format": "auto_round:auto_gptq",
    "autoround_version": "0.16.1",
    "bits": 4,
    "data_type": "int",
    "group_size": 128,
    "sym": True,
}


def hqq(**weights: Any) -> dict[str, Any]:
    stated = {"nbits": 4, "group_size": 64, "axis": 1, "view_as_float": False, "optimize": True}
    return {"weight_quant_params": stated | weights, "scale_quant_params": None}


HQQ = {"quant_method": "hqq", "quant_config": hqq(), "skip_modules": ["lm_head"]}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


def group(**weights: Any) -> dict[str, Any]:
    scheme = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
    return {"targets": ["Linear"], "weights": scheme | {"symmetric": True} | weights}


CT: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": group()},
}


def read(settings: dict[str, Any]) -> QuantisedCheckpoint:
    found = read_quantisation(Fields({"quantization_config": settings}, "config.json"))
    assert found is not None
    return found


def test_each_method_as_a_scheme() -> None:
    assert read(AWQ | {"modules_to_not_convert": ["visual"]}) == QuantisedCheckpoint(
        method="awq",
        schemes=(WeightScheme(storage="awq", bits=4, group_size=128, symmetric=False),),
        unquantised=("visual",),
    )
    stacks = read({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    assert stacks.schemes == (WeightScheme(storage="mxfp4", bits=4, group_size=32),)
    assert stacks.name == "mxfp4"
    eight = read({"quant_method": "mxfp8", "ignored_layers": ["lm_head"]})
    assert eight.schemes == (WeightScheme(storage="fp8", bits=8, block=(1, 32)),)
    gptq = WeightScheme(
        storage="gptq",
        bits=4,
        group_size=128,
        symmetric=False,
        act_order=True,
        zeros_less_one=True,
    )
    assert read(GPTQ).schemes == (gptq,)
    second = read(GPTQ | {"checkpoint_format": "gptq_v2", "bits": 8, "group_size": -1})
    assert second.schemes == (
        msgspec.structs.replace(gptq, bits=8, group_size=None, zeros_less_one=False),
    )
    assert second.name == "gptq int8"
    blocks = WeightScheme(storage="fp8", bits=8, block=(128, 128), float8_inputs=True)
    assert read(FP8 | {"modules_to_not_convert": ["lm_head"]}) == QuantisedCheckpoint(
        method="fp8", schemes=(blocks,), unquantised=("lm_head",)
    )
    assert read(NF4).schemes == (WeightScheme(storage="nf4", bits=4),)
    assert read(NF4).name == "bitsandbytes nf4"
    assert read(NF4 | {"bnb_4bit_quant_type": "fp4"}).name == "bitsandbytes fp4"
    eight = {"quant_method": "bitsandbytes", "load_in_8bit": True, "bnb_4bit_quant_type": "fp4"}
    assert read(eight).schemes == (WeightScheme(storage="int8", bits=8),)


def test_modules_of_hqq() -> None:
    one = WeightScheme(storage="hqq", bits=4, group_size=64, symmetric=False)
    assert read(HQQ) == QuantisedCheckpoint(method="hqq", schemes=(one,), unquantised=("lm_head",))
    own = {"self_attn.q_proj": hqq(), "mlp.down_proj": hqq(nbits=8, group_size=None)}
    found = read(HQQ | {"quant_config": own}).schemes
    assert found == (one, msgspec.structs.replace(one, bits=8, group_size=None))


def test_groups_of_compressed_tensors() -> None:
    """Two groups with other bits, of which more come first; equal ones are one scheme."""
    wide = group(num_bits=8, strategy="channel", group_size=None)
    groups = {"group_0": group(), "group_1": wide, "group_2": group(actorder="weight")}
    found = read(CT | {"config_groups": groups, "ignore": ["lm_head", "re:.*gate$"]})
    assert found.schemes == (
        WeightScheme(storage="packed", bits=8),
        WeightScheme(storage="packed", bits=4, group_size=128),
    )
    assert found.unquantised == ("lm_head", "re:.*gate$")
    assert found.name == "compressed-tensors int8/int4"
    older = read_quantisation(Fields({"compression_config": CT}, "config.json"))
    assert older is not None
    assert older.method == "compressed-tensors"


@pytest.mark.parametrize("found", ["none", {}, [], 8, True, {"note": "none"}])
def test_other_programs_words_beside_mlx(found: Any) -> None:
    """They say nothing of the weights; what MLX writes has bits."""
    assert read_quantisation(Fields({"quantization": found}, "config.json")) is None
    both = Fields({"quantization": found, "quantization_config": NF4}, "config.json")
    assert read_quantisation(both) == read(NF4)
    mlx = Fields({"quantization": {"bits": 4, "group_size": 64}}, "config.json")
    with pytest.raises(UnsupportedModel, match="quantised by MLX are not served"):
        read_quantisation(mlx)


def test_rules_of_gptqmodel_that_skip_modules() -> None:
    found = read(GPTQ | {"dynamic": {r"-:.*lm_head.*": {}}})
    assert found.unquantised == ("re:.*lm_head.*",)


def test_rules_of_gptqmodel_with_other_bits() -> None:
    rules = {"+:.*down.*": {"bits": 8, "group_size": 64}, "-:.*head.*": {}}
    found = read(GPTQ | {"dynamic": rules})
    assert [(each.bits, each.group_size) for each in found.schemes] == [(4, 128), (8, 64)]
    assert found.unquantised == ("re:.*head.*",)


@pytest.mark.parametrize(
    ("packing", "storage", "less_one"),
    [
        ("auto_round:auto_gptq", "gptq", True),
        ("auto_round:gptq:exllamav2", "gptq", True),
        ("auto_round:gptqmodel", "gptq", False),
        ("auto_round", "gptq", False),
        ("autoround:exllamav2", "gptq", False),
        ("auto_round:auto_awq", "awq", False),
        ("auto_round:awq", "awq", False),
    ],
)
def test_layouts_of_auto_round(packing: str, storage: str, less_one: bool) -> None:
    """Formats mean what the library's loader takes them for: "auto_gptq" stores zero points minus
    one, and the others don't."""
    (scheme,) = read(AUTO_ROUND | {"packing_format": packing}).schemes
    assert (scheme.storage, scheme.zeros_less_one) == (storage, less_one)


def test_files_of_auto_round_without_a_layout() -> None:
    """The oldest name a backend instead, or nothing."""
    older = {key: each for key, each in AUTO_ROUND.items() if key != "packing_format"}
    assert read(older).schemes[0].zeros_less_one
    assert read(older | {"backend": "auto"}).schemes[0].zeros_less_one
    assert not read(older | {"backend": "auto_round:exllamav2"}).schemes[0].zeros_less_one


def test_modules_of_auto_round_with_settings_of_their_own() -> None:
    modules = {
        "lm_head": {"bits": 8, "group_size": None, "act_bits": 16},
        "model.layers.0.mlp.up_proj": {"group_size": 32},
        "model.layers.0.mlp.gate": {"bits": 16, "data_type": "fp"},
    }
    found = read(AUTO_ROUND | {"extra_config": modules})
    assert [(each.bits, each.group_size) for each in found.schemes] == [(4, 128), (8, 128), (4, 32)]
    assert found.unquantised == ("model.layers.0.mlp.gate",)


def test_floats_of_auto_round() -> None:
    packed = AUTO_ROUND | {"packing_format": "auto_round:llm_compressor", "act_bits": 8}
    own = {"lm_head": {"data_type": "nv_fp4_with_static_gs"}, "head": {"bits": 8}}
    found = read(packed | {"data_type": "mx_fp", "extra_config": own})
    assert [each.levels for each in found.schemes] == ["mxfp4", "nvfp4", "fp8"]
    assert found.schemes[2].block == (1, 32)
    static = {"packing_format": "auto_round:fp8_static", "data_type": "fp", "bits": 8}
    static |= {"activation_scheme": "static", "fmt": "e4m3", "group_size": -1}
    assert read(AUTO_ROUND | static | {"act_bits": 8}).schemes[0].float8_inputs
    plain = {"quant_method": "auto-round", "data_type": "fp", "bits": 8, "group_size": 0}
    assert read(plain).schemes == (WeightScheme(storage="fp8", bits=8),)
    blocks = plain | {"packing_format": "auto_round:fp8", "weight_block_size": [128, 128]}
    assert read(blocks).schemes[0].block == (128, 128)


@pytest.mark.parametrize(
    ("algorithm", "scheme"),
    [
        ("W4A8_AWQ", WeightScheme(storage="int4", bits=4, group_size=64)),
        ("W4A16_AWQ", WeightScheme(storage="int4", bits=4, group_size=64)),
        ("W8A8_SQ_PER_CHANNEL", WeightScheme(storage="int8", bits=8)),
        ("fp8_pb_wo", WeightScheme(storage="fp8", bits=8, block=(128, 128))),
        ("mxfp4", WeightScheme(storage="mxfp4", bits=4, group_size=32)),
    ],
)
def test_algorithms_of_model_optimizer(algorithm: str, scheme: WeightScheme) -> None:
    """The size of groups may stand in the other file only."""
    config = Fields({"quantization_config": MODELOPT | {"quant_algo": algorithm}}, "config.json")
    size = scheme.group_size if scheme.storage == "int4" else None
    beside = Fields({"quantization": {"quant_algo": algorithm, "group_size": size}}, "beside")
    found = read_quantisation(config, beside)
    assert found is not None
    assert found.schemes == (scheme,)


def test_mixed_algorithms_in_small_letters() -> None:
    layers = {"a": {"quant_algo": "fp8"}, "b": {"quant_algo": "nvfp4"}}
    found = read(MODELOPT | {"quant_algo": "mixed_precision", "quantized_layers": layers})
    assert [each.levels for each in found.schemes] == ["fp8", "nvfp4"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no method": ({"bits": 4}, "quantised by unnamed are not served; awq, gptq"),
    "another method": ({"quant_method": "quip"}, "quantised by quip are not served"),
    "an unknown setting": (GPTQ | {"rotation": "hadamard"}, "the setting 'rotation' is unknown"),
    "AWQ for other kernels": (AWQ | {"version": "gemv"}, "version is 'gemv'; 'gemm' is served"),
    "AWQ of 3 bits": (AWQ | {"bits": 3}, "bits is 3; 4 is served"),
    "GPTQ of 1 bit": (GPTQ | {"bits": 1}, "bits is 1; 2 or 3 or 4 or 5 or 6 or 7 or 8 is served"),
    "GPTQ of floats": (GPTQ | {"data_type": "nv_fp"}, "data_type is 'nv_fp'; 'int' is served"),
    "AWQ of floats": (AWQ | {"data_type": "mx_fp"}, "data_type is 'mx_fp'; 'int' is served"),
    "FP8 of 4 bits": (FP8 | {"bits": 4}, "bits is 4; 8 is served"),
    "GPTQ without bits": ({"quant_method": "gptq"}, "bits is missing"),
    "GPTQ for Marlin": (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
    "no group": (GPTQ | {"group_size": 0}, "group_size is 0; -1, or a positive"),
    "endless groups": (GPTQ | {"group_size": 10**12}, "group_size is 1000000000000"),
    "modules with an unknown setting": (
        GPTQ | {"dynamic": {"+:.*down.*": {"adapter": "lora"}}}, "'adapter' is unknown"),
    "text for bits": (GPTQ | {"bits": "4"}, "bits is '4'; a whole number is needed"),
    "AutoRound in another layout": (
        AUTO_ROUND | {"packing_format": "auto_round:mlx"},
        "packing_format is 'auto_round:mlx'; auto_round:auto_gptq, .* are served"),
    "AutoRound of other floats": (
        AUTO_ROUND
        | {"data_type": "nvfp4_v2", "packing_format": "auto_round:llm_compressor"},
        "data_type is 'nvfp4_v2' of 4 bits; mx_fp of 4 bits, .* are served"),
    "AutoRound of floats as GPTQ": (AUTO_ROUND | {"data_type": "fp"}, "data_type is 'fp'; 'int'"),
    "AutoRound, rotated": (
        AUTO_ROUND | {"rotation_config": {"name": "hadamard"}}, "'rotation_config' is unknown"),
    "a module's bits of AutoRound": (
        AUTO_ROUND | {"extra_config": {"lm_head": {"bits": 9}}}, "bits is 9; 2 or"),
    "FP8 with other exponents": (FP8 | {"fmt": "e5m2"}, "fmt is 'e5m2'"),
    "MXFP8 in other blocks": (
        {"quant_method": "mxfp8", "weight_block_size": [1, 16]}, r"weight_block_size .*\[1, 32\]"),
    "blocks of nothing": (FP8 | {"weight_block_size": [0, 128]}, "two positive numbers"),
    "an unknown code of 4 bits": (
        NF4 | {"bnb_4bit_quant_type": "af4"}, "bnb_4bit_quant_type is 'af4'; 'nf4' or 'fp4' is"),
    "neither 4 nor 8 bits": (
        NF4 | {"load_in_4bit": False}, "load_in_4bit and load_in_8bit are both False"),
    "HQQ of 3 bits": (HQQ | {"quant_config": hqq(nbits=3)}, "nbits is 3; 1 or 2 or 4 or 8 is"),
    "HQQ by outputs": (HQQ | {"quant_config": hqq(axis=0)}, "axis is 0; 1 is served"),
    "HQQ of nothing": (HQQ | {"quant_config": {}}, "1 to 65536 modules"),
    "quantised scales": (
        HQQ | {"quant_config": hqq() | {"scale_quant_params": {"nbits": 8}}},
        "scale_quant_params is {'nbits': 8}; None is served"),
    "BitNet's masters": (
        {"quant_method": "bitnet", "quantization_mode": "online"},
        "quantization_mode is 'online'; 'offline' is served"),
    "BitNet with norms": (
        {"quant_method": "bitnet", "use_rms_norm": True}, "use_rms_norm is True; False is served"),
    "another class of BitNet's": (
        {"quant_method": "bitnet", "linear_class": "linear"},
        "linear_class is 'linear'; 'autobitlinear' or 'bitlinear' is served"),
    "rotated": (CT | {"transform_config": {"config_groups": {}}}, "transform_config is not served"),
    "sparse": (
        CT | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "format is 'sparse-24-bitmask'"),
    "a part of low rank": (
        MODELOPT | {"quant_algo": "NVFP4_SVD"}, "quant_algo is 'NVFP4_SVD'; FP8,.*W4A8_AWQ"),
    "zero points by Model Optimizer": (
        MODELOPT | {"quant_algo": "W4A16_AWQ", "has_zero_point": True}, "with zero points"),
    "another group of NVFP4": (MODELOPT | {"group_size": 64}, "16 or 32, as of NVFP4"),
    "another layout": (CT | {"format": "marlin-24"}, "format is 'marlin-24'"),
    "another number of bits": (
        CT | {"config_groups": {"group_0": group(num_bits=9)}}, r"num_bits is \('int', 9\)"),
    "weights that aren't stored": (
        CT | {"config_groups": {"group_0": group(dynamic=True)}}, "dynamic is True"),
    "an unknown setting of weights": (
        CT | {"config_groups": {"group_0": group(codebook=[1, 2])}}, "'codebook' is unknown"),
    "no groups": (CT | {"config_groups": {}}, "1 to 256 groups"),
    "a group without weights": (
        CT | {"config_groups": {"group_0": {"targets": ["Linear"]}}}, "weights is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_unserved_settings_of_quantised_checkpoints_are_named(case: str) -> None:
    settings, reason = REFUSED[case]
    with pytest.raises(UnsupportedModel, match=reason) as raised:
        read(settings)
    assert "config.json" in str(raised.value)


def manifest(folder: Path, **config: Any) -> PreparedModel:
    said = {key: value for key, value in (LLAMA_CONFIG | config).items() if value is not None}
    write_hub_folder(folder, config=said)
    return load_manifest(prepare(str(folder), cache_dir=str(folder / "cache")))


def test_the_manifest_keeps_it(tmp_path: Path) -> None:
    """And the digest, which stands for all that outputs depend on."""
    plain = manifest(tmp_path / "plain")
    first = manifest(tmp_path / "first", quantization_config=GPTQ)
    second = manifest(
        tmp_path / "second", quantization_config=GPTQ | {"checkpoint_format": "gptq_v2"}
    )
    assert plain.weights.quantised is None
    assert first.weights.quantised == read(GPTQ)
    assert first.weights.dtype == "gptq int4"
    assert len({each.digest for each in (plain, first, second)}) == 3


def test_encoders_are_refused(tmp_path: Path) -> None:
    bert: dict[str, Any] = {
        "model_type": "bert",
        "hidden_act": "gelu",
        "architectures": ["BertModel"],
    }
    bert |= {"rms_norm_eps": None, "num_key_value_heads": None, "rope_theta": None}
    with pytest.raises(UnsupportedModel, match="encoders quantised by awq are not served"):
        manifest(tmp_path / "model", quantization_config=AWQ, **bert)
