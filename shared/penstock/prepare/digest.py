"""A prepared model's digest: by it engine cores, stored KV and receipts know a model."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from penstock.families.finding import package_of
from penstock.model.config import ModelConfig
from penstock.prepare.checkpoint import Checkpoint


def model_digest(checkpoint: Checkpoint, samples: dict[str, bytes]) -> str:
    """Returns the sha256 (hex) over everything that outputs depend on. Paths and times are not part
    of it, so two machines with the same files agree. `samples`: of each file of weights, in their
    order."""
    pooling = checkpoint.pooling
    stated = None if pooling is None else pooling.without_files()
    generation = checkpoint.generation
    ids = (generation.eos_token_ids, generation.suppress_tokens)
    digest = hashlib.sha256(_encoded((checkpoint.config, checkpoint.add_bos, stated, ids)))
    if checkpoint.weights.quantised is not None:
        digest.update(_encoded(checkpoint.weights.quantised))
    if checkpoint.media is not None:
        digest.update(_encoded(checkpoint.media))
    if isinstance(checkpoint.config, ModelConfig):
        digest.update(package_of(checkpoint.config.architecture).encode())
    digest.update(hashlib.sha256(checkpoint.tokenizer_json).digest())
    digest.update(hashlib.sha256(checkpoint.chat_template.encode()).digest())
    for found in samples.values():
        digest.update(found)
    return digest.hexdigest()


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(without_defaults(value), order="sorted")


def without_defaults(value: object) -> Any:
    """Returns dicts, lists and plain values that say what structs say, but for fields that have
    their defaults: a new field changes nothing where it says nothing. So a default never changes
    its meaning; where it must, the field gets another name."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        said = {} if config.tag is None else {f"{config.tag_field}=": config.tag}
        for field in msgspec.structs.fields(type(value)):
            own = without_defaults(getattr(value, field.name))
            if field.required or own != without_defaults(_default(field)):
                said[field.encode_name] = own
        return said
    if isinstance(value, tuple | list):
        return [without_defaults(each) for each in value]
    if isinstance(value, dict):
        return {key: without_defaults(each) for key, each in value.items()}
    return value


def _default(field: msgspec.structs.FieldInfo) -> object:
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else made()
