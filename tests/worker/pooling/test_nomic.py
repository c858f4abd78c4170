"""Nomic BERT as its releases before transformers had it describe themselves (their config.json,
written from memory), and what isn't served of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import UnsupportedModel
from penstock.model.config import EncoderConfig
from penstock.model.rope_spec import RopeSpec
from penstock.prepare import load_manifest, prepare
from penstock.protocol.common import Pooling
from testing.pooling_models import VOCAB, facts_of, load_pooling, random_inputs, run
from testing.pooling_models import save as save_model
from tests.worker.pooling.late_models import SIZES

OLD: dict[str, Any] = {
    "activation_function": "swiglu",
    "architectures": ["NomicBertModel"],
    "attn_pdrop": 0.0,
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
    "bos_token_id": None,
    "causal": False,
    "dense_seq_output": True,
    "embd_pdrop": 0.0,
    "eos_token_id": None,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 60,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 48,
    "n_head": 3,
    "n_inner": 72,
    "n_layer": 2,
    "n_positions": 80,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "parallel_block_tied_norm": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "reorder_and_upcast_attn": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "summary_activation": None,
    "summary_first_dropout": 0.0,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "torch_dtype": "float32",
    "transformers_version": "4.34.0",
    "type_vocab_size": 2,
    "use_cache": True,
    "use_flash_attn": True,
    "use_rms_norm": False,
    "use_xentropy": True,
    "vocab_size": VOCAB,
}


def _described(folder: Path, **changes: Any) -> str:
    (folder / "config.json").write_text(json.dumps({**OLD, **changes}))
    return str(folder)


def test_old_keys_say_what_new_ones_do(tmp_path: Path) -> None:
    save_model(tmp_path / "m", "NomicBertModel", **SIZES)
    inputs = random_inputs([1, 17, 60])
    found = []
    for described in (False, True):
        model = _described(tmp_path / "m") if described else str(tmp_path / "m")
        loaded = load_pooling(model, tmp_path)
        found.append(run(loaded, inputs, Pooling("token_embed")))
        loaded.runner.close()
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))
    assert facts_of(str(tmp_path / "m"), tmp_path).max_model_len == 60  # that it was trained with


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prenorm": True}, "prenorm True is not served; False is"),
        ({"rotary_scaling_factor": 2}, "rotary_scaling_factor 2 is not served; None is"),
        ({"moe_every_n_layers": 2}, "moe_every_n_layers 2 is not served; 0 is"),
        ({"activation_function": "gelu"}, "the activation 'gelu' is not served; silu is"),
        ({"n_head": 5}, "a hidden size of 48 and 5 heads"),
    ],
)
def test_variants_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    save_model(tmp_path / "m", "NomicBertModel", **SIZES)
    with pytest.raises(UnsupportedModel, match=said):
        prepare(_described(tmp_path / "m", **changes), cache_dir=str(tmp_path))


NEW = {"rope_type": "default", "rope_theta": 1000.0}


@pytest.mark.parametrize("kind", ["NomicBertModel", "JinaEmbeddingsV3Model"])
@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ({"partial_rotary_factor": 1.0}, None),
        ({"partial_rotary_factor": 1}, None),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not served; 1 is"),
        ({"rope_type": "yarn", "factor": 4.0}, "rope_type 'yarn' is not served; default is"),
        ({"factor": 4.0}, "factor is 4.0, which is not known here"),
    ],
)
def test_rotations_are_read_or_refused_for_what_they_are(
    tmp_path: Path, kind: str, said: dict[str, Any], refused: str | None
) -> None:
    save_model(tmp_path / "m", kind, **SIZES)
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text()) | {"rope_parameters": NEW | said}
    path.write_text(json.dumps(config))
    if refused is not None:
        with pytest.raises(UnsupportedModel, match=re.escape(refused)):
            prepare(str(tmp_path / "m"), cache_dir=str(tmp_path))
        return
    read = load_manifest(prepare(str(tmp_path / "m"), cache_dir=str(tmp_path))).config
    assert isinstance(read, EncoderConfig)
    assert read.layers.ropes == (RopeSpec(theta=1000.0, dims=SIZES["hidden_size"] // 3),)
