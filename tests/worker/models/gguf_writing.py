"""What llama.cpp's converter writes of families of models, by its own description of itself: the
keys of `conversion/`, and the tensors' names of the gguf package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import torch
from torch import Tensor

from tests.worker.models import gguf_keys as keys

Writer = gguf.GGUFWriter
Made = Callable[[str, str], Writer]
"""Makes a writer of a path and an architecture."""


@dataclass(frozen=True)
class Conversion:
    """What llama.cpp's converter does beyond renaming."""

    architecture: gguf.MODEL_ARCH
    says: Callable[[Writer, Any], object] = lambda writer, config: None
    """Writes the family's own keys."""
    reads: Callable[[Writer, dict[str, Tensor]], dict[str, Tensor]] = lambda writer, state: state
    """Writes keys that are made of tensors, and returns the other tensors."""
    plus_one: bool = False
    """Whether norms become 1 + weight."""
    permuted: bool = False
    """Whether the rows of q and k are put so that rotary pairs are adjacent."""
    usual_keys: bool = True
    """Whether the keys of any family are written."""
    latents: Literal["one matrix", "by head"] | None = None
    """How the maps of latents to keys and values are stored; None: there are no latents."""
    alternating: bool = False
    """Whether the rows of gate and up alternate in transposed stacks (gpt-oss)."""
    own_parts: Callable[[str, Tensor, dict[str, Tensor]], Iterator[tuple[str, Tensor]]] | None = (
        None
    )
    """The file's tensors in the place of one of transformers'; None: as all families."""
    called: str = ""
    """The file's name of the architecture, where the gguf package lacks it: its tensors are then
    called as those of `architecture` are."""


def add_heads(writer: Writer, config: Any, how: Conversion) -> None:
    if how.latents is None:
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        rope = config.rope_parameters.get("full_attention", config.rope_parameters)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(head)
        writer.add_value_length(head)
        writer.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1.0)))
        return
    head = config.qk_nope_head_dim + config.qk_rope_head_dim
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    if how.latents == "one matrix":
        writer.add_head_count_kv(config.num_attention_heads)
        writer.add_key_length(head)
        writer.add_value_length(config.v_head_dim)
        return
    writer.add_head_count_kv(1)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(head)
    writer.add_value_length_mla(config.v_head_dim)


def by_head(name: str, tensor: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    """Separates tensors as `separated` does, with the maps of latents cut by head, those to keys
    transposed."""
    if not name.endswith("kv_b_proj.weight"):
        yield from separated(name, tensor)
        return
    heads = tensor.view(config.num_attention_heads, -1, config.kv_lora_rank)
    stem = name.removesuffix("kv_b_proj.weight")
    yield f"{stem}k_b_proj.weight", heads[:, : config.qk_nope_head_dim].transpose(1, 2)
    yield f"{stem}v_b_proj.weight", heads[:, config.qk_nope_head_dim :]


def of_granite(name: str, tensor: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Cuts what has gate and up. What every token has is the layer's feed-forward if there is
    nothing else."""
    shared = "shared_expert." if any("block_sparse_moe." in each for each in state) else ""
    stem, _, part = name.partition("shared_mlp.")
    if part == "input_linear.weight":
        for ours, values in zip(("gate_proj", "up_proj"), tensor.chunk(2), strict=True):
            yield f"{stem}mlp.{shared}{ours}.weight", values
    elif part:
        yield f"{stem}mlp.{shared}down_proj.weight", tensor
    else:
        yield from separated(
            name.replace("block_sparse_moe.router", "mlp.gate").replace("block_sparse_moe", "mlp"),
            tensor,
        )


def one_by_one(name: str, tensor: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Experts as Mixtral's files had them before April 2024."""
    for stacked_name, values in separated(name, tensor):
        if ".experts." not in stacked_name:
            yield stacked_name, values
            continue
        layer, part = stacked_name.split(".")[2], stacked_name.split(".")[-2].removesuffix("_proj")
        for number, matrix in enumerate(values):
            yield f"blk.{layer}.ffn_{part}.{number}.weight", matrix


def of_llama4(name: str, tensor: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    turned = tensor.transpose(1, 2) if "experts." in name and tensor.dim() == 3 else tensor
    yield from separated(name, turned)


def of_bitnet(name: str, tensor: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The converter knows the names of the first release, 1bitLLM's."""
    name = name.replace("attn_sub_norm", "inner_attn_ln").replace("ffn_sub_norm", "ffn_layernorm")
    yield from separated(name, tensor)


def of_dbrx(name: str, tensor: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Cuts what has all experts' matrices one below the other, as many as the router chooses
    from."""
    if ".experts." not in name:
        yield name, tensor
        return
    router = f"{name.partition('.experts.')[0]}.router.layer.weight"
    stack = tensor.unflatten(0, (len(state[router]), -1))
    yield f"{name}.weight", stack.transpose(1, 2) if name.endswith(".w2") else stack


def of_ernie(name: str, tensor: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    yield from separated(name.replace("mlp.gate.moe_statics", "mlp.moe_statics"), tensor)


def of_trinity(name: str, tensor: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    yield from separated(name.replace(".expert_bias", ".expert_bias.bias"), tensor)


def of_mimo(name: str, tensor: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    yield from separated(f"{name}.weight" if name.endswith("sinks") else name, tensor)


def of_hy_v3(name: str, tensor: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for theirs, known in (
        ("mlp.router.gate", "mlp.gate"),
        ("mlp.expert_bias", "mlp.gate.e_score_correction.bias"),
        ("mlp.shared_mlp.", "mlp.shared_experts."),
    ):
        name = name.replace(theirs, known)
    yield from separated(name, tensor)


def of_granite_swa(
    name: str, tensor: Tensor, state: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """What every token has keeps gate and up in one."""
    stem, sinks, _ = name.partition("self_attn.sinks")
    if sinks:
        yield f"blk.{stem.split('.')[2]}.attn_sinks.weight", tensor
    elif "shared_mlp.input_linear" in name:
        yield f"blk.{name.split('.')[2]}.ffn_up_shexp.weight", tensor
    elif "block_sparse_moe.router" in name:
        yield name.replace("block_sparse_moe.router", "mlp.gate"), tensor
    else:
        yield from of_granite(name, tensor, state)


def of_muse(name: str, tensor: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Norms of layers become 1 + weight, and those of queries hold a factor of scores."""
    if "layernorm" in name:
        tensor = tensor + 1
    stem, _, part = name.partition("self_attn.")
    if part == "q_proj.weight":
        size = len(state[f"{stem}self_attn.k_proj.weight"]) // 2  # of two heads
        for norm, factor in (("q_norm", 3.87), ("k_norm", 1.0)):
            yield f"{stem}self_attn.{norm}.weight", torch.full((size,), factor)
    yield name, tensor


ARCH = gguf.MODEL_ARCH


def adjacent(rows: Tensor, heads: int) -> Tensor:
    """The two rows of a rotary pair one after the other."""
    return rows.view(heads, 2, rows.shape[0] // heads // 2, -1).transpose(1, 2).reshape(rows.shape)


def separated(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The matrices that this release of transformers keeps as one for all experts, as the files of
    the hub have them."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        yield name.replace("correction_bias", "correction.bias"), tensor
        return
    if name.endswith("down_proj"):
        yield f"{name}.weight", tensor
        return
    for part, values in zip(("gate_proj", "up_proj"), tensor.chunk(2, dim=1), strict=True):
        yield f"{name.removesuffix('gate_up_proj')}{part}.weight", values


def unstacked(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Separates gpt-oss's tensors as `separated` does; its sinks are called weights besides."""
    stem = name.removesuffix("_bias")
    kind = "bias" if stem != name else "weight"
    if stem.endswith("experts.down_proj"):
        yield f"{stem}.{kind}", tensor if kind == "bias" else tensor.transpose(1, 2)
    elif stem.endswith("experts.gate_up_proj"):
        whole = tensor if kind == "bias" else tensor.transpose(1, 2)
        for first, part in enumerate(("gate_proj", "up_proj")):
            yield f"{stem.removesuffix('gate_up_proj')}{part}.{kind}", whole[:, first::2]
    else:
        yield f"{name}.weight" if name.endswith("sinks") else name, tensor


def write(path: Path, theirs: Any, how: Conversion, made: Made = Writer) -> None:
    config = theirs.config
    config.allow_global_per_layer_attribute_access = True  # of Gemma 4
    writer = made(str(path), how.called or gguf.MODEL_ARCH_NAMES[how.architecture])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    add_heads(writer, config, how)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if how.usual_keys:
        keys.of_all(writer, config)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    how.says(writer, config)
    names = gguf.get_tensor_name_map(how.architecture, config.num_hidden_layers)
    tied = getattr(config, "tie_word_embeddings", False)
    for theirs_name, whole in how.reads(writer, theirs.state_dict()).items():
        if tied and theirs_name == "lm_head.weight":
            continue
        parts = (unstacked if how.alternating else separated)(theirs_name, whole)
        if how.own_parts is not None:
            parts = how.own_parts(theirs_name, whole, theirs.state_dict())
        if how.latents == "by head":
            parts = by_head(theirs_name, whole, config)
        for name, tensor in parts:
            if how.plus_one and name.endswith("norm.weight"):
                tensor = tensor + 1
            for part, heads in (
                ("q_proj.", config.num_attention_heads),
                ("k_proj.", config.num_key_value_heads),
            ):
                if how.permuted and part in name:
                    tensor = adjacent(tensor, heads)
            found = names.get_name(name, try_suffixes=(".weight", ".bias"))
            found = name if name.startswith("blk.") else found
            assert found is not None, name
            writer.add_tensor(found, tensor.contiguous().float().numpy())
    finish(writer)


def finish(writer: Writer) -> None:
    """Writes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
