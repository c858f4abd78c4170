"""EncoderConfig and pooling from the metadata of a GGUF file.

Source of the keys: the GGUF specification in the ggml project (docs/gguf.md), and llama.cpp's
converter for BERT, which writes RoBERTa and XLM-RoBERTa as BERT too: it leaves out the rows of
the position table that their padding takes.
"""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.bert_gguf import BERT_FILES
from penstock.families.bert_reading import bert_encoder
from penstock.families.gguf_reading import GGUFMetadata, rounded
from penstock.families.hub_reading import refuse_unknown
from penstock.families.served import ENCODERS, GGUF_ENCODERS
from penstock.formats.fields import Fields, keys_below
from penstock.formats.gguf import GGUFFile
from penstock.model.config import EncoderConfig
from penstock.model.pooling_config import DENSE_TENSORS, DenseLayer, PoolingConfig, PoolingMode
from penstock.prepare.checkpoint import odd_values_refused
from penstock.prepare.hub_encoder_config import check_encoder_config
from penstock.prepare.hub_pooling import MAX_LABELS

MEAN, CLS, LAST, RANK = 1, 2, 3, 4
_MODES: dict[int, PoolingMode] = {0: "mean", MEAN: "mean", CLS: "cls", LAST: "last"}
"""An encoder's modes of pooling by their number. A file that says none (0) gets what
sentence-transformers does then."""
HARMLESS = frozenset({"vocab_size", "rope.scaling.finetuned", "tensor_data_layout", "pooling_type"})
"""Keys that change nothing beyond what others say."""
LABELS = "classifier.output_labels"
INNER, OUTER = "cls.weight", "cls.output.weight"
"""Tensors of a head that classifies texts."""


def is_encoder(file: GGUFFile) -> bool:
    return file.metadata.get("general.architecture") in (BERT_FILES, *GGUF_ENCODERS)


def read_encoder(file: GGUFFile) -> tuple[EncoderConfig, PoolingConfig]:
    """Raises UnsupportedModel for a variant that the blocks of the model can't compute."""
    name = Fields(file.metadata, str(file.path)).text("general.architecture")
    where = f"{file.path}, {name}"
    fields = keys_below(file.metadata, name, file.path)
    if fields.flag("attention.causal", False):
        raise UnsupportedModel(f"{where}: causal attention is not served")
    pooling, ranks = fields.integer("pooling_type", 0), OUTER in file.tensors
    if pooling not in (_MODES if not ranks else (*_MODES, RANK)):
        raise UnsupportedModel(
            f"{where}: pooling_type {pooling} is not served; 1 (mean), 2 (first token) and 3 (last "
            f"token) are, and of files with the tensors {INNER} and {OUTER} 4 (rank)"
        )
    with odd_values_refused(where):
        config = _of_family(file, name, fields) if name in GGUF_ENCODERS else _bert(file, fields)
    check_encoder_config(config, where)
    # llama.cpp's server normalises, and files don't say otherwise.
    longest = min(config.max_position, fields.integer("context_length", config.max_position))
    dense = _dense(file, config.hidden_size)
    found = PoolingConfig(
        mode=_MODES.get(pooling, "cls"),
        normalize=True,
        size=dense[-1].outputs if dense else config.hidden_size,
        max_input=longest if longest > 0 else None,
        dense=dense,
    )
    return config, _ranking(file, config, fields, found) if ranks else _without_head(file, found)


def _without_head(file: GGUFFile, found: PoolingConfig) -> PoolingConfig:
    if INNER in file.tensors:
        raise UnsupportedModel(
            f"{file.path} has {INNER} and no {OUTER}: its head reads a pooler's output, and the "
            "pooler isn't in the file. The hub's folder of the same model has it"
        )
    return found


def _ranking(
    file: GGUFFile, config: EncoderConfig, fields: Fields, found: PoolingConfig
) -> PoolingConfig:
    """What a file with a head says: a text's classes, of which a reranker has one."""
    where, head = str(file.path), ENCODERS[config.family].head
    if head is None:
        raise UnsupportedModel(f"{where}: a classification head of {config.family} is not served")
    if INNER not in file.tensors:
        raise UnsupportedModel(
            f"{where} has {OUTER} and no {INNER}: its head reads a pooler's output, and the pooler "
            "isn't in the file. The hub's folder of the same model has it"
        )
    count = file.tensors[OUTER].shape[0] if len(file.tensors[OUTER].shape) == 2 else 1
    labels = fields.listed(LABELS, str) if LABELS in fields else []
    if len(labels) != count:
        labels = [f"LABEL_{number}" for number in range(count)]
    if not 1 <= count <= MAX_LABELS:
        raise UnsupportedModel(f"{where}: {count} labels; 1 to {MAX_LABELS} are allowed")
    return msgspec.structs.replace(
        found,
        mode=head.pooled,
        normalize=False,
        size=config.hidden_size,
        labels=tuple(labels),
        activation="sigmoid" if count == 1 else "softmax",
        dense=(),
    )


def _of_family(file: GGUFFile, name: str, fields: Fields) -> EncoderConfig:
    """An encoder whose files aren't BERT's."""
    family = GGUF_ENCODERS[name]
    if family.read_gguf is None:
        raise UnsupportedModel(f"{fields.where} can't be read from GGUF files")
    metadata = GGUFMetadata(fields, file.tensors, _rows(file, "token_embd"), name)
    config = family.read_gguf(metadata)
    refuse_unknown(fields, {*HARMLESS, *_OF_DENSE, LABELS})
    return config


def _bert(file: GGUFFile, fields: Fields) -> EncoderConfig:
    types = _rows(file, "token_types") if "token_types.weight" in file.tensors else 0
    # DistilBERT is the one of these models that has no types, and a head of its own.
    family = "distilbert" if OUTER in file.tensors and not types else BERT_FILES
    longest = _rows(file, "position_embd")
    return bert_encoder(
        family,
        vocab_size=_rows(file, "token_embd"),
        hidden_size=fields.integer("embedding_length"),
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count"),
        num_heads=fields.integer("attention.head_count"),
        max_position=longest,
        learned_positions=longest,
        token_types=types,
        layer_norm_eps=rounded(fields.number("attention.layer_norm_epsilon")),
    )


_OF_DENSE = tuple(f"dense_{n}_feat_{side}" for n in (2, 3) for side in ("in", "out"))
"""Keys about dense layers; the tensors say the same."""


def _dense(file: GGUFFile, size: int) -> tuple[DenseLayer, ...]:
    """The products that a vector of `size` numbers goes through."""
    found = []
    for name in DENSE_TENSORS:
        tensor = file.tensors.get(f"{name}.weight")
        if tensor is None:
            continue
        if len(tensor.shape) != 2 or tensor.shape[1] != size:
            raise UnsupportedModel(
                f"{file.path}: {name}.weight has shape {tensor.shape}; {size} inputs are needed"
            )
        outputs, size = tensor.shape[0], tensor.shape[0]
        layer = DenseLayer(
            file=str(file.path), name=name, inputs=tensor.shape[1], outputs=outputs, bias=False
        )
        found.append(layer)
    return tuple(found)


def _rows(file: GGUFFile, name: str) -> int:
    tensor = file.tensors.get(f"{name}.weight")
    if tensor is None or len(tensor.shape) != 2:
        raise UnsupportedModel(f"{file.path}: the tensor {name}.weight is missing, or no matrix")
    return tensor.shape[0]
