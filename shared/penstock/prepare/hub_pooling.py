"""How a hub folder's vectors are made: its sentence-transformers files, or its classification head.

Source of the keys: the module configurations of the sentence-transformers library, and
transformers' sequence classification heads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.hub_reading import refuse_unknown
from penstock.families.served import HUB_CLASSES
from penstock.families.vision.served import VISION_CLASSES
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.pooling_config import (
    Activation,
    DenseActivation,
    DenseLayer,
    PoolingConfig,
    PoolingMode,
    SparseWeights,
)
from penstock.prepare.pooling_files import (
    DENSE_WEIGHTS,
    LATE_SETTINGS,
    MODULES,
    SENTENCE_CONFIG,
    inside,
    read_modules,
    read_settings,
)

MAX_LABELS = 65_536
MOST_PROMPTS = 256
LONGEST_PROMPT = 8192
MAX_DENSE = 65_536
"""Outputs of a dense layer over a vector."""

CLASSIFIES = "ForSequenceClassification"
CLASSIFIES_TOKENS = "ForTokenClassification"

SPLADE = "SpladePooling"

_FLAGS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_OTHER_FLAGS = ("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
_MODES: dict[str, PoolingMode] = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
_ACTIVATIONS: dict[str, DenseActivation] = {"identity": "identity", "tanh": "tanh"}


def read_pooling(
    path: Path, stated: Fields, config: ModelConfig | EncoderConfig
) -> PoolingConfig | None:
    """None for a model that generates text. Raises UnsupportedModel for what can't be computed."""
    found = _pooling(path, stated, config)
    if found is None or found.labels:
        return found
    return msgspec.structs.replace(found, prompts=_prompts(path / LATE_SETTINGS))


def _prompts(file: Path) -> tuple[tuple[str, str], ...]:
    """Returns names and texts of the prompts that sentence-transformers would put in front of
    texts, without empty ones."""
    stated = read_settings(file).values.get("prompts")
    if not isinstance(stated, dict):
        return ()
    found = [
        (name, text)
        for name, text in stated.items()
        if isinstance(name, str) and isinstance(text, str) and len(text) <= LONGEST_PROMPT
    ]
    return tuple(found[:MOST_PROMPTS])


def _pooling(
    path: Path, stated: Fields, config: ModelConfig | EncoderConfig
) -> PoolingConfig | None:
    listed = stated.values.get("architectures")
    names = [str(name) for name in listed] if isinstance(listed, list) else []
    size = config.hidden_size
    longest = read_settings(path / SENTENCE_CONFIG).optional_integer("max_seq_length")
    if longest is not None and longest < 1:
        raise UnsupportedModel(f"{path / SENTENCE_CONFIG}: max_seq_length is {longest}")
    encoder = isinstance(config, EncoderConfig)
    if isinstance(config, EncoderConfig) and config.space is not None:
        return PoolingConfig(mode="last", normalize=True, size=config.space.size, max_input=longest)
    if any(name.endswith(CLASSIFIES) for name in names):
        labels = _labels(stated)
        return PoolingConfig(
            mode=_classifier_mode(stated) if encoder else "last",
            normalize=False,
            size=size,
            labels=labels,
            activation=_activation(stated, len(labels)),
            max_input=longest,
        )
    if encoder and any(name.endswith(CLASSIFIES_TOKENS) for name in names):
        return PoolingConfig(
            mode="cls",
            normalize=False,
            size=size,
            labels=_labels(stated),
            activation="softmax",
            max_input=longest,
            by_token=True,
        )
    if (path / MODULES).is_file():
        return _from_modules(path, stated, config, longest)
    if encoder:
        # What sentence-transformers does with a folder that says nothing.
        return PoolingConfig(mode="mean", normalize=False, size=size, max_input=longest)
    # ChatGLMModel and Qwen2_5OmniModel are ones that do.
    decodes = any(name in HUB_CLASSES or name in VISION_CLASSES for name in names)
    if not decodes and any(
        name.endswith("Model") and not name.endswith("LMHeadModel") for name in names
    ):
        return default_for_decoders(config)
    return None


def _classifier_mode(stated: Fields) -> PoolingMode:
    """What an encoder's classification head sees: the first token, unless ModernBERT says so."""
    named, key = stated.text("classifier_pooling", "cls"), "classifier_pooling"
    if named not in ("cls", "mean"):
        raise stated.wrong(key, "cls or mean")
    return "mean" if named == "mean" else "cls"


def default_for_decoders(config: ModelConfig | EncoderConfig) -> PoolingConfig:
    """Pooling of a decoder whose folder says nothing: the last token has seen all others."""
    return PoolingConfig(mode="last", normalize=True, size=config.hidden_size)


def _from_modules(
    path: Path, stated: Fields, config: ModelConfig | EncoderConfig, longest: int | None
) -> PoolingConfig:
    modules = read_modules(path)
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if SPLADE in kinds:
        return _splade(path, modules, kinds, config, longest)
    mode: PoolingMode | None = None
    normalize = False
    dense: list[DenseLayer] = []
    for module, kind in zip(modules, kinds, strict=True):
        if kind == "Pooling":
            mode = _mode(read_settings(inside(path, module) / "config.json"))
        elif kind == "Normalize":
            normalize = True
        elif kind == "Dense":
            width = dense[-1].outputs if dense else config.hidden_size
            dense.append(read_dense(inside(path, module), width))
        elif kind not in ("Transformer", "Dropout"):
            raise UnsupportedModel(
                f"{path / MODULES}: a module of type {kind!r} is not served; Transformer, "
                "Pooling, Dense and Normalize are"
            )
    if mode is None:
        raise UnsupportedModel(f"{path / MODULES} names no Pooling module")
    if mode != "last" and not isinstance(config, EncoderConfig):
        raise UnsupportedModel(
            f"{path / MODULES}: pooling {mode!r} over a decoder is not served; lasttoken is"
        )
    size = dense[-1].outputs if dense else config.hidden_size
    named = "matryoshka_dimensions"
    dimensions = tuple(stated.listed(named, int)) if named in stated else ()
    return PoolingConfig(
        mode=mode,
        normalize=normalize,
        size=size,
        dimensions=tuple(sorted(d for d in dimensions if 0 < d <= size)),
        max_input=longest,
        dense=tuple(dense),
    )


def _splade(
    path: Path,
    modules: list[dict[str, Any]],
    kinds: list[str],
    config: ModelConfig | EncoderConfig,
    longest: int | None,
) -> PoolingConfig:
    others = [kind for kind in kinds if kind not in (SPLADE, "MLMTransformer", "Transformer")]
    if others or not isinstance(config, EncoderConfig):
        raise UnsupportedModel(
            f"{path / MODULES}: {SPLADE} is served after an encoder alone, not with "
            f"{', '.join(others) or 'a decoder'}"
        )
    fields = read_settings(inside(path, modules[kinds.index(SPLADE)]) / "config.json")
    strategy = fields.text("pooling_strategy", "max")
    activation = fields.text("activation_function", "relu")
    if strategy not in ("max", "sum"):
        raise fields.wrong("pooling_strategy", "max or sum")
    if activation not in ("relu", "log1p_relu"):
        raise fields.wrong("activation_function", "relu or log1p_relu")
    sparse = SparseWeights(
        size=config.vocab_size, adds=strategy == "sum", twice=activation == "log1p_relu"
    )
    return PoolingConfig(
        mode="cls", normalize=False, size=config.hidden_size, max_input=longest, sparse=sparse
    )


def dense_of(path: Path, modules: list[dict[str, Any]], size: int) -> tuple[DenseLayer, ...]:
    """Returns the modules of type Dense, of which the first gets `size` numbers. A Transformer is
    ignored. Raises UnsupportedModel for other modules."""
    dense: list[DenseLayer] = []
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Dense":
            dense.append(read_dense(inside(path, module), dense[-1].outputs if dense else size))
        elif kind != "Transformer":
            raise UnsupportedModel(
                f"{path / MODULES}: a module of type {kind!r} is not served for late interaction; "
                "Transformer and Dense are"
            )
    return tuple(dense)


def read_dense(folder: Path, inputs: int) -> DenseLayer:
    """A module of type Dense, which gets `inputs` numbers. Raises UnsupportedModel for one that
    can't be computed."""
    fields, weights = read_settings(folder / "config.json"), folder / DENSE_WEIGHTS
    named = fields.text("activation_function", "torch.nn.modules.activation.Tanh")
    kind = named.rpartition(".")[2].lower()
    if kind not in _ACTIVATIONS:
        raise UnsupportedModel(
            f"{fields.where}: the activation {named!r} is not served; Identity and Tanh are"
        )
    outputs = fields.integer("out_features")
    if fields.integer("in_features") != inputs or not 1 <= outputs <= MAX_DENSE:
        raise UnsupportedModel(
            f"{fields.where}: {fields.integer('in_features')} x {outputs} is no layer for vectors "
            f"of {inputs} numbers; at most {MAX_DENSE} outputs are allowed"
        )
    if not weights.is_file():
        raise UnsupportedModel(f"{folder} holds no {DENSE_WEIGHTS}")
    for key in ("module_input_name", "module_output_name"):
        if fields.values.get(key) not in (None, "sentence_embedding", "token_embeddings"):
            raise fields.wrong(key, "sentence_embedding or token_embeddings")
    layer = DenseLayer(
        file=str(weights),
        inputs=inputs,
        outputs=outputs,
        bias=fields.flag("bias", True),
        activation=_ACTIVATIONS[kind],
        residual=fields.flag("use_residual", False),
    )
    fields.ignore("module_input_name", "module_output_name")
    refuse_unknown(fields, frozenset())
    return layer


def _mode(pooling: Fields) -> PoolingMode:
    if isinstance(pooling.values.get("pooling_mode"), str):
        named = pooling.text("pooling_mode")
        if named not in _MODES:
            raise UnsupportedModel(
                f"{pooling.where}: pooling_mode {named!r} is not served; {', '.join(_MODES)} are"
            )
        return _MODES[named]
    flags = [flag for flag in (*_FLAGS, *_OTHER_FLAGS) if pooling.flag(flag, False)]
    if len(flags) != 1 or flags[0] not in _FLAGS:
        raise UnsupportedModel(
            f"{pooling.where}: pooling by {' and '.join(flags) or 'nothing'} is not served; one of "
            f"{', '.join(_FLAGS)} is"
        )
    return _FLAGS[flags[0]]


def _labels(stated: Fields) -> tuple[str, ...]:
    named = stated.section("id2label").values
    count = stated.integer("num_labels", len(named) or 2)
    if not 1 <= count <= MAX_LABELS:
        raise UnsupportedModel(f"{stated.where}: {count} labels; 1 to {MAX_LABELS} are allowed")
    return tuple(str(named.get(str(index), f"LABEL_{index}")) for index in range(count))


def _activation(stated: Fields, labels: int) -> Activation:
    """What makes scores of a head's numbers: said for cross-encoders by sentence-transformers, else
    by transformers' problem_type."""
    named = stated.values.get("sbert_ce_default_activation_function")
    named = stated.section("sentence_transformers").values.get("activation_fn", named)
    if isinstance(named, str):
        kind = named.rpartition(".")[2].lower()
        if kind not in ("identity", "sigmoid", "softmax"):
            raise UnsupportedModel(f"{stated.where}: the activation {named!r} is not served")
        return kind  # type: ignore[return-value]
    problem = stated.text("problem_type", "")
    if problem == "regression":
        return "identity"
    if problem == "multi_label_classification" or labels == 1:
        return "sigmoid"
    return "softmax"
