"""Says what there is to know of a model before it is loaded: `penstock show`."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Literal

import msgspec

from penstock.families.gguf_reading import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS
from penstock.families.served import HUB_CLASSES
from penstock.formats.gguf import GGUFFile
from penstock.formats.safetensors_file import SafetensorsFile
from penstock.model.compressed_kv import entry_numbers, token_numbers
from penstock.model.config import EncoderConfig, ModelConfig, TransformersConfig
from penstock.model.kv_layout import (
    block_numbers,
    blocks_needed,
    compressed_specs,
    kv_groups,
    kv_layout,
    kv_numbers,
    layers_that_read,
    state_bytes,
)
from penstock.model.prepared_model import PreparedModel
from penstock.parsing.registry import chosen
from penstock.prepare.checkpoint_size import PACKED

MAX_CARD_BYTES = 65_536
BLOCK_SIZE = 16
"""Tokens of a KV block, by default."""
KV_BYTES = 2
"""Bytes of a number in the KV cache: bfloat16, which is its default but for float32 models."""


class DescribedExperts(msgspec.Struct, frozen=True, kw_only=True):
    """The experts that routers choose from."""

    layers: int
    """Layers that have some."""
    count: int
    """DescribedExperts of the layer that has fewest."""
    active: int
    """DescribedExperts of a token in that layer."""
    parameters: int
    """Numbers of all matrices of all experts."""


class ExpertBytes(msgspec.Struct, frozen=True):
    """What the matrices of routed experts take."""

    file: int
    """In the model's files."""
    host: int
    """In the CPU kernels' layout."""
    card: int
    """As a card's kernels hold them: IQ4_XS and Q2_K take twice the file's."""


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """implementation: whose code computes it.  parameters: numbers in the weights; None where they
    are packed in a way that hides how many.  size: bytes of the weights' files.  cpu_bytes: of
    their matrices as the CPU kernels hold them; None where that is unknown before they are loaded.
    refused: why a worker won't load the files; empty if it will, None where none is installed.
    kv_bytes_per_token: 0 for a model without a KV cache.
    kv_bytes: of a sequence that fills the context, where layers with a window keep that alone; with
    the checkpoints of its states.  state_bytes: of a sequence's states in recurrent layers.
    licence: empty where the files state none."""

    name: str
    source: str
    family: str
    implementation: Literal["penstock", "transformers"]
    pooling: bool
    parameters: int | None
    layers: int
    context: int
    format: str
    weights: str
    size: int
    kv_bytes_per_token: int
    kv_bytes: int
    state_bytes: int
    licence: str
    chat_template: bool
    tool_call_parser: str
    """What `auto` recognises; empty without a chat template."""
    reasoning_parser: str
    folder: str
    files: tuple[str, ...]
    experts: DescribedExperts | None = None
    """None for a model without."""
    cpu_bytes: int | None = None
    refused: str | None = None


def describe(folder: Path, model: PreparedModel) -> Description:
    """folder: the model's prepared one. Reads the headers of its weights. Raises UnsupportedModel
    or ModelNotFound."""
    files = [Path(file) for file in model.weights.files]
    packed = _is_gguf(model)
    formats = {"tool_call_parser": "", "reasoning_parser": ""}
    if model.has_chat_template:
        template = (folder / "chat_template.jinja").read_text("utf-8", "replace")
        formats = chosen("auto", "auto", template, model.family)
    return Description(
        name=model.name,
        source=model.source,
        family=model.family,
        implementation=_implementation(model),
        pooling=model.pooling is not None,
        parameters=_gguf_parameters(files) if packed else _safetensors_parameters(files),
        layers=model.config.num_layers,
        context=model.config.max_position,
        format="GGUF" if packed else "safetensors",
        weights=model.weights.mixture or model.weights.dtype,
        size=sum(file.stat().st_size for file in files),
        kv_bytes_per_token=kv_bytes_per_token(model.config, model.weights.dtype),
        kv_bytes=kv_bytes(model.config, model.weights.dtype),
        state_bytes=0 if isinstance(model.config, EncoderConfig) else state_bytes(model.config),
        licence=_licence(files, packed),
        chat_template=model.has_chat_template,
        tool_call_parser=formats["tool_call_parser"],
        reasoning_parser=formats["reasoning_parser"],
        folder=str(folder),
        files=model.weights.files,
        experts=experts_of(model.config),
    )


def experts_of(config: object) -> DescribedExperts | None:
    """Returns what there is to know of a model's experts; None: its layers have none."""
    if not isinstance(config, ModelConfig):
        return None
    specs = [config.layer(number).feed_forward for number in range(config.num_layers)]
    found = [(spec, spec.experts) for spec in specs if spec.experts is not None]
    if not found:
        return None
    least = min((experts for _, experts in found), key=lambda experts: experts.count)
    return DescribedExperts(
        layers=len(found),
        count=least.count,
        active=least.active,
        parameters=sum(
            experts.count * (3 if spec.gated else 2) * each
            for spec, experts in found
            for each in [experts.inner * (experts.latent or config.hidden_size)]
        ),
    )


def _implementation(model: PreparedModel) -> Literal["penstock", "transformers"]:
    return "transformers" if isinstance(model.config, TransformersConfig) else "penstock"


def computed_by(model: PreparedModel) -> str:
    """Whose code will compute the model, and what that costs."""
    if not isinstance(model.config, TransformersConfig):
        return f"Penstock's family {model.family}"
    why = "as no family describes the model"
    if model.config.architecture in HUB_CLASSES:
        why = "although a family describes the model"
    return f"transformers' code, {why}: slower, on the CPU, by one rank"


def kv_bytes_per_token(config: ModelConfig | EncoderConfig, dtype: str) -> int:
    """Keys and values of all layers, as the KV cache's default type has them."""
    if isinstance(config, EncoderConfig):
        return 0
    reads = layers_that_read(config)
    own = [
        config.kv_heads(number)
        for number in range(config.num_layers)
        if number not in reads and config.layer(number).attends
    ]
    numbers = sum(kv_numbers(config, heads.count * heads.size) for heads in own)
    specs = compressed_specs(config)
    if specs:
        head, size = config.head_dim, BLOCK_SIZE
        kept = sum(entry_numbers(each, head, size) for each in specs)
        numbers = sum(token_numbers(each, head) for each in specs) - (-kept // size)
    return numbers * kv_number_bytes(dtype)


def kv_bytes(config: ModelConfig | EncoderConfig, dtype: str) -> int:
    """Keys and values of a sequence that fills the context, in blocks of the usual size."""
    if isinstance(config, EncoderConfig):
        return 0
    longest, number_bytes = config.max_position, kv_number_bytes(dtype)
    blocks = blocks_needed(
        kv_groups(config, number_bytes, longest, BLOCK_SIZE), longest, BLOCK_SIZE
    )
    layout = kv_layout(config, longest)
    return blocks * block_numbers(config, layout, BLOCK_SIZE) * number_bytes


def kv_number_bytes(dtype: str) -> int:
    """Bytes of a number in the KV cache, by default. dtype: of the model's weights."""
    return 4 if dtype == "float32" else KV_BYTES


def _is_gguf(model: PreparedModel) -> bool:
    return model.weights.format == "gguf"


def _gguf_parameters(files: list[Path]) -> int:
    return sum(
        math.prod(tensor.shape)
        for file in files
        for tensor in GGUFFile(file, vocabulary=False).tensors.values()
        if tensor.name not in (ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS)
    )


def _safetensors_parameters(files: list[Path]) -> int | None:
    tensors = [tensor for file in files for tensor in SafetensorsFile(file).tensors.values()]
    if any(tensor.dtype in PACKED and len(tensor.shape) == 2 for tensor in tensors):
        return None
    return sum(math.prod(tensor.shape) for tensor in tensors)


def _licence(files: list[Path], packed: bool) -> str:
    if packed:
        stated = GGUFFile(files[0], vocabulary=False).metadata.get("general.license")
        if isinstance(stated, str) and stated:
            return stated
    return card_licence(files[0].parent / "README.md")


def card_licence(card: Path) -> str:
    """`license:` of the settings that a model's card begins with; empty if there is none."""
    try:
        with open(card, encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_CARD_BYTES)
    except OSError:
        return ""
    head = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    found = (
        re.search(r"^license:\s*['\"]?([\w.+ -]{1,80})", head[1], re.MULTILINE) if head else None
    )
    return found[1].strip() if found else ""
