"""What transformers and llama.cpp register: each class and architecture is served by a family, or
stands in unserved.toml with the reason why not."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import gguf
from transformers.models.auto import modeling_auto

from penstock.families.eagle3 import HEAD_CLASSES
from penstock.families.family import EncoderFamily
from penstock.families.gemma4_assistant import CLASSES as ASSISTANTS
from penstock.families.gemma4_assistant import GGUF_ASSISTANT
from penstock.families.served import (
    AUDIO_CLASSES,
    ENCODER_TYPES,
    GGUF_ARCHITECTURES,
    GGUF_ENCODERS,
    HUB_CLASSES,
)
from penstock.families.vision.served import VISION_CLASSES
from penstock.prepare.gguf_encoders import BERT_FILES
from penstock.prepare.hub_config import POOLING_CLASSES
from penstock.prepare.hub_pooling import CLASSIFIES, CLASSIFIES_TOKENS

FOLDER = Path(__file__).parents[2] / "docs/reference"
TASKS = (
    "CAUSAL_LM",
    "MULTIMODAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "SEQUENCE_CLASSIFICATION",
    "TOKEN_CLASSIFICATION",
    "MASKED_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "CTC",
    "RNNT",
    "TDT",
    "RETRIEVAL",
)
"""transformers' mappings of classes that read texts, pictures with texts, or speech."""
ENDINGS = r"(?:For[A-Z]\w*|(?:With|ModelWith)?LMHead\w*|(?:Encoder|MT|Text)?Model|Decoder)?"
"""What a class's name ends in, behind what its relatives have in common."""
DECODERS = "ForCausalLM"
FILLS_WORDS = "ForMaskedLM"
EXAMPLES = 2
"""Classes that a row of the page shows, where its models have no other name."""


class Unserved(NamedTuple):
    """What isn't served for one reason."""

    why: str
    models: str
    """What people call the models; may be empty."""
    classes: tuple[str, ...]
    architectures: tuple[str, ...]

    def covers(self, name: str) -> bool:
        """Whether a class of this name is among them."""
        return any(re.fullmatch(re.escape(each) + ENDINGS, name) for each in self.classes)


def unserved() -> list[Unserved]:
    """The entries of unserved.toml."""
    listed = tomllib.loads((FOLDER / "unserved.toml").read_text(encoding="utf-8"))["unserved"]
    return [
        Unserved(
            each["why"],
            each.get("models", ""),
            tuple(each.get("classes", "").split()),
            tuple(each.get("architectures", "").split()),
        )
        for each in listed
    ]


def registered_classes() -> dict[str, str]:
    """Returns transformers' model_type by class, as installed, and of classes that llama.cpp's
    converter knows alone an empty one."""
    found = dict.fromkeys(_llama_cpp()["classes"].split(), "")
    for task in TASKS:
        mapping = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")
        for kind, named in mapping.items():
            found |= dict.fromkeys([named] if isinstance(named, str) else named, kind)
    return found


def registered_architectures() -> set[str]:
    """What `general.architecture` of a GGUF file may be, as the gguf package or llama.cpp has
    it."""
    return {*gguf.MODEL_ARCH_NAMES.values(), *_llama_cpp()["architectures"].split()}


def is_served_class(name: str, model_type: str) -> bool:
    """Whether a family reads config.json of a model of this class."""
    if any(name in known for known in (VISION_CLASSES, AUDIO_CLASSES, HEAD_CLASSES, ASSISTANTS)):
        return True
    stems = [name.removesuffix(end) for end in POOLING_CLASSES if name.endswith(end)]
    if any(each in HUB_CLASSES for each in (name, *(f"{stem}{DECODERS}" for stem in stems))):
        return True
    encoder = ENCODER_TYPES.get(model_type) or _encoder_of(name)
    return encoder is not None and not encoder.both_ways_key and _has_head(encoder, name)


def is_served_architecture(name: str) -> bool:
    """Whether a GGUF file of this architecture is read."""
    return name in (*GGUF_ARCHITECTURES, *GGUF_ENCODERS, GGUF_ASSISTANT, BERT_FILES)


def only_a_head_of_tokens(name: str) -> bool:
    """Whether the class is a decoder's that is served, but for its head over each token."""
    stem = name.removesuffix(CLASSIFIES_TOKENS)
    return stem != name and is_served_class(f"{stem}{DECODERS}", "")


def unserved_section() -> str:
    """The part of the page about families that lists them."""
    rows = "".join(_row(each) for each in unserved())
    return (
        "\n## What no family computes\n\n"
        "All other classes of models that read texts, pictures with texts, or speech, which "
        "transformers or llama.cpp's converter registers, and architectures of GGUF files "
        "(`docs/reference/unserved.toml` names each). Heads of decoders that give every token "
        "a class (`LlamaForTokenClassification`) aren't served; those that give a text one are.\n\n"
        f"| models | why |\n|---|---|\n{rows}"
    )


def _row(each: Unserved) -> str:
    names = each.classes or each.architectures
    left = len(names) - EXAMPLES
    shown = ", ".join(f"`{name}`" for name in names[:EXAMPLES])
    more = f" and {left} more" if left > 0 else ""
    return f"| {each.models or f'{shown}{more}'} | {each.why} |\n"


def _has_head(family: EncoderFamily, name: str) -> bool:
    if name.endswith(FILLS_WORDS):
        return family.words is not None
    if name.endswith((CLASSIFIES, CLASSIFIES_TOKENS)):
        return family.head is not None
    return name.endswith("Model") and not name.endswith("LMHeadModel")


def _encoder_of(name: str) -> EncoderFamily | None:
    """The family of a class of which llama.cpp's list says no model_type."""
    found = (kind for kind, named in _names_of_models() if named == name)
    return next((ENCODER_TYPES[kind] for kind in found if kind in ENCODER_TYPES), None)


def _names_of_models() -> Iterator[tuple[str, str]]:
    for kind, named in modeling_auto.MODEL_MAPPING_NAMES.items():
        yield from ((kind, each) for each in ([named] if isinstance(named, str) else named))


def _llama_cpp() -> dict[str, str]:
    return tomllib.loads((FOLDER / "llama_cpp.toml").read_text(encoding="utf-8"))
