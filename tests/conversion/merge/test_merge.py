"""`penstock merge` beside PEFT's own merging."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from penstock.cli.main import main
from penstock.prepare import load_manifest, prepare
from testing.tiny_models import write_gguf
from tests.conversion.hub_folders import make_model, write_folder

pytestmark = pytest.mark.slow

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def with_adapter(case: str, tmp_path: Path, **settings: Any) -> tuple[Path, Path, Any]:
    """The base's folder, the adapter's, and PEFT's model of both."""
    from peft import LoraConfig, get_peft_model

    theirs = make_model(case)
    base = write_folder(tmp_path / "base", theirs)
    usual: dict[str, Any] = {"r": 6, "lora_alpha": 20, "target_modules": ALL}
    adapted = get_peft_model(theirs, LoraConfig(task_type="CAUSAL_LM", **usual | settings))
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif "modules_to_save" in name:
                parameter.mul_(0.5)
    adapted.save_pretrained(tmp_path / "adapter")
    return base, tmp_path / "adapter", adapted.eval()


def merge(base: Path, adapter: Path, output: Path, *more: str) -> int:
    cache = str(output.parent / "cache")
    words = [str(base), str(adapter), "--output", str(output), "--cache-dir", cache]
    return main(["merge", *words, *more])


def merged_tensors(folder: Path) -> dict[str, Tensor]:
    return {
        name: each
        for path in folder.glob("*.safetensors")
        for name, each in load_file(path).items()
    }


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("llama-plain", {}),
        ("llama-plain", {"use_rslora": True}),
        ("llama-plain", {"use_dora": True}),
        ("llama-plain", {"rank_pattern": {"q_proj": 3}, "alpha_pattern": {"up_proj": 7}}),
        ("qwen2-plain", {"use_dora": True, "use_rslora": True}),
        ("qwen3-plain", {"target_modules": ["q_proj", "lm_head"]}),
        ("llama-plain", {"target_modules": [*ALL, "embed_tokens"]}),
        ("llama-plain", {"modules_to_save": ["lm_head"], "target_modules": ["v_proj"]}),
        ("gemma3-of-six", {}),
        ("phi3-window", {"target_modules": ["qkv_proj", "gate_up_proj", "down_proj"]}),
    ],
)
def test_matrices_and_logits_are_those_of_peft(
    case: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    base, adapter, adapted = with_adapter(case, tmp_path, **settings)
    tokens = torch.arange(3, 60)[None]
    with torch.inference_mode():
        before = adapted(tokens).logits
    assert merge(base, adapter, tmp_path / "merged") == 0
    whole = adapted.merge_and_unload()
    expected, found = whole.state_dict(), merged_tensors(tmp_path / "merged")
    assert found.keys() <= expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6, msg=name)
    changed = [
        name
        for name, each in load_file(base / "model.safetensors").items()
        if not torch.equal(each, found[name])
    ]
    assert changed
    assert not any("norm" in name for name in changed)
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(
        tmp_path / "merged", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.inference_mode():
        after = loaded(tokens).logits
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_a_tied_matrix_becomes_two_of_which_one_has_the_adapter(
    target: str, tmp_path: Path
) -> None:
    theirs = make_model("qwen2-1-1-tied")
    base = write_folder(tmp_path / "base", theirs)
    original = load_file(base / "model.safetensors")["model.embed_tokens.weight"]
    from tests.adapter_folders import random_factors, write_peft

    hidden = theirs.config.hidden_size
    module, shape = ("model.embed_tokens", (hidden, 700)), ("lm_head", (700, hidden))
    name, sizes = module if target == "embed_tokens" else shape
    factors = random_factors({name: sizes}, 4, seed=1)
    write_peft(tmp_path / "adapter", factors, alpha=8.0)
    assert merge(base, tmp_path / "adapter", tmp_path / "merged") == 0
    found = merged_tensors(tmp_path / "merged")
    down, up = (torch.from_numpy(each) for each in factors[name])
    change = 2.0 * (up @ down)
    change = change.t() if target == "embed_tokens" else change
    expected = {"model.embed_tokens.weight": original, "lm_head.weight": original}
    expected[f"{name}.weight"] = original + change
    for each, tensor in expected.items():
        torch.testing.assert_close(found[each], tensor, rtol=1e-5, atol=1e-6)
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    prepared = load_manifest(prepare(str(tmp_path / "merged"), cache_dir=tmp_path / "cache"))
    assert not prepared.decoder.tie_word_embeddings


def test_files_are_bounded_and_say_where_tensors_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, adapter, _ = with_adapter("llama-plain", tmp_path)
    assert merge(base, adapter, tmp_path / "one") == 0
    assert merge(base, adapter, tmp_path / "many", "--max-shard-gb", "0.0002", "--json") == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    files = sorted((tmp_path / "many").glob("*.safetensors"))
    assert said["files"] == len(files) > 2
    largest = max(each.nbytes for each in merged_tensors(tmp_path / "one").values())
    assert max(path.stat().st_size for path in files) < max(200_000, largest) + 10_000
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    for path in files:
        assert all(index["weight_map"][name] == path.name for name in load_file(path))
    one, many = merged_tensors(tmp_path / "one"), merged_tensors(tmp_path / "many")
    assert one.keys() == many.keys() == index["weight_map"].keys()
    assert all(torch.equal(one[name], many[name]) for name in one)
    rest = {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert rest <= {path.name for path in (tmp_path / "many").iterdir()}


def test_a_quantised_base_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, adapter, _ = with_adapter("llama-plain", tmp_path)
    path = write_gguf(tmp_path / "model.gguf")
    assert merge(path, adapter, tmp_path / "merged") == 1
    assert "Merge into the unquantised folder, and then use `penstock quantize`" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "merged").exists()


def test_an_adapter_of_another_model_is_refused_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, _, _ = with_adapter("llama-plain", tmp_path)
    (tmp_path / "other").mkdir()
    _, other, _ = with_adapter("qwen2-1-1-tied", tmp_path / "other")
    assert merge(base, other, tmp_path / "merged") == 2
    assert "the model's is" in capsys.readouterr().err
    assert not [each for each in tmp_path.iterdir() if "merg" in each.name]


def test_what_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapter, _ = with_adapter("llama-plain", tmp_path)
    (tmp_path / "merged").mkdir()
    assert merge(base, adapter, tmp_path / "merged") == 2
    assert "is there already" in capsys.readouterr().err
