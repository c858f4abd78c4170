"""GGUF files of Nomic BERT, Jina v2 and v3, EuroBERT and NeoBERT, against transformers or the
makers' mathematics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from penstock.errors import UnsupportedModel
from penstock.prepare import load_manifest, prepare
from penstock.protocol.common import Pooling
from penstock_worker.pooling.encoder.distances import by_slope
from testing.pooling_models import (
    VOCAB,
    cosine_distance,
    load_pooling,
    random_inputs,
    run,
    save,
)
from tests.worker.pooling.gguf_relatives import (
    ARCH,
    JINA_V3,
    NOMIC,
    Writer,
    fused,
    of_bert,
    write_relative,
)
from tests.worker.pooling.makers_encoders import JinaBert, NeoBert, NomicExperts

pytestmark = pytest.mark.timeout(240)

LAYERS, SIZE, INNER, HEADS = SHAPE = (2, 64, 96, 4)
SIZES = {"hidden_size": SIZE, "intermediate_size": INNER, "num_attention_heads": HEADS}
LENGTHS = [1, 2, 7, 40, 64]
Hidden = Callable[[torch.Tensor], torch.Tensor]


def _transformers(folder: Path, kind: str, **settings: Any) -> tuple[Any, Hidden]:
    model = save(folder, kind, **SIZES, **settings)
    return model, lambda tokens: model(tokens[None]).last_hidden_state[0]


def _nomic(folder: Path, kind: str = "F32") -> tuple[Path, Hidden]:
    model, hidden = _transformers(folder / "m", "NomicBertModel")

    def says(writer: Writer) -> None:
        of_bert(writer, model.config)
        writer.add_rope_freq_base(1000.0)

    tensors = fused(model.state_dict(), NOMIC, LAYERS)
    path = folder / "m.gguf"
    return write_relative(path, ARCH.NOMIC_BERT, SHAPE, tensors, says, kind=kind), hidden


def _nomic_experts(folder: Path, kind: str = "F32") -> tuple[Path, Hidden]:
    """Two layers, of which the second has experts."""
    torch.manual_seed(5)
    model = NomicExperts(VOCAB, SIZE, INNER, LAYERS, HEADS, experts=5)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if ".experts." in name:
            stack = tensor.unflatten(0, (-1, INNER))
            turned = stack.transpose(1, 2).contiguous() if name.endswith("w2") else stack
            tensors[f"{name}.weight"] = turned
        else:
            tensors[name] = tensor

    def says(writer: Writer) -> None:
        of_bert(writer)
        writer.add_rope_freq_base(10_000.0)
        writer.add_moe_every_n_layers(2)
        writer.add_expert_count(5)
        writer.add_expert_used_count(2)

    path = folder / "m.gguf"
    return write_relative(path, ARCH.NOMIC_BERT_MOE, SHAPE, tensors, says, kind=kind), model


def _jina_v3(folder: Path, kind: str = "F32") -> tuple[Path, Hidden]:
    rope = {"rope_type": "default", "rope_theta": 500.0}
    model, hidden = _transformers(folder / "m", "JinaEmbeddingsV3Model", rope_parameters=rope)

    def says(writer: Writer) -> None:
        of_bert(writer, model.config)
        writer.add_rope_freq_base(500.0)

    tensors = fused(model.state_dict(), JINA_V3, LAYERS)
    tensors = {name: each for name, each in tensors.items() if "pooler" not in name}
    path = folder / "m.gguf"
    return write_relative(path, ARCH.JINA_BERT_V3, SHAPE, tensors, says, kind=kind), hidden


def _jina_v2(folder: Path, kind: str = "F32") -> tuple[Path, Hidden]:
    torch.manual_seed(5)
    model = JinaBert(VOCAB, SIZE, INNER, LAYERS, HEADS)
    path = folder / "m.gguf"
    write_relative(path, ARCH.JINA_BERT_V2, SHAPE, model.state_dict(), of_bert, kind=kind)
    return path, model


def _eurobert(folder: Path, kind: str = "F32") -> tuple[Path, Hidden]:
    more = {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model, hidden = _transformers(folder / "m", "EuroBertModel", **more, mask_token_id=4)

    def says(writer: Writer) -> None:
        writer.add_head_count_kv(2)
        writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
        writer.add_rope_freq_base(model.config.rope_parameters["rope_theta"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_pooling_type(gguf.PoolingType.MEAN)

    # The map names what lies in a `model`, which the converter takes off and finds all the same.
    tensors = {f"model.{name}": each for name, each in model.state_dict().items()}
    path = folder / "m.gguf"
    return write_relative(path, ARCH.EUROBERT, SHAPE, tensors, says, kind=kind), hidden


def _neobert(folder: Path, kind: str = "F32") -> tuple[Path, Hidden]:
    torch.manual_seed(5)
    model = NeoBert(VOCAB, SIZE, INNER, LAYERS, HEADS, labels=1)
    tensors = {
        name: each
        for name, each in model.state_dict().items()
        if not name.startswith(("dense", "classifier"))
    }
    path = folder / "m.gguf"
    write_relative(path, ARCH.NEO_BERT, SHAPE, tensors, neobert_says, kind=kind)
    return path, model


def neobert_says(writer: Writer) -> None:
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_pooling_type(gguf.PoolingType.CLS)


MODELS = {
    "nomic_bert": _nomic,
    "nomic_bert with experts": _nomic_experts,
    "jina_embeddings_v3": _jina_v3,
    "jina_bert_v2": _jina_v2,
    "eurobert": _eurobert,
    "neobert": _neobert,
}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("family", MODELS)
def test_hidden_states_equal_the_makers(tmp_path: Path, family: str, backend: str) -> None:
    path, hidden = MODELS[family](tmp_path)
    loaded = load_pooling(str(path), tmp_path, worker={"attention_backend": backend})
    inputs = random_inputs(LENGTHS)
    crowd = run(loaded, inputs, Pooling("token_embed", normalize=False))
    for tokens, vectors in zip(inputs, crowd, strict=True):
        with torch.inference_mode():
            wanted = hidden(torch.tensor(tokens)).numpy()
        assert np.abs(vectors - wanted).max() < 2e-4
        (alone,) = run(loaded, [tokens], Pooling("token_embed", normalize=False))
        assert np.array_equal(alone, vectors)
    loaded.runner.close()


@pytest.mark.parametrize("family", MODELS)
def test_quantised_files(tmp_path: Path, family: str) -> None:
    """Q8_0, as most files are, whose fused tensors are cut by rows."""
    path, hidden = MODELS[family](tmp_path, kind="Q8_0")
    loaded = load_pooling(str(path), tmp_path)
    pooled = load_manifest(prepare(str(path), cache_dir=str(tmp_path))).pooling
    assert pooled is not None
    for tokens in random_inputs([20, 3]):
        (found,) = run(loaded, [tokens], Pooling("embed"))
        with torch.inference_mode():
            rows = hidden(torch.tensor(tokens)).numpy()
        wanted = rows.mean(0) if pooled.mode == "mean" else rows[0]
        assert 1e-7 < cosine_distance(found, wanted) < 1e-2
    loaded.runner.close()


def test_a_gate_in_a_tensor_of_its_own(tmp_path: Path) -> None:
    """Older files of Jina v2 have two tensors for gate and up."""
    torch.manual_seed(5)
    model = JinaBert(VOCAB, SIZE, INNER, LAYERS, HEADS)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if "gated_layers" not in name:
            tensors[name] = tensor
            continue
        for half, kind in zip(tensor.chunk(2), ("w", "v"), strict=True):
            tensors[name.replace("gated_layers", f"gated_layers_{kind}")] = half
    path = write_relative(tmp_path / "m.gguf", ARCH.JINA_BERT_V2, SHAPE, tensors, of_bert)
    loaded = load_pooling(str(path), tmp_path)
    for tokens in random_inputs([20, 3]):
        (found,) = run(loaded, [tokens], Pooling("embed"))
        with torch.inference_mode():
            wanted = model(torch.tensor(tokens)).mean(0).numpy()
        assert cosine_distance(found, wanted) < 1e-6
    loaded.runner.close()


@pytest.mark.parametrize("heads", [3, 8, 12])
def test_slopes_are_blooms(heads: int) -> None:
    """transformers' BLOOM has ALiBi, which looks back only."""
    mask = torch.ones(1, 9)
    wanted = build_alibi_tensor(mask, heads, torch.float32).flatten(1)
    found = by_slope(heads, 9)
    assert torch.allclose(found[:, :9], wanted - wanted[:, -1:], atol=1e-6)
    assert torch.equal(found, found.flip(1))


def test_jinas_model_of_code_is_refused_by_name(tmp_path: Path) -> None:
    model = JinaBert(VOCAB, SIZE, INNER, LAYERS, HEADS)
    tensors = dict(model.state_dict())
    tensors["encoder.layer.0.attention.self.layer_norm_q.weight"] = torch.ones(SIZE)
    path = write_relative(tmp_path / "m.gguf", ARCH.JINA_BERT_V2, SHAPE, tensors, of_bert)
    with pytest.raises(UnsupportedModel, match="jina-embeddings-v2-base-code's norm"):
        prepare(str(path), cache_dir=str(tmp_path))
