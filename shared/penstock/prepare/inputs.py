"""The files that a model is read from, whose change makes its prepared folder stale.

Apart from the readers, which need numpy and tokenizers: whether a folder is there already can be
said without them.
"""

from __future__ import annotations

from pathlib import Path

from penstock.formats.gguf_names import part_paths
from penstock.formats.weight_files import INDEX_FILE
from penstock.hub.selection import BESIDE_SLOW_TOKENIZERS, SLOW_TOKENIZERS
from penstock.prepare.pooling_files import pooling_inputs
from penstock.prepare.resolve import ResolvedModel

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
ADDED_TOKENS = "added_tokens.json"
SPECIAL_TOKENS = "special_tokens_map.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
TEMPLATE_JSON = "chat_template.json"
NAMED_TEMPLATES = {name: f"additional_chat_templates/{name}.jinja" for name in ("tool_use", "rag")}
PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"
VIDEO_PREPROCESSOR = "video_preprocessor_config.json"
MODELOPT_FILE = "hf_quant_config.json"
MAX_JSON_BYTES = 8 << 20
"""Most bytes of each of the JSON files but the tokenizer's."""


def inputs_of(found: ResolvedModel) -> list[Path]:
    """All existing files that the model is prepared from."""
    own = (gguf_inputs if found.kind == "gguf" else folder_inputs)(found.path)
    return own if found.mmproj is None else [*own, found.mmproj]


def gguf_inputs(path: Path) -> list[Path]:
    """Files of a model in a .gguf file: all parts of a split one."""
    return part_paths(path)


def folder_inputs(path: Path) -> list[Path]:
    """Files of a model in a folder in the hub's format."""
    small = [
        path / name
        for name in (
            CONFIG,
            GENERATION_CONFIG,
            TOKENIZER,
            TOKENIZER_CONFIG,
            ADDED_TOKENS,
            SPECIAL_TOKENS,
            TEMPLATE,
            TEMPLATE_JSON,
            *NAMED_TEMPLATES.values(),
            PREPROCESSOR,
            PROCESSOR,
            VIDEO_PREPROCESSOR,
            MODELOPT_FILE,
            INDEX_FILE,
        )
    ]
    named = [file for file in small if file.exists()] + pooling_inputs(path)
    if not (path / TOKENIZER).exists():
        slow = (*SLOW_TOKENIZERS, *BESIDE_SLOW_TOKENIZERS)
        named += [file for name in slow for file in sorted(path.glob(name))]
    return named + sorted(path.glob("*.safetensors"))
