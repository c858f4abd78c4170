"""Models that several tests of the worker share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.model.prepared_model import PreparedModel
from penstock.prepare import load_manifest, prepare
from penstock.text.tokenizer import Tokenizer
from penstock_worker.models.decoder import DecoderModel
from testing.quick_gguf import read_once
from tests.instruction_sets import TESTED, instruction_set
from tests.made_once import made_once
from tests.worker.checkpoints import TINY, load_model, prepared_model, tiny_files

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture(scope="module", params=TESTED)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The CPU kernels' instruction set, each that there is in turn, but for one whose bits the
    kernels' own tests compare with another's. Models are loaded after it."""
    with instruction_set(request.param) as name:
        yield name


@pytest.fixture(params=list(DTYPES))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return DTYPES[request.param]


@pytest.fixture(scope="session")
def default_folder() -> Path:
    """The default model's prepared folder. make setup-dev installs its package."""
    return prepare("smollm2-135m")


@pytest.fixture(scope="session")
def default_model(default_folder: Path) -> PreparedModel:
    return load_manifest(default_folder)


@pytest.fixture(scope="session")
def default_tokenizer(default_folder: Path, default_model: PreparedModel) -> Tokenizer:
    return Tokenizer.from_bytes(
        (default_folder / "tokenizer.json").read_bytes(),
        add_bos=default_model.add_bos,
        bos_token_id=default_model.generation.bos_token_id,
    )


@pytest.fixture(scope="session")
def transformers_model(default_model: PreparedModel) -> Any:
    """The default model in float32 by transformers' own GGUF reader and dequantisation: nothing of
    ours takes part. That takes long, so processes that test side by side do it once."""
    import transformers

    (file,) = map(Path, default_model.weights.files)

    def make(folder: Path) -> None:
        with read_once():
            model = transformers.AutoModelForCausalLM.from_pretrained(
                str(file.parent), gguf_file=file.name, dtype=torch.float32
            )
        # Otherwise it passes for quantised, and transformers writes no such model.
        model.hf_quantizer = None
        del model.config.quantization_config
        model.save_pretrained(folder)

    kept = made_once("transformers-default", make)
    model = transformers.AutoModelForCausalLM.from_pretrained(str(kept), dtype=torch.float32)
    return model.eval()


@pytest.fixture(scope="session")
def default_float32(default_model: PreparedModel) -> DecoderModel:
    return prepared_model(default_model, torch.float32)


@pytest.fixture(scope="session")
def default_bfloat16(default_model: PreparedModel) -> DecoderModel:
    return prepared_model(default_model, torch.bfloat16)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[torch.dtype, DecoderModel]:
    files = tiny_files(tmp_path_factory.mktemp("tiny"))
    return {dtype: load_model(TINY, files, dtype) for dtype in DTYPES.values()}


@pytest.fixture
def tiny(tiny_models: dict[torch.dtype, DecoderModel], dtype: torch.dtype) -> DecoderModel:
    return tiny_models[dtype]
