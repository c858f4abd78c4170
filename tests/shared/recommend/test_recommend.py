"""Which models fit a machine, and how fast: the table against the releases' own configurations, and
the arithmetic on machines of three sizes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from penstock.cli import processes
from penstock.cli.main import main
from penstock.recommend.fits import GIB, Fit, Machine, fits, memory, tokens_per_s
from penstock.recommend.releases import BETTER, RELEASES
from penstock_kernels.cpu.matrix import SOURCES, pack

QWEN3 = {
    "model_type": "qwen3",
    "head_dim": 128,
    "num_key_value_heads": 8,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
EXPERTS = {
    "model_type": "qwen3_moe",
    "num_key_value_heads": 4,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "tie_word_embeddings": False,
}


def qwen3(hidden: int, layers: int, heads: int, inner: int, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**QWEN3, **sizes, "intermediate_size": inner, **more}


GPT_OSS = {
    "model_type": "gpt_oss",
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
CONFIGS = {
    "ggml-org/gpt-oss-120b-GGUF:MXFP4": GPT_OSS
    | {"num_hidden_layers": 36, "num_local_experts": 128},
    "unsloth/GLM-4.5-Air-GGUF:Q4_K_M": {
        "model_type": "glm4_moe",
        "attention_bias": True,
        "first_k_dense_replace": 1,
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_attention_heads": 96,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 46,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "use_qk_norm": False,
        "vocab_size": 151552,
    },
    "Qwen/Qwen3-32B-GGUF:Q4_K_M": qwen3(5120, 64, 64, 25600, tie_word_embeddings=False),
    "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M": qwen3(2048, 48, 32, 6144, **EXPERTS),
    "ggml-org/gpt-oss-20b-GGUF:MXFP4": GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32},
    "Qwen/Qwen3-14B-GGUF:Q4_K_M": qwen3(5120, 40, 40, 17408, tie_word_embeddings=False),
    "Qwen/Qwen3-8B-GGUF:Q4_K_M": qwen3(4096, 36, 32, 12288, tie_word_embeddings=False),
    "Qwen/Qwen3-4B-GGUF:Q4_K_M": qwen3(2560, 36, 32, 9728),
    "Qwen/Qwen3-1.7B-GGUF:Q8_0": qwen3(2048, 28, 16, 6144),
    "Qwen/Qwen3-0.6B-GGUF:Q8_0": qwen3(1024, 28, 16, 3072),
}
"""What of a release's config.json decides about sizes. The two smallest models are missing: widths
that are no multiple of 256 give their files other mixtures."""
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "choosing-a-model.md"
BY_NAME = {release.name: release for release in RELEASES}


def in_memory(source: str) -> float:
    """Bytes of a weight, as the kernels hold it."""
    shape = (64, 1024)
    form = SOURCES[source]
    data = np.zeros(shape[0] * shape[1] // form.elements * form.bytes, np.uint8)
    return pack(source, data, shape).size / (shape[0] * shape[1])


def source_of(name: str, shape: torch.Size, mixture: str, config: PreTrainedConfig) -> str:
    """The format that llama.cpp's mixtures give a parameter."""
    whole = len(shape) == 1 or "norm" in name or "mlp.gate." in name or "router" in name
    if whole:
        return "F32"
    if mixture == "MXFP4":
        return "MXFP4" if "experts" in name and len(shape) == 3 else "Q8_0"
    if mixture == "Q8_0":
        return "Q8_0"
    if "embed_tokens" in name:
        return "Q6_K" if config.tie_word_embeddings else "Q4_K"
    if "lm_head" in name:
        return "Q6_K"
    layer, layers = int(name.split("layers.")[1].split(".")[0]), config.num_hidden_layers
    eighth = layers // 8
    finer = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    return "Q6_K" if finer and ("v_proj" in name or "down_proj" in name) else "Q4_K"


def parameters(config: PreTrainedConfig) -> Iterator[tuple[str, torch.Size]]:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        yield name, parameter.shape


@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_are_those_that_transformers_counts(name: str) -> None:
    """Sizes are of its parameters, each with the bytes of the format that it has in the file."""
    given = dict(CONFIGS[name])
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    named = ("num_experts", "num_local_experts", "n_routed_experts")
    experts = next((getattr(config, name) for name in named if getattr(config, name, 0)), 1)
    active = getattr(config, "num_experts_per_tok", 1) / experts
    count = routed = 0
    download = weights = read = held = shared = 0.0
    for parameter, shape in parameters(config):
        source = source_of(parameter, shape, name.rpartition(":")[2], config)
        form, here = SOURCES[source], in_memory(source) * shape.numel()
        count += shape.numel()
        download += shape.numel() * form.bytes / form.elements
        weights += here
        if "experts." in parameter and "shared" not in parameter and len(shape) > 1:
            routed, held = routed + shape.numel(), held + here
        shared += here if "shared" in parameter else 0
        if config.tie_word_embeddings or "embed_tokens" not in parameter:
            read += here * (active if ".experts." in parameter else 1)
    release = BY_NAME[name]
    own = release.experts
    if own is not None:
        per_layer = own.layers * own.count
        assert (own.nbytes, own.weights) == (round(held / per_layer), routed / per_layer)
        assert (own.count, own.active, own.shared) == (
            experts,
            config.num_experts_per_tok,
            round(shared / own.layers),
        )
        assert own.width == config.hidden_size
    assert release.parameters == count
    assert (release.download, release.weights, release.read) == (
        round(download),
        round(weights),
        round(read),
    )
    heads = config.num_key_value_heads * config.head_dim
    assert release.kv_per_token == 2 * 2 * heads * config.num_hidden_layers
    assert (release.layers, release.vocabulary) == (config.num_hidden_layers, config.vocab_size)


def test_the_guide_has_the_bits_of_all_formats() -> None:
    """In the file, and as the kernels hold a weight. F32 speaks for itself."""
    told = {}
    for line in GUIDE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`"):
            sources = re.findall("`(.+?)`", cells[0])
            in_file, held = (each.split(", ") for each in cells[1:3])
            in_file *= len(sources) // len(in_file)
            held *= len(sources) // len(held)
            told |= {
                name: (float(own), float(packed))
                for name, own, packed in zip(sources, in_file, held, strict=True)
            }
    expected = {
        name: (8 * form.bytes / form.elements, 8 * in_memory(name))
        for name, form in SOURCES.items()
        if name != "F32"
    }
    assert told == expected


def machine(free: float, bandwidth: float = 30e9, kernels: str = "avx512vnni") -> Machine:
    size = int(free * GIB)
    return Machine(size, size, "a processor", 2, kernels, bandwidth, "not at all")


def names(found: list[Fit]) -> list[str]:
    return [fit.model.rpartition("/")[2].partition("-GGUF")[0] for fit in found]


def test_machines_of_three_sizes() -> None:
    """With 30 GB/s. A dense model of 14 billion is slow there, one with experts isn't."""
    small, usual, large = (fits(machine(free)) for free in (4, 16, 64))
    fit = [
        *("Qwen3-4B", "Qwen3-1.7B", "Qwen3-0.6B"),
        *("Qwen2.5-Coder-0.5B-Instruct", "smollm2-135m"),
    ]
    assert names(small)[:5] == fit
    assert [each.missing > 0 for each in small] == [False] * 5 + [True] * 7
    assert names(small)[5:7] == ["Qwen3-8B", "Qwen3-14B"]
    assert names(usual)[:2] == ["gpt-oss-20b", "Qwen3-8B"]
    assert names(usual)[-5:-2] == ["Qwen3-14B", "Qwen3-30B-A3B", "Qwen3-32B"]
    assert names(large)[:2] == ["Qwen3-30B-A3B", "gpt-oss-20b"]
    assert names(large)[-4:] == ["GLM-4.5-Air", "Qwen3-32B", "Qwen3-14B", "gpt-oss-120b"]
    assert [each.missing > 0 for each in large] == [False] * 11 + [True]


def test_what_a_model_needs_and_lacks_by_hand() -> None:
    release = BY_NAME["Qwen/Qwen3-4B-GGUF:Q4_K_M"]
    processes = 300 * 1024 * 1024 + 2048 * 151_936
    needed = 2_540_353_024 + 8192 * 36 * 2 * 8 * 128 * 2 + processes
    assert memory(release, 8192) == needed
    [fit] = fits(machine(4), 8192, [release])
    assert (fit.memory, fit.missing) == (needed, needed - 4 * GIB)
    exact = Machine(needed, needed, "", 2, "avx2", 30e9, "")
    assert fits(exact, 8192, [release])[0].missing == 0


def test_speed_agrees_with_what_was_measured() -> None:
    """loadtest.peers.inprocess measured, without drafts, 184 tokens a second of one stream at 35.0
    GB/s, and 169 after 1,024 tokens."""
    release = BY_NAME["smollm2-135m"]
    assert tokens_per_s(release, 34.96e9, 2 * 96) == pytest.approx(184, rel=0.1)
    assert tokens_per_s(release, 34.96e9, 2 * 1056) == pytest.approx(169, rel=0.1)


def test_twice_the_bandwidth_halves_reading_alone() -> None:
    release = BY_NAME["Qwen/Qwen3-8B-GGUF:Q4_K_M"]
    seconds = [1 / tokens_per_s(release, rate, 4096) for rate in (20e9, 40e9)]
    read = 4_764_958_720 + 2048 * 147_456
    assert seconds[0] - seconds[1] == pytest.approx(read / 40e9)


def test_the_page_names_two_that_are_larger_than_the_demonstration() -> None:
    assert all(BY_NAME[name].parameters > RELEASES[-1].parameters for name in BETTER)
    assert RELEASES[-1].name == "smollm2-135m"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def on(here: Machine, *flags: str) -> tuple[int, str]:
        monkeypatch.setattr(processes, "this_machine", lambda: here)
        status = main(["recommend", *flags])
        said = capsys.readouterr()
        return status, said.out + said.err

    return on


def test_the_command_prints_a_table_and_how_to_serve_the_best(run: Any) -> None:
    status, said = run(machine(16))
    assert status == 0
    lines = said.splitlines()
    assert re.fullmatch(r"memory +16\.0 GiB, 16\.0 GiB of it free", lines[0])
    row = next(line for line in lines if line.startswith("Qwen/Qwen3-32B"))
    assert re.search(r" +32\.8 B +19\.8 GB +20\.4 GiB, 4\.4 GiB missing +1\.5$", row)
    assert "penstock serve ggml-org/gpt-oss-20b-GGUF:MXFP4" in lines[-1]


def test_as_json(run: Any) -> None:
    status, said = run(machine(4), "--json", "--context", "1024")
    whole = json.loads(said)
    assert (status, whole["context"], whole["machine"]["free"]) == (0, 1024, 4 * GIB)
    first = whole["models"][0]
    assert first["command"] == f"penstock serve {first['model']}"
    assert {each["model"] for each in whole["models"]} == set(BY_NAME)


def test_a_machine_for_which_nothing_is_small_enough(run: Any) -> None:
    status, said = run(machine(0.25))
    assert status == 1
    assert "None fits: close other programs" in said


@pytest.mark.parametrize("kernels", ["portable", "reference"])
def test_without_fast_kernels_no_speed_is_promised(run: Any, kernels: str) -> None:
    status, said = run(machine(16, kernels=kernels))
    assert status == 0
    assert f"With the {kernels} kernels, speeds can't be estimated." in said
    assert fits(machine(16, kernels=kernels))[0].tokens_per_s is None


@pytest.mark.parametrize("context", ["0", "-1", "2000000"])
def test_a_context_out_of_range_is_refused(run: Any, context: str) -> None:
    status, said = run(machine(16), "--context", context)
    assert status != 0
    assert f"--context is {context}; allowed are 1 to 1,048,576 tokens" in said


@pytest.mark.parametrize("card", [(), ("--device", "4090")])
@pytest.mark.parametrize(("others", "said"), [(0.05, False), (0.45, True)])
def test_a_machine_that_was_busy_is_said_to_be_faster_than_measured(
    run: Any, others: float, said: bool, card: tuple[str, ...]
) -> None:
    """Next to the bandwidth, from which all speeds are estimated."""
    _, words = run(msgspec.structs.replace(machine(64), others=others), *card)
    [line] = [each for each in words.splitlines() if each.startswith("bandwidth")]
    assert ("while other processes took 45% of the processors" in line) is said
