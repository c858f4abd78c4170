"""EncoderConfig and pooling from the metadata of a GGUF file.

Source of the keys: the GGUF specification in the ggml project (docs/gguf.md), and llama.cpp's
converter for BERT, which writes RoBERTa and XLM-RoBERTa as BERT too: it leaves out the rows of the
position table that their padding takes.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.pooling_config import PoolingConfig
from penstock.prepare.encoder_config import check_encoder_config

ARCHITECTURE = "bert"
_MEAN, _CLS, _LAST = 1, 2, 3
_MODES = {0: "mean", _MEAN: "mean", _CLS: "cls"}
"""An encoder's modes of pooling by their number. A file that says none (0) gets what
sentence-transformers does then."""


def is_encoder(file: GGUFFile) -> bool:
    return file.metadata.get("general.architecture") == ARCHITECTURE


def read_encoder(file: GGUFFile) -> tuple[EncoderConfig, PoolingConfig]:
    """Raises UnsupportedModel for a variant that the blocks of the model can't compute."""
    where = f"{file.path}, {ARCHITECTURE}"
    fields = _of_architecture(file, ARCHITECTURE)
    if fields.flag("attention.causal", False):
        raise UnsupportedModel(f"{where}: causal attention is not served")
    pooling = fields.integer("pooling_type", 0)
    if pooling not in _MODES:
        raise UnsupportedModel(
            f"{where}: pooling_type {pooling} is not served; 1 (mean) and 2 (first token) are"
        )
    words, positions = _rows(file, "token_embd"), _rows(file, "position_embd")
    config = EncoderConfig(
        family=ARCHITECTURE,
        vocab_size=words,
        hidden_size=fields.integer("embedding_length"),
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count"),
        num_heads=fields.integer("attention.head_count"),
        max_position=positions,
        token_types=_rows(file, "token_types") if "token_types.weight" in file.tensors else 0,
        # A float32 as the short decimal that it was written as.
        layer_norm_eps=float(f"{fields.number('attention.layer_norm_epsilon'):.7g}"),
    )
    check_encoder_config(config, where)
    # llama.cpp's server normalises, and files don't say otherwise.
    longest = min(positions, fields.integer("context_length", positions))
    return config, PoolingConfig(
        mode=_MODES[pooling],  # type: ignore[arg-type]
        normalize=True,
        size=config.hidden_size,
        max_input=longest if longest > 0 else None,
    )


def read_decoder_pooling(file: GGUFFile, config: ModelConfig) -> PoolingConfig | None:
    """None for a model that generates text. Raises UnsupportedModel for another pooling than that
    of the last token."""
    fields = _of_architecture(file, config.architecture)
    kind = fields.integer("pooling_type", 0)
    if kind == 0:
        return None
    if kind != _LAST:
        raise UnsupportedModel(
            f"{fields.where}: pooling_type {kind} over a decoder is not served; 3 (last token) is"
        )
    return PoolingConfig(mode="last", normalize=True, size=config.hidden_size)


def _of_architecture(file: GGUFFile, name: str) -> Fields:
    prefix = f"{name}."
    found = {
        key.removeprefix(prefix): value
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }
    return Fields(found, f"{file.path}, {name}")


def _rows(file: GGUFFile, name: str) -> int:
    tensor = file.tensors.get(f"{name}.weight")
    if tensor is None or len(tensor.shape) != 2:
        raise UnsupportedModel(f"{file.path}: the tensor {name}.weight is missing, or no matrix")
    return tensor.shape[0]
