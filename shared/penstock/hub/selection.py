"""Which files of a repository make the model that was named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import msgspec

from penstock.errors import ModelNotFound
from penstock.hub.gguf_names import GGUFModel, default_of, group_gguf, matching
from penstock.hub.name import HubName

FOLDER_FILES = (
    "config.json",
    "hf_quant_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "artifact.metadata",
    "*_Pooling/config.json",
    "*_SpladePooling/config.json",
    "*_Dense/config.json",
)
SLOW_TOKENIZERS = (
    *("tekken.json", "tiktoken.model", "*.tiktoken", "tokenizer.model"),
    *("spm.model", "spiece.model", "vocab.json", "vocab.txt"),
)
"""What a tokenizer.json is made from where there is none, best first."""
BESIDE_SLOW_TOKENIZERS = ("merges.txt",)
IGNORED = ("onnx/*", "openvino/*", "original/*", "consolidated.*", "consolidated-[0-9]*")
CARD = "README.md"
"""The model's card, which states its licence."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a repository, by their paths in it. gguf: None for a folder with config.json.
    default: whether a choice had to be made that the name doesn't make."""

    files: tuple[str, ...]
    gguf: GGUFModel | None = None
    default: bool = False


def select(name: HubName, paths: Iterable[str]) -> Selection:
    """Raises ModelNotFound, which names what the repository has."""
    paths = sorted(paths)
    models = group_gguf(paths)
    if name.choice is not None:
        return _with_card(paths, _chosen(name, name.choice, models), default=False)
    folder = _folder(paths)
    if folder is not None:
        return folder
    if models:
        return _with_card(paths, default_of(models), default=True)
    kinds = ", ".join(sorted({path.rpartition(".")[2] for path in paths if "." in path})[:12])
    raise ModelNotFound(
        f"{name.repository} has no supported model: no config.json with .safetensors files "
        f"beside it, and no .gguf file (it has files of these kinds: {kinds or 'none'})"
    )


def _folder(paths: Sequence[str]) -> Selection | None:
    wanted = [path for path in paths if path == CARD or is_of_folder(path)]
    if "tokenizer.json" not in wanted:
        slow = (*SLOW_TOKENIZERS, *BESIDE_SLOW_TOKENIZERS)
        wanted += [path for path in paths if _is_one(path, slow)]
    has_weights = any(path.endswith(".safetensors") for path in wanted)
    if "config.json" not in wanted or not has_weights:
        return None
    return Selection(files=tuple(wanted))


def is_of_folder(path: str) -> bool:
    """Whether a model in the hub's format may need this file."""
    return not _is_one(path, IGNORED) and _is_one(path, FOLDER_FILES)


def _is_one(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _chosen(name: HubName, choice: str, models: Sequence[GGUFModel]) -> GGUFModel:
    found = matching(choice, models)
    if len(found) == 1:
        return found[0]
    if found:
        raise ModelNotFound(
            f"{name.repository} has several files for {choice!r}; name one: "
            f"{_listed(model.files[0] for model in found)}"
        )
    if not models:
        raise ModelNotFound(f"{name.repository} holds no .gguf file, so {choice!r} can't be chosen")
    labels = dict.fromkeys(model.label or model.files[0] for model in models)
    raise ModelNotFound(f"{name.repository} has no {choice!r}; it has {_listed(labels)}")


def _with_card(paths: Sequence[str], model: GGUFModel, *, default: bool) -> Selection:
    card = (CARD,) if CARD in paths else ()
    return Selection(files=(*model.files, *card), gguf=model, default=default)


def _listed(names: Iterable[str], most: int = 40) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
