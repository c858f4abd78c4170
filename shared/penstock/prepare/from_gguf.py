"""A GGUF file as a Checkpoint."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.float_types import FLOAT_DTYPES
from penstock.formats.gguf import GGUFFile
from penstock.model_config import GenerationDefaults, WeightFiles
from penstock.prepare.checkpoint import Checkpoint, check_token_ids
from penstock.prepare.gguf_config import read_config
from penstock.prepare.gguf_tokenizer import build_tokenizer


def read_gguf(path: Path) -> Checkpoint:
    """Raises UnsupportedModel if the file is broken or of a kind that isn't served."""
    file = GGUFFile(path)
    fields = Fields(file.metadata, str(path))
    if fields.integer("split.count", 1) > 1:
        raise UnsupportedModel(f"{path} is one part of a split GGUF file; merge the parts first")
    config = read_config(file)
    tokenizer = build_tokenizer(file)
    generation = _generation(fields)
    check_token_ids(generation, config, tokenizer.highest_id, str(path))
    return Checkpoint(
        config=config,
        generation=generation,
        weights=WeightFiles(format="gguf", files=(str(path),), dtype=_dtype(file)),
        tokenizer_json=tokenizer.json,
        chat_template=fields.text("tokenizer.chat_template", ""),
        add_bos=tokenizer.add_bos and generation.bos_token_id is not None,
    )


def _generation(fields: Fields) -> GenerationDefaults:
    """EOS (end of text) comes first, then EOT (end of turn), where they differ."""
    ends = [
        fields.integer(key)
        for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        if key in fields
    ]
    return GenerationDefaults(
        eos_token_ids=tuple(dict.fromkeys(ends)),
        bos_token_id=fields.optional_integer("tokenizer.ggml.bos_token_id"),
        temperature=fields.optional_number("general.sampling.temp"),
        top_p=fields.optional_number("general.sampling.top_p"),
        top_k=fields.optional_integer("general.sampling.top_k"),
        min_p=fields.optional_number("general.sampling.min_p"),
    )


def _dtype(file: GGUFFile) -> str:
    """The type that most bytes of the blocks' matrices have: what people call the file by."""
    sizes: Counter[str] = Counter()
    for name, tensor in file.tensors.items():
        if name.startswith("blk.") and len(tensor.shape) == 2:
            sizes[tensor.type] += tensor.data.nbytes
    if not sizes:
        raise UnsupportedModel(f"{file.path} holds no layers (tensors named blk.*)")
    kind = sizes.most_common(1)[0][0]
    return FLOAT_DTYPES.get(kind, kind)
