"""ModelConfig from the metadata of a GGUF file.

Source of the keys: the GGUF specification in the ggml project (docs/gguf.md).
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import GGUF_ARCHITECTURES, MODEL_NAMES, Family
from penstock.families.finding import family_of_gguf
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.hub_reading import refuse_unknown
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile
from penstock.model.config import ModelConfig
from penstock.prepare.checkpoint import check_config
from penstock.prepare.odd_values import odd_values_refused


def read_config(file: GGUFFile) -> ModelConfig:
    """Raises UnsupportedModel for another architecture, or for a variant of one of ours that can't
    be computed."""
    where = str(file.path)
    name = Fields(file.metadata, where).text("general.architecture")
    family = _family(name, where)
    begin = f"{name}."
    keys = Fields(
        {
            key.removeprefix(begin): value
            for key, value in file.metadata.items()
            if key.startswith(begin)
        },
        f"{where}, {name}",
    )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise UnsupportedModel(f"{where}: the tensor token_embd.weight is missing")
    if family.read_gguf is None:
        raise UnsupportedModel(f"{where}: {family.known_as} can't be read from GGUF files")
    with odd_values_refused(where):
        config = family.read_gguf(GGUFMetadata(keys, file.tensors, embedding.shape[0]))
    _refuse_variants(keys)
    return check_config(config, where)


def _family(name: str, where: str) -> Family:
    family = family_of_gguf(name)
    if family is None:
        raise UnsupportedModel(
            f"{where}: the architecture {name!r} is not served; "
            f"GGUF files of {', '.join(GGUF_ARCHITECTURES)} are ({MODEL_NAMES})"
        )
    return family


HARMLESS = frozenset({"vocab_size", "rope.scaling.finetuned", "tensor_data_layout", "pooling_type"})
"""Keys that change nothing beyond what others say."""


def _refuse_variants(keys: Fields) -> None:
    if "attention.causal" in keys and not keys.flag("attention.causal"):
        raise UnsupportedModel(
            f"{keys.where}: models without causal attention are pooling models, "
            "which are not served yet"
        )
    window = keys.values.get("attention.sliding_window")
    if isinstance(window, int) and window >= keys.integer("context_length"):
        keys.ignore("attention.sliding_window")
    for key in ("logit_scale", "embedding_scale", "residual_scale", "attention.scale"):
        if keys.values.get(key) == 1.0:
            keys.ignore(key)
    refuse_unknown(keys, HARMLESS)
