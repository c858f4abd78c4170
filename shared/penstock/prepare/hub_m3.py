"""BGE-M3's further outputs: weights of tokens, and vectors of tokens, by a linear layer each.

Source: Chen et al., "BGE M3-Embedding", 2024, and its repository's files.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.safetensors_file import SafetensorsFile
from penstock.formats.weight_files import find_safetensors
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.pooling_config import DenseLayer, LateInteraction, PoolingConfig, SparseWeights
from penstock.prepare.hub_pooling import MAX_DENSE
from penstock.prepare.hub_tokenizer import HubTokenizer, token_named
from penstock.prepare.pooling_files import VECTORS_OF_TOKENS, WEIGHTS_OF_TOKENS
from penstock.process import logs
from penstock.text.tokenizer import load_backend

log = logs.get(__name__)

WITHOUT_WEIGHT = ("cls_token", "eos_token", "pad_token", "unk_token")


def with_m3(
    path: Path,
    pooling: PoolingConfig | None,
    config: ModelConfig | EncoderConfig,
    tokenizer: HubTokenizer,
    settings: Fields,
) -> PoolingConfig | None:
    """Returns the pooling, with the outputs of the folder's further layers in addition to an
    embedding. settings: of tokenizer_config.json. Raises UnsupportedModel for layers that don't
    fit."""
    if pooling is None or pooling.labels or pooling.late is not None or pooling.sparse is not None:
        return pooling
    if not isinstance(config, EncoderConfig) or config.space is not None:
        return pooling
    weights = _layer(path, WEIGHTS_OF_TOKENS, config.hidden_size)
    vectors = _layer(path, VECTORS_OF_TOKENS, config.hidden_size)
    if weights is not None:
        if weights.outputs != 1:
            raise UnsupportedModel(f"{weights.file}: a token has one weight, not {weights.outputs}")
        ids = load_backend(tokenizer.json).get_vocab(with_added_tokens=True)
        special = {token_named(settings, key, ids) for key in WITHOUT_WEIGHT}
        skipped = tuple(sorted(token for token in special if token is not None))
        sparse = SparseWeights(size=config.vocab_size, tokens=weights, skipped=skipped)
        pooling = msgspec.structs.replace(pooling, sparse=sparse)
    if vectors is not None:
        late = LateInteraction(
            dense=(vectors,), size=vectors.outputs, alone=False, skips_first=True
        )
        pooling = msgspec.structs.replace(pooling, late=late)
    return pooling


def _layer(path: Path, name: str, inputs: int) -> DenseLayer | None:
    """A linear layer in a file of its own, or among the model's tensors; None: there is none that
    can be read."""
    own = path / f"{name}.safetensors"
    for file in (own,) if own.is_file() else find_safetensors(path):
        tensors = SafetensorsFile(file).tensors
        named = [key for key in ("weight", f"{name}.weight") if file == own or "." in key]
        found = next((tensors[key] for key in named if key in tensors), None)
        if found is None:
            continue
        if len(found.shape) != 2 or found.shape[1] != inputs or found.shape[0] > MAX_DENSE:
            raise UnsupportedModel(
                f"{file}: {name} of shape {found.shape} takes no vectors of {inputs} numbers"
            )
        bias = any(key in tensors for key in ("bias", f"{name}.bias"))
        return DenseLayer(
            file=str(file),
            name=name,
            inputs=inputs,
            outputs=found.shape[0],
            bias=bias,
            alone=file == own,
        )
    if own.is_file():
        raise UnsupportedModel(f"{own} holds no tensor named weight or {name}.weight")
    if (path / f"{name}.pt").is_file():
        log.warning(
            "a layer is left out: a pickled file isn't read, its safetensors form is",
            file=str(path / f"{name}.pt"),
            read=own.name,
        )
    return None
