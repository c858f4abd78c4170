"""What the names of GGUF files say: quantisation, and parts of a split file.

Source: llama.cpp's naming convention (docs/gguf.md of the ggml project), and what repositories
add to it (`UD-` for mixes of types by layer).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_LABEL = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d[A-Z0-9_]*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|F16|F32))(?=$|[-./])",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"(^|/)(mmproj|imatrix)|imatrix(\.gguf)?(_file)?\.gguf$", re.IGNORECASE)
"""Encoders of images, and statistics that quantisers use."""

PREFERRED = (
    *("Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q6_K", "Q8_0"),
    *("Q4_K_XL", "IQ4_XS", "IQ4_NL", "MXFP4", "MXFP4_MOE", "Q3_K_L", "Q3_K_M", "Q3_K_S"),
    *("BF16", "F16", "F32"),
)
"""What is taken where a name makes no choice: first what keeps nearly all of a model's quality in
little memory."""


class GGUFModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a repository: a .gguf file, or all parts of a split one, in their order.

    label: the quantisation as people write it, `Q4_K_M`; empty if the name says none.
    complete: whether all parts are there.
    """

    label: str
    files: tuple[str, ...]
    complete: bool = True


def group_gguf(paths: Iterable[str]) -> list[GGUFModel]:
    """The models among a repository's files, in the order of their names."""
    groups: dict[str, list[str]] = {}
    for path in sorted(paths):
        if path.lower().endswith(".gguf") and not _NO_MODEL.search(path):
            groups.setdefault(_PART.sub("", path), []).append(path)
    return [_model(whole, parts) for whole, parts in groups.items()]


def _model(whole: str, parts: list[str]) -> GGUFModel:
    split = _PART.search(parts[0])
    expected = int(split[2]) if split else 1
    numbers = [int(found[1]) for part in parts if (found := _PART.search(part))]
    complete = not split or numbers == list(range(1, expected + 1))
    return GGUFModel(label=label_of(whole), files=tuple(parts), complete=complete)


def label_of(path: str) -> str:
    """The quantisation that a file's name states, else its folder's; empty if neither does."""
    folder, _, name = path.rpartition("/")
    for text in (name[: -len(".gguf")] if name.lower().endswith(".gguf") else name, folder):
        found = _LABEL.findall(text)
        if found:
            return str(found[-1]).upper()
    return ""


def matching(choice: str, models: Sequence[GGUFModel]) -> list[GGUFModel]:
    """The models that a choice may mean: a quantisation, a file's path, or its name."""
    wanted = choice.lower()
    for means in (_is_label, _is_file, _is_mixed_label):
        found = [model for model in models if means(model, wanted)]
        if found:
            return found
    return []


def default_of(models: Sequence[GGUFModel]) -> GGUFModel:
    """The first of PREFERRED that is there; else the first by name."""
    for label in PREFERRED:
        found = matching(label, models)
        if found:
            return found[0]
    return models[0]


def _is_label(model: GGUFModel, wanted: str) -> bool:
    return model.label.lower() == wanted


def _is_file(model: GGUFModel, wanted: str) -> bool:
    names = {name for path in model.files for name in (path, path.rpartition("/")[2])}
    names |= {_PART.sub("", name) for name in names}
    return any(wanted in (name.lower(), name.lower().removesuffix(".gguf")) for name in names)


def _is_mixed_label(model: GGUFModel, wanted: str) -> bool:
    return model.label.lower() == f"ud-{wanted}"
