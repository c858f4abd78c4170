"""OpenVINO's int4 model of a GGUF file's weights: dequantised, in the hub's format, and from there
by optimum-intel's exporter and NNCF, with the exporter's defaults for int4.

Run it in the environment of the peer `openvino` (`install.sh openvino`):
    PEERS_DIR/openvino/bin/python loadtest/peers/to_openvino.py MODEL.gguf FOLDER
The folder is complete or absent: it is written under another name first.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": ("qwen3_moe", "Qwen3MoeForCausalLM"),
}
"""The hub's model type and class, by a GGUF file's architecture. These models' queries and keys lie
as the hub has them."""
WHOLE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}


def hub_config(fields: dict[str, Any], *, vocabulary: int, tied: bool) -> dict[str, Any]:
    """config.json.  fields: the file's metadata.  Raises KeyError for another architecture."""
    kind = fields["general.architecture"]
    model_type, name = KINDS[kind]

    def said(key: str, other: Any = None) -> Any:
        return fields.get(f"{kind}.{key}", other)

    heads, hidden = said("attention.head_count"), said("embedding_length")
    config = {
        "architectures": [name],
        "model_type": model_type,
        "dtype": "float16",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": said("feed_forward_length"),
        "num_hidden_layers": said("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": said("attention.head_count_kv", heads),
        "head_dim": said("attention.key_length", hidden // heads),
        "max_position_embeddings": said("context_length"),
        "rms_norm_eps": said("attention.layer_norm_rms_epsilon"),
        "rope_theta": said("rope.freq_base", 10_000.0),
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
    }
    if said("expert_count"):
        config |= {
            "num_experts": said("expert_count"),
            "num_experts_per_tok": said("expert_used_count"),
            "moe_intermediate_size": said("expert_feed_forward_length"),
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return config


def hub_tensors(name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """A GGUF tensor under the hub's names; of experts one for each.  Raises KeyError for a name
    that these models don't have."""
    stem, _, end = name.rpartition(".")
    if not stem.startswith("blk."):
        yield f"{WHOLE[stem]}.{end}", values
        return
    _, layer, part = stem.split(".", 2)
    place = f"model.layers.{layer}"
    if part in EXPERTS:
        for number, each in enumerate(values):
            yield f"{place}.mlp.experts.{number}.{EXPERTS[part]}.{end}", each
    else:
        yield f"{place}.{IN_LAYER[part]}.{end}", values


def write_hub(source: Path, folder: Path) -> None:
    """A checkpoint of float16 weights, a file for each GGUF tensor, so that memory holds one of
    them at a time."""
    import gguf
    from safetensors.numpy import save_file

    reader = gguf.GGUFReader(source)
    fields = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("tokenizer.")
    }
    sizes = {tensor.name: tensor.shape for tensor in reader.tensors}
    config = hub_config(
        fields,
        vocabulary=int(sizes["token_embd.weight"][-1]),
        tied="output.weight" not in sizes,
    )
    places: dict[str, str] = {}
    total = 0
    for number, tensor in enumerate(reader.tensors):
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float16)
        found = {
            name: np.ascontiguousarray(each) for name, each in hub_tensors(tensor.name, values)
        }
        file = f"model-{number:05}.safetensors"
        save_file(found, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(found, file)
        total += values.nbytes
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def convert(source: Path, folder: Path) -> None:
    """Raises what the libraries raise for a model that they don't know."""
    from transformers import AutoTokenizer

    partial = folder.with_name(folder.name + ".partial")
    hub = folder.with_name(folder.name + ".hub")
    for each in (partial, hub):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir(parents=True)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
        tokenizer.save_pretrained(hub)
        write_hub(source, hub)
        program = Path(sys.executable).with_name("optimum-cli")
        task = ("--task", "text-generation-with-past", "--weight-format", "int4")
        command = [str(program), "export", "openvino", "--model", str(hub), *task, str(partial)]
        subprocess.run(command, check=True)
        partial.rename(folder)
    finally:
        for each in (partial, hub):
            shutil.rmtree(each, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("folder", type=Path)
    flags = parser.parse_args()
    if not flags.gguf.is_file():
        sys.exit(f"to_openvino: no such file: {flags.gguf}")
    if flags.folder.exists():
        print(f"to_openvino: {flags.folder} is there already")
    else:
        convert(flags.gguf.resolve(), flags.folder.resolve())
        print(f"to_openvino: written {flags.folder}")
