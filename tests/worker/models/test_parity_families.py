"""Tiny random checkpoints of each family, saved by transformers, against transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from penstock.formats.fields import Fields
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.hub_config import read_config
from penstock.prepare.quantised import read_quantisation
from tests import thinning
from tests.thinning import part
from tests.worker.checkpoints import hub_model, load_model
from tests.worker.cpu_model import CPUModel
from tests.worker.models import step_files, text_halves
from tests.worker.models.case_sizes import GROUPED, LONGROPE, SIZES, WHOLE
from tests.worker.models.family_cases import CASES, config_class
from tests.worker.models.parity import compare

pytestmark = pytest.mark.slow


def make_theirs(family: str, settings: dict[str, Any]) -> Any:
    """Random weights; biases and norms too, which transformers starts at 0 and 1."""
    import transformers

    torch.manual_seed(5)
    config = config_class(family)(**(SIZES | settings))
    config._attn_implementation = "eager"  # the only one that has soft caps
    kind = getattr(transformers, f"{family}ForCausalLM", None) or text_halves.model_class(family)
    model = kind(config).eval()
    if family == "Mamba2":
        norm_by_groups(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif any("norm" in part for part in name.split(".")[-2:]) or name.endswith("scale"):
                parameter.normal_(1, 0.3)
            elif ".act_fn." in name:  # Apertus' coefficients
                parameter.normal_()
            elif not parameter.any():  # else a router's scores are all equal
                parameter.normal_(0, SIZES["initializer_range"])
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.normal_(0, 0.1)
            elif name.endswith("act_fn.beta"):
                buffer.uniform_(0.3, 0.7)
            elif name.endswith("layer_scalar"):
                buffer.uniform_(0.8, 1.2)
            elif name.endswith("tid2eid"):
                buffer.copy_(
                    torch.rand(len(buffer), config.n_routed_experts).argsort(-1)[
                        :, : buffer.shape[1]
                    ]
                )
    return model


def norm_by_groups(model: Any) -> None:
    """On a CPU, transformers norms what all groups of Mamba 2 give together; on CUDA, its kernels
    do as the authors' code does, and as its own Zamba 2."""
    from transformers.models.zamba2.modeling_zamba2 import Zamba2RMSNormGated

    for layer in model.backbone.layers:
        mixer = layer.mixer
        size = mixer.intermediate_size // mixer.n_groups
        mixer.norm = Zamba2RMSNormGated(mixer.intermediate_size, size, mixer.layer_norm_epsilon)


def random_prompts() -> list[list[int]]:
    choose = random.Random(8)
    lengths = [1, 2, 15, 16, 17, 63, 64, 65, 130, 180]
    return [[choose.randrange(SIZES["vocab_size"]) for _ in range(n)] for n in lengths]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CASES)
def test_the_reference_equals_transformers(case: str, tmp_path: Path) -> None:
    theirs = make_theirs(*CASES[case])
    theirs.save_pretrained(tmp_path, max_shard_size="100KB" if "llama" in case else "5GB")
    shards = list(tmp_path.glob("model-*.safetensors"))
    assert (len(shards) > 1) == ("llama" in case)
    prompts = random_prompts()[:: 1 if thinning.every else 3]
    model = hub_model(tmp_path, torch.float32, SIZES["max_position_embeddings"])
    wanted = part(64, 1 / 4)
    compared = compare(model, theirs, prompts, wanted)
    assert compared >= len(prompts) * wanted // 4


@pytest.mark.timeout(240)
def test_longrope_beyond_the_original_context(tmp_path: Path) -> None:
    """A model that is served with a long context has the long factors for all requests;
    transformers has them for what is itself longer."""
    original = {"original_max_position_embeddings": 64}
    settings = WHOLE | {"pad_token_id": 0} | original | {"rope_parameters": LONGROPE | original}
    theirs = make_theirs("Phi3", settings)
    theirs.save_pretrained(tmp_path)
    model = hub_model(tmp_path, torch.float32, SIZES["max_position_embeddings"])
    prompts = [prompt for prompt in random_prompts() if len(prompt) > 64]
    assert compare(model, theirs, prompts, 32) >= len(prompts) * 8


@pytest.mark.timeout(240)
def test_dynamic_scaling_up_to_the_longest_sequence(tmp_path: Path) -> None:
    """vLLM issue 3488: with a base that was fixed for longer ones, all sequences differed."""
    longest = 180 + 16
    rope = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}
    settings = GROUPED | {"max_position_embeddings": longest, "rope_parameters": rope}
    theirs = make_theirs("Llama", settings)
    theirs.save_pretrained(tmp_path)
    model = hub_model(tmp_path, torch.float32, longest)
    assert model.config.max_position == longest
    assert compare(model, theirs, random_prompts(), 16) > 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("family", ["Gemma3", "Mistral3"])
def test_the_text_half_of_a_model_that_sees(family: str, tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(3)
    text = GROUPED | {"sliding_window": 21} if family == "Gemma3" else GROUPED
    kind = {"Gemma3": "Gemma3Text", "Mistral3": "Mistral"}[family]
    text_config = getattr(transformers, f"{kind}Config")(**(SIZES | text))
    sees = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    vision = {
        "Gemma3": transformers.SiglipVisionConfig,
        "Mistral3": transformers.PixtralVisionConfig,
    }
    config = getattr(transformers, f"{family}Config")(
        text_config=text_config,
        vision_config=vision[family](**sees),
        image_token_id=5,
        **({"image_token_index": 5} if family == "Mistral3" else {}),
    )
    config._attn_implementation = "eager"
    theirs = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    theirs.save_pretrained(tmp_path)
    model = hub_model(
        tmp_path, torch.float32, SIZES["max_position_embeddings"], language_model_only=True
    )
    assert model.config.vision is None
    prompts = [[token for token in prompt if token != 5] or [6] for prompt in random_prompts()]
    assert compare(model, theirs, prompts, 16) > 0


@pytest.mark.timeout(240)
def test_the_text_half_of_gemma_4(tmp_path: Path) -> None:
    import transformers

    text = config_class("Gemma4")(**(SIZES | CASES["gemma4-shared-kv"][1]))
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "patch_size": 4,
        "position_embedding_size": 16,
    }
    names = ("image", "video", "audio", "boi", "eoi", "boa")
    special = {f"{name}_token_id": 190 + number for number, name in enumerate(names)}
    config = transformers.Gemma4Config(
        text_config=text, vision_config=vision, eoa_token_index=189, **special
    )
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    theirs = transformers.Gemma4ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    model = hub_model(tmp_path, torch.float32, SIZES["max_position_embeddings"])
    prompts = [[token % 189 for token in prompt] for prompt in random_prompts()[::2]]
    assert compare(model, theirs, prompts, 8) > 0


@pytest.mark.timeout(240)
def test_the_text_half_of_step_37(tmp_path: Path) -> None:
    """transformers writes StepFun's own names. What sees is read apart from it."""
    import transformers

    tower = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tower |= {"image_size": 28, "patch_size": 14, "mlp_ratio": 2.0}
    text = config_class("Step3p7")(**(SIZES | step_files.SETTINGS))
    config = transformers.Step3p7Config(
        text_config=text.to_dict(), vision_config=tower, image_token_id=5
    )
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    theirs = transformers.Step3p7ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    model = hub_model(tmp_path, torch.float32, SIZES["max_position_embeddings"])
    assert model.config.vision is not None
    prompts = [[token for token in prompt if token != 5] or [6] for prompt in random_prompts()[::3]]
    assert compare(model, theirs, prompts, 8) > 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["autobitlinear", "bitlinear"])
def test_ternary_weights_of_bitnet(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers packs and reads the weights, without its rounding of activations."""
    import transformers
    from transformers.integrations import bitnet

    monkeypatch.setattr(bitnet.ActQuant, "apply", lambda x: x)
    monkeypatch.setattr(bitnet.BitLinear, "activation_quant", lambda self, x: (x, 1.0))
    source = make_theirs("BitNet", CASES["bitnet"][1])
    tensors: dict[str, torch.Tensor] = {}
    for name, values in source.state_dict().items():
        if "_proj.weight" not in name:
            tensors[name] = values
            continue
        mean = values.abs().mean()
        tensors[name] = bitnet.pack_weights((values / mean).round().clamp(-1, 1))
        scale = mean if kind == "autobitlinear" else 1 / mean
        tensors[name.replace(".weight", ".weight_scale")] = scale.reshape(1)
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    said = {"quant_method": "bitnet", "linear_class": kind, "quantization_mode": "offline"}
    config = source.config.to_dict() | {
        "architectures": ["BitNetForCausalLM"],
        "quantization_config": said,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with torch.compiler.set_stance("force_eager"):  # what unpacks is compiled
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path, dtype=torch.float32, attn_implementation="eager"
        )
    fields = Fields(config, "config.json")
    files = WeightFiles(
        format="safetensors",
        files=(str(tmp_path / "model.safetensors"),),
        dtype="float32",
        quantised=read_quantisation(fields),
    )
    prompts, read = random_prompts()[::3], read_config(fields)
    model = load_model(read, files, torch.float32, SIZES["max_position_embeddings"])
    on_cpu = CPUModel(read, files, "float32", positions=SIZES["max_position_embeddings"])
    with torch.compiler.set_stance("force_eager"):
        for ours in (model, on_cpu):
            assert compare(ours, theirs, prompts, 16) >= len(prompts)
