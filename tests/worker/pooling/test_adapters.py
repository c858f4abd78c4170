"""Adapters of pooling models: an input's vector is that of transformers' model with the adapter
merged in, with its own bits whatever else is computed; so are the scores of heads."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch

from penstock.adapters import UnfitAdapter, read_adapter
from penstock.families.bert_reading import bert_encoder
from penstock.model.config import EncoderConfig
from penstock.prepare import load_manifest, prepare
from penstock.protocol.common import Pooling
from penstock.protocol.from_worker import AdapterFailed
from penstock.protocol.worker_resources import LoadAdapter
from penstock_worker.adapters.fitting import FittedModule, fitted
from penstock_worker.adapters.models import adaptable_headless
from penstock_worker.adapters.slot_adapters import SlotAdapters
from penstock_worker.loading.loaded import Loaded
from penstock_worker.pooling.adaptable import adaptable_encoder
from testing.model_configs import llama_config
from testing.pooling_models import load_pooling, random_inputs, run, save
from tests.adapter_folders import Factors, random_factors, write_gguf, write_peft

SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 3}
DECODER = {**SIZES, "num_key_value_heads": 1, "head_dim": 16}
MODERN = {
    **SIZES,
    "global_attn_every_n_layers": 2,
    "local_attention": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "reference_compile": False,
}
EMBEDDERS: dict[str, dict[str, Any]] = {
    "BertModel": SIZES,
    "RobertaModel": {**SIZES, "pad_token_id": 1},
    "ModernBertModel": MODERN,
    "JinaEmbeddingsV3Model": {**SIZES, "pad_token_id": 1},
    "NomicBertModel": SIZES,
    "Qwen3Model": DECODER,
    "DistilBertModel": {"dim": 48, "hidden_dim": 80, "n_heads": 3, "n_layers": 2},
    "MPNetModel": {**SIZES, "pad_token_id": 1},
}
LORA = {"enable_lora": True, "max_loras": 3, "max_lora_rank": 12}
LENGTHS = [3, 31, 1, 17, 40, 8]


def check_vectors(
    loaded: Loaded,
    kind: str,
    inputs: list[list[int]],
    chosen: list[int],
    paths: Sequence[Path | None],
    twins: Sequence[Any],
) -> list[Any]:
    """Returns the inputs' vectors, which are those of the models with the chosen adapters merged
    in, and alone have the same bits."""
    asked = Pooling("embed", normalize=False)
    crowd = run(loaded, inputs, asked, adapters=[paths[each] for each in chosen])
    for tokens, which, vector in zip(inputs, chosen, crowd, strict=True):
        (alone,) = run(loaded, [tokens], asked, adapters=[paths[which]])
        assert np.array_equal(alone, vector)
        with torch.inference_mode():
            hidden = twins[which](torch.tensor([tokens])).last_hidden_state[0]
        wanted = hidden[-1] if kind == "Qwen3Model" else hidden.mean(0)
        assert np.abs(vector - wanted.numpy()).max() < 5e-4
    return crowd


def load_with_adapters(folder: Path, cache: Path, backend: str, **settings: Any) -> Loaded:
    worker = {"attention_backend": backend}
    return load_pooling(str(folder), cache, worker=worker, lora=LORA, threads=2, **settings)


def factors_of(model: Any, rank: int, seed: int, but: tuple[str, ...] = ()) -> Factors:
    """Factors of all linear layers but those whose names begin so."""
    shapes = {
        name: (module.out_features, module.in_features)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not name.startswith(but or ("-",))
    }
    return random_factors(shapes, rank, seed, 0.15)


def merged(model: Any, factors: Factors, scale: float) -> Any:
    other = copy.deepcopy(model)
    for name, (down, up) in factors.items():
        with torch.no_grad():
            weight = other.get_submodule(name).weight
            added = torch.from_numpy(up).double() @ torch.from_numpy(down).double()
            weight.copy_((weight.double() + scale * added).float())
    return other


@pytest.mark.parametrize(
    ("kind", "backend"), [(kind, backend) for kind in EMBEDDERS for backend in ("cpu", "reference")]
)
def test_vectors_of_layers_with_adapters(tmp_path: Path, kind: str, backend: str) -> None:
    model = save(tmp_path / "m", kind, **EMBEDDERS[kind])
    model.set_attn_implementation("eager")
    loaded = load_with_adapters(tmp_path / "m", tmp_path, backend)
    adapters = [factors_of(model, 5, 1), factors_of(model, 12, 2)]
    folders = [write_peft(tmp_path / str(at), each, alpha=9) for at, each in enumerate(adapters)]
    paths = [None, *folders]
    twins = [model, merged(model, adapters[0], 9 / 5), merged(model, adapters[1], 9 / 12)]
    inputs = random_inputs(LENGTHS)
    chosen = [at % 3 for at in range(len(inputs))]
    asked = Pooling("embed", normalize=False)
    # An adapter's rows come first, between others, and last.
    crowd = check_vectors(loaded, kind, inputs, chosen, paths, twins)
    if kind == "Qwen3Model":
        parts = run(loaded, inputs, asked, chunk=5, adapters=[paths[each] for each in chosen])
        assert all(map(np.array_equal, parts, crowd))
    plain = load_pooling(str(tmp_path / "m"), tmp_path, worker={"attention_backend": backend})
    for at, vector in enumerate(run(plain, inputs, asked)):
        assert np.array_equal(vector, crowd[at]) == (not chosen[at])
    loaded.runner.close()
    plain.runner.close()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("kind", "settings", "inner", "outer"),
    [
        ("BertForSequenceClassification", SIZES, "bert.pooler.dense", "classifier"),
        (
            "RobertaForSequenceClassification",
            {**SIZES, "pad_token_id": 1},
            "classifier.dense",
            "classifier.out_proj",
        ),
        (
            "DistilBertForSequenceClassification",
            {"dim": 48, "hidden_dim": 80, "n_heads": 3, "n_layers": 2},
            "pre_classifier",
            "classifier",
        ),
        ("Qwen3ForSequenceClassification", {**DECODER, "pad_token_id": 0}, "", "score"),
    ],
    ids=["bert", "roberta", "distilbert", "qwen3"],
)
def test_heads_of_adapters(
    tmp_path: Path, kind: str, settings: dict[str, Any], inner: str, outer: str, backend: str
) -> None:
    """A layer of the head is brought whole, another one is changed by factors."""
    model = save(tmp_path / "m", kind, **settings, num_labels=3)
    model.set_attn_implementation("eager")
    loaded = load_with_adapters(tmp_path / "m", tmp_path, backend)
    factors = factors_of(model, 5, 1, but=(outer,))
    assert (inner in factors) == bool(inner)
    random = np.random.default_rng(3)
    whole = {
        f"{outer}.{name}": random.standard_normal(tuple(each.shape)).astype(np.float32)
        for name, each in model.get_submodule(outer).named_parameters()
    }
    path = write_peft(tmp_path / "a", factors, alpha=9, whole=whole)
    twin = merged(model, factors, 9 / 5)
    for name, values in whole.items():
        twin.get_parameter(name).data = torch.from_numpy(values)
    inputs = random_inputs([31, 7, 12])
    adapters = [path, None, path]
    asked = Pooling("classify", activate=False)
    for tokens, which, found in zip(
        inputs, adapters, run(loaded, inputs, asked, adapters=adapters), strict=True
    ):
        with torch.inference_mode():
            wanted = (twin if which else model)(torch.tensor([tokens])).logits[0].numpy()
        assert np.abs(found - wanted).max() < 1e-3
    loaded.runner.close()


def test_what_vectors_are_not_made_of_is_passed_over(tmp_path: Path) -> None:
    """PEFT changes a pooler that embeddings don't go through."""
    model = save(tmp_path / "m", "BertModel", **SIZES)
    loaded = load_with_adapters(tmp_path / "m", tmp_path, "cpu")
    layers = factors_of(model, 5, 1, but=("pooler",))
    pooler = random_factors({"pooler.dense": (48, 48)}, 5, 2)
    folders = [write_peft(tmp_path / "a", layers), write_peft(tmp_path / "b", layers | pooler)]
    tokens = random_inputs([9, 9])
    found = run(loaded, [tokens[0]] * 2, Pooling("embed"), adapters=folders)
    assert np.array_equal(*found)
    loaded.runner.close()


TABLES = {
    "Qwen3Model": ["embed_tokens"],
    "ModernBertModel": ["embeddings.tok_embeddings"],
    "BertModel": ["embeddings.word_embeddings"],
    "JinaEmbeddingsV3Model": [
        "embeddings.word_embeddings",
        "embeddings.token_type_embeddings",  # It has one row.
    ],
}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("kind", TABLES)
def test_vectors_of_embeddings_with_adapters(tmp_path: Path, kind: str, backend: str) -> None:
    """Beside layers whose rows have lengths of their own."""
    model = save(tmp_path / "m", kind, **EMBEDDERS[kind])
    model.set_attn_implementation("eager")
    loaded = load_with_adapters(tmp_path / "m", tmp_path, backend)
    shapes = {name: tuple(model.get_submodule(name).weight.shape)[::-1] for name in TABLES[kind]}
    tables, layers = random_factors(shapes, 6, 1, 0.3), factors_of(model, 4, 2)
    random = np.random.default_rng(4)
    lengths = {
        each: random.uniform(0.5, 3, len(up)).astype(np.float32) for each, (_, up) in layers.items()
    }
    dora = merged(model, layers, 2.0)
    for each, wanted in lengths.items():
        weight = dora.get_submodule(each).weight
        with torch.no_grad():
            found = torch.linalg.norm(weight.double(), dim=1)
            weight.mul_((torch.from_numpy(wanted) / found).float()[:, None])
    embedded = copy.deepcopy(model)
    for name, (down, up) in tables.items():
        added = torch.from_numpy(up).double() @ torch.from_numpy(down).double()
        with torch.no_grad():
            embedded.get_submodule(name).weight.add_((1.5 * added.T).float())
    paths = [
        None,
        write_peft(tmp_path / "e", tables, alpha=9),
        write_peft(tmp_path / "l", layers, alpha=8, magnitudes=lengths),
    ]
    inputs, twins = random_inputs(LENGTHS), [model, embedded, dora]
    chosen = [at % 3 for at in range(len(inputs))]
    check_vectors(loaded, kind, inputs, chosen, paths, twins)
    loaded.runner.close()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_tasks_of_jinas_embeddings(tmp_path: Path, backend: str) -> None:
    """As its tasks' adapters do, one that PEFT writes changes all products and both tables; the
    model's file has queries, keys and values as one tensor."""
    import peft

    kind = "JinaEmbeddingsV3Model"
    model = save(tmp_path / "m", kind, **EMBEDDERS[kind])
    model.set_attn_implementation("eager")
    loaded = load_with_adapters(tmp_path / "m", tmp_path, backend)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2", "dense"]
    names += ["word_embeddings", "token_type_embeddings"]
    stated = peft.LoraConfig(r=4, lora_alpha=1, target_modules=names)
    wrapped = peft.get_peft_model(copy.deepcopy(model), stated)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, 0, 0.5)
    wrapped.save_pretrained(tmp_path / "a")
    twin = wrapped.merge_and_unload().eval()
    paths, inputs = [tmp_path / "a", None], random_inputs(LENGTHS)
    check_vectors(loaded, kind, inputs, [0, 1] * 3, paths, [twin, model])
    loaded.runner.close()


def test_a_token_types_row_needs_a_rank(tmp_path: Path) -> None:
    kind = "JinaEmbeddingsV3Model"
    model = save(tmp_path / "m", kind, **EMBEDDERS[kind])
    loaded = load_with_adapters(tmp_path / "m", tmp_path, "cpu")
    tables = [(name, tuple(model.get_submodule(name).weight.shape)[::-1]) for name in TABLES[kind]]
    path = write_peft(tmp_path / "a", random_factors(dict(tables), 12, 1))
    digest, _ = read_adapter(path)
    answers = SimpleQueue[Any]()
    loaded.runner.feature(SlotAdapters).load(LoadAdapter(digest, str(path)), answers.put)
    answer = answers.get(timeout=60)
    assert isinstance(answer, AdapterFailed)
    assert "have rank 13 together; at most 12 is allowed (max_lora_rank)" in str(answer)
    loaded.runner.close()


def test_a_reranker_whose_scores_are_made_of_the_head(tmp_path: Path) -> None:
    """A changed head would change them: it isn't passed over."""
    config = llama_config(
        vocab_size=99,
        hidden_size=48,
        intermediate_size=80,
        num_layers=1,
        num_heads=3,
        num_kv_heads=1,
        head_dim=16,
        max_position=80,
    )
    _, adapter = read_adapter(
        write_peft(tmp_path, random_factors({"lm_head": (99, 48)}, 4, 1, 0.3))
    )
    assert not fitted(adapter, adaptable_headless(config), 64)
    with pytest.raises(UnfitAdapter, match="changes lm_head; supported in this model"):
        fitted(adapter, adaptable_headless(config, answers=True), 64)


IN_GGUF = {
    "BertModel": (
        "bert",
        {"self.query": "attn_q", "self.value": "attn_v", "attention.output.dense": "attn_output"},
    ),
    "NomicBertModel": (
        "nomic-bert",
        {"q_proj": "attn_q", "o_proj": "attn_output", "gate_proj": "ffn_gate", "up_proj": "ffn_up"},
    ),
    "JinaEmbeddingsV3Model": ("jina-bert-v3", {"k_proj": "attn_k", "fc1": "ffn_up"}),
    "ModernBertModel": ("modern-bert", {"attn.Wqkv": "attn_qkv", "mlp.Wo": "ffn_down"}),
}
"""The architecture that GGUF files of an encoder name, and the names of some of its modules."""


@pytest.mark.parametrize("kind", IN_GGUF)
def test_a_gguf_adapter_of_an_encoder_is_the_same(tmp_path: Path, kind: str) -> None:
    arch, names = IN_GGUF[kind]
    model = save(tmp_path / "m", kind, **EMBEDDERS[kind])
    config = load_manifest(prepare(str(tmp_path / "m"), cache_dir=tmp_path)).config
    assert isinstance(config, EncoderConfig)
    known = adaptable_encoder(config, 0)
    all_factors = factors_of(model, 5, 1)
    theirs = {name: each for name, each in all_factors.items() if name.endswith(tuple(names))}
    in_gguf: Factors = {}
    for name, each in theirs.items():
        (number,) = (part for part in name.split(".") if part.isdigit())
        (end,) = (end for end in names if name.endswith(end))
        in_gguf[f"blk.{number}.{names[end]}"] = each
    _, peft = read_adapter(write_peft(tmp_path / "a", theirs))
    _, of_gguf = read_adapter(write_gguf(tmp_path / "a.gguf", in_gguf, arch=arch))
    one, other = (fitted(each, known, 64) for each in (peft, of_gguf))
    assert one.keys() == other.keys()
    assert len(one) >= len(theirs)
    for name, module in one.items():
        twin = other[name]
        assert isinstance(module, FittedModule)
        assert isinstance(twin, FittedModule)
        whole = range(module.up.shape[0]), range(module.down.shape[1])
        pairs = zip(module.factors(*whole), twin.factors(*whole), strict=True)
        assert all(torch.equal(ours, its) for ours, its in pairs)


@pytest.mark.parametrize(("kind", "arch"), [("NomicBertModel", "bert"), ("BertModel", "llama")])
def test_a_gguf_adapter_of_another_encoder_is_refused(tmp_path: Path, kind: str, arch: str) -> None:
    save(tmp_path / "m", kind, **EMBEDDERS[kind])
    config = load_manifest(prepare(str(tmp_path / "m"), cache_dir=tmp_path)).config
    assert isinstance(config, EncoderConfig)
    factors = random_factors({"blk.0.attn_q": (48, 48)}, 5, 1)
    _, adapter = read_adapter(write_gguf(tmp_path / "a.gguf", factors, arch=arch))
    with pytest.raises(UnfitAdapter, match=f"the adapter is for {arch}, but the model is "):
        fitted(adapter, adaptable_encoder(config, 0), 64)


def test_jinas_second_embeddings_and_nomics_experts_have_gguf_adapters() -> None:
    sizes: dict[str, Any] = {"num_layers": 2, "num_heads": 3, "hidden_size": 48}
    known = {
        family: adaptable_encoder(
            bert_encoder(family, vocab_size=60, intermediate_size=80, max_position=80, **sizes), 0
        ).gguf
        for family in ("jina_bert_v2", "nomic_bert", "roberta", "mpnet")
    }
    assert known == {
        "jina_bert_v2": ("jina-bert-v2",),
        "nomic_bert": ("nomic-bert", "nomic-bert-moe"),
        "roberta": ("bert",),
        "mpnet": ("bert",),
    }
