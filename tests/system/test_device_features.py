"""What few models need of a device, through the library, an engine core and a worker, in one small
model each: where CUDA graphs, other weights or less memory make no difference to an answer.

On a GPU's machine these run on it; a visit there (loadtest/gpu) begins with them. Without one, the
kernels are interpreted, and there are no graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from penstock import LLM, LoRARequest, SamplingParams
from penstock.request.structured_outputs import StructuredOutputs
from testing.metrics_page import read_page
from testing.model_configs import llama_config
from testing.serving import wait_until
from testing.tiny_models import LLAMA_CONFIG, write_hub_folder
from tests.adapter_folders import random_factors, write_peft
from tests.reference.generate import free_port
from tests.worker.checkpoints import tiny_tensors
from tests.worker.cuda.test_cpu_experts import Quantising
from tests.worker.models.family_cases import CASES as FAMILIES
from tests.worker.models.gguf_writing import write as write_gguf
from tests.worker.models.test_gguf_families import CONVERSIONS
from tests.worker.models.test_parity_families import make_theirs
from tests.worker.quantised_cases import CASES as QUANTISED
from tests.worker.quantised_checkpoints import SIZES, write_checkpoint
from tests.worker.quantised_experts import write_experts
from tests.worker.speculation.head_folders import written as write_head

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

CARD = torch.cuda.is_available()
DEVICE = {"device": "cuda" if CARD else "cpu", "attention_backend": "triton"}
REFERENCE = {"device": "cpu", "attention_backend": "reference"}
ONE_BY_ONE = {"enforce_eager": True}
INVARIANT = {"batch_invariant": True}
OTHERWISE = INVARIANT | ONE_BY_ONE | {"max_num_seqs": 1, "max_num_batched_tokens": 16}
"""Without graphs, each request alone, and in other chunks of prompts: what is compared differs with
a card and without one."""
LENGTH = 24 if CARD else 3
"""Tokens of an answer."""
LENGTHS = (5, 23, 60) if CARD else (3, 18)
PROMPTS = [[1 + (at * 37 + length) % 600 for at in range(length)] for length in LENGTHS]
SIZE: dict[str, Any] = (
    {"max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 64}
    if CARD
    else {"max_model_len": 32, "max_num_seqs": 2, "max_num_batched_tokens": 32, **ONE_BY_ONE}
)
Answers = list[list[int]]
Asked = Callable[[LLM, Path], Answers]
Writer = Callable[[Path], str]


def greedy(
    llm: LLM,
    folder: Path,
    prompts: Sequence[list[int]] = PROMPTS,
    tokens: int = LENGTH,
    **more: Any,
) -> Answers:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    given = [{"prompt_token_ids": each} for each in prompts]
    outputs = llm.generate(given, params, use_tqdm=False, **more)
    return [list(each.outputs[0].token_ids) for each in outputs]


def by_grammar(llm: LLM, folder: Path) -> Answers:
    params = SamplingParams(
        temperature=0.0,
        max_tokens=LENGTH,
        structured_outputs=StructuredOutputs(regex="[0-9]{30}"),
    )
    prompts = [{"prompt_token_ids": each} for each in PROMPTS]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert all(each.outputs[0].text.isdigit() for each in outputs)
    return [list(each.outputs[0].token_ids) for each in outputs]


def with_adapter(llm: LLM, folder: Path) -> Answers:
    given = LoRARequest("one", 1, str(adapter(folder)))
    plain, adapted = greedy(llm, folder), greedy(llm, folder, lora_request=given)
    assert plain != adapted
    return plain + adapted


def after_sleep(llm: LLM, folder: Path) -> Answers:
    before = greedy(llm, folder)
    llm.sleep(2)
    llm.wake_up()
    after = greedy(llm, folder)
    assert before == after
    return after


def after_other_weights(llm: LLM, folder: Path) -> Answers:
    """Those of weights that came while the model was served."""
    before = greedy(llm, folder)
    llm.update_weights(model=plain(folder / "other", seed=1))
    after = greedy(llm, folder)
    assert before != after
    return after


def plain(folder: Path, seed: int = 0) -> str:
    """Writes a Llama in float32. Returns its folder."""
    stated = LLAMA_CONFIG | SIZES | {"tie_word_embeddings": False}
    write_hub_folder(folder, config=stated)
    config = llama_config(
        architecture="llama",
        vocab_size=stated["vocab_size"],
        hidden_size=stated["hidden_size"],
        intermediate_size=stated["intermediate_size"],
        num_layers=stated["num_hidden_layers"],
        num_heads=stated["num_attention_heads"],
        num_kv_heads=stated["num_key_value_heads"],
        head_dim=stated["head_dim"],
        max_position=512,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
    )
    save_file(tiny_tensors(config, seed), folder / "model.safetensors")
    return str(folder)


def other(folder: Path) -> str:
    return plain(folder, seed=1)


def quantised(name: str) -> Writer:
    return lambda folder: str(write_checkpoint(folder, QUANTISED[name]).folder)


def experts(name: str) -> Writer:
    return lambda folder: str(write_experts(folder, QUANTISED[name]).folder)


def mixture(folder: Path, kind: str = "Q4_0") -> str:
    """Writes a Qwen3 mixture of experts. Returns its file."""
    family, settings = FAMILIES["qwen3-moe-all"]
    sizes = {"hidden_size": 64, "moe_intermediate_size": 64}
    folder.mkdir(parents=True)
    path, made = folder / "mixture.gguf", type("Made", (Quantising,), {"kind": kind})
    write_gguf(path, make_theirs(family, settings | sizes), CONVERSIONS["qwen3-moe-all"], made)
    return str(path)


def adapter(folder: Path) -> Path:
    hidden = SIZES["hidden_size"]
    shapes = {f"model.layers.{n}.self_attn.q_proj": (hidden, hidden) for n in range(2)}
    return write_peft(folder / "adapter", random_factors(shapes, 4, 0, size=1.0))


@dataclass(frozen=True)
class Case:
    """settings: how the device computes.  beside: what else must say the same, by another way.
    other: of another model, which `beside` serves."""

    write: Writer
    settings: dict[str, Any]
    beside: dict[str, Any]
    ask: Asked = greedy
    ask_beside: Asked = greedy
    other: Writer | None = None
    dtype: str = "float32"
    also: dict[str, Any] = field(default_factory=dict)
    """Settings of both."""


HALF = "bfloat16"
CASES = {
    "AWQ": Case(quantised("AWQ"), INVARIANT, OTHERWISE, dtype=HALF),
    "GPTQ": Case(quantised("GPTQ, act-order"), INVARIANT, OTHERWISE, dtype=HALF),
    "FP8": Case(quantised("FP8, blocks"), INVARIANT, OTHERWISE, dtype=HALF),
    "FP8 on load": Case(plain, INVARIANT, OTHERWISE, dtype=HALF, also={"quantization": "fp8"}),
    "a mixture in FP8": Case(experts("FP8, blocks of 128"), INVARIANT, OTHERWISE, dtype=HALF),
    "FP8 keys and values": Case(
        plain, INVARIANT, OTHERWISE, dtype=HALF, also={"kv_cache_dtype": "fp8"}
    ),
    "grammars": Case(plain, {}, REFERENCE, ask=by_grammar, ask_beside=by_grammar),
    "adapters": Case(
        plain,
        {},
        REFERENCE,
        ask=with_adapter,
        ask_beside=with_adapter,
        also={"enable_lora": True, "max_lora_rank": 8, "max_loras": 2},
    ),
    "slept and woken": Case(plain, {}, REFERENCE, ask=after_sleep),
    "other weights": Case(plain, {}, REFERENCE, ask=after_other_weights, other=other),
}


LONG = () if CARD else (pytest.mark.long,)
"""Each takes a quarter of a minute of a processor where kernels are interpreted."""


def llm_of(case: Case, model: str, folder: Path, settings: dict[str, Any]) -> LLM:
    chosen = {
        "dtype": case.dtype,
        "num_kv_blocks": 64,
        "cache_dir": str(folder / "cache"),
        "speculative_config": "off",
        **DEVICE,
        **SIZE,
        **case.also,
        **settings,
    }
    return LLM(model=model, **chosen)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests start inherits it."""
    if not CARD:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=() if name == "grammars" else LONG)
        for name, case in CASES.items()
    ],
)
def test_a_device_says_what_another_way_says(case: Case, tmp_path: Path) -> None:
    model = case.write(tmp_path / "model")
    with llm_of(case, model, tmp_path, case.settings) as llm:
        found = case.ask(llm, tmp_path)
    model = model if case.other is None else case.other(tmp_path / "beside")
    with llm_of(case, model, tmp_path, case.beside) as llm:
        assert found == case.ask_beside(llm, tmp_path)


BLOCK = 16
"""Tokens of a block of keys and values."""
REQUESTS, FEW, ANSWER = (4, 6, 24) if CARD else (3, 4, 6)
"""Requests at once, blocks of all, and tokens of an answer. Each request has a block at first, and
needs three in the end, or without a card two."""


@pytest.mark.parametrize("mode", [pytest.param("swap", marks=LONG)])
def test_preempted_and_swapped_sequences_say_what_those_with_room_say(
    mode: str, tmp_path: Path
) -> None:
    sizes = {"max_model_len": 64, "max_num_seqs": REQUESTS, "max_num_batched_tokens": 64}
    case = Case(plain, {}, {}, also=sizes)
    model, port = plain(tmp_path / "model"), free_port()
    prompts = [[1 + n + 37 * at % 500 for at in range(BLOCK - 1)] for n in range(REQUESTS)]
    few = {"num_kv_blocks": FEW, "host_kv_gib": 0.1, "preemption_mode": mode}
    few |= {"engine_metrics_port": port}

    def preempted_and_swapped() -> bool:
        page = read_page(f"http://127.0.0.1:{port}")
        moved = page.labelled("penstock:swapped_blocks_total", "direction")
        return page.value("vllm:num_preemptions_total") > 0 and min(moved["out"], moved["in"]) > 0

    with llm_of(case, model, tmp_path, INVARIANT | few) as llm:
        found = greedy(llm, tmp_path, prompts, ANSWER)
        wait_until(preempted_and_swapped)
    with llm_of(case, model, tmp_path, INVARIANT) as llm:
        assert found == greedy(llm, tmp_path, prompts, ANSWER)


@pytest.mark.parametrize("head", [pytest.param(each, marks=LONG) for each in ("eagle3", "mtp")])
def test_a_head_that_drafts_changes_no_token(head: str, tmp_path: Path) -> None:
    served = write_head("Llama" if head == "eagle3" else "MiMo", head, tmp_path, counts=True)
    case = Case(plain, {}, {})
    drafting = served.said | {"num_speculative_tokens": 2}
    model = str(served.folder)
    with llm_of(case, model, tmp_path, {"speculative_config": drafting} | INVARIANT) as llm:
        found = greedy(llm, tmp_path)
    with llm_of(case, model, tmp_path, INVARIANT) as llm:
        assert found == greedy(llm, tmp_path)


@pytest.mark.parametrize("kind", [pytest.param("Q4_0", marks=LONG)])
def test_experts_in_the_hosts_memory_say_what_those_on_the_card_say(
    kind: str, tmp_path: Path
) -> None:
    model, case = mixture(tmp_path / "model", kind), Case(mixture, {}, {}, dtype="auto")
    found = []
    for layers in ("all", "0"):
        settings = INVARIANT | {"cpu_experts": layers}
        with llm_of(case, model, tmp_path, settings) as llm:
            found.append(greedy(llm, tmp_path))
    assert found[0] == found[1]


@pytest.mark.parametrize("count", [pytest.param(2, marks=LONG)])
def test_models_share_a_card(count: int, tmp_path: Path) -> None:
    """Each with blocks of its own, at the same time."""
    case, models = Case(plain, {}, {}), [plain(tmp_path / str(n), n) for n in range(count)]
    with llm_of(case, models[0], tmp_path, {}) as one, llm_of(case, models[1], tmp_path, {}) as two:
        together = [greedy(llm, tmp_path) for llm in (one, two)]
    for model, found in zip(models, together, strict=True):
        with llm_of(case, model, tmp_path, REFERENCE) as llm:
            assert greedy(llm, tmp_path) == found
    assert together[0] != together[1]
