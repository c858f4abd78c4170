"""Hub folders as GGUF files, beside what llama.cpp's converter writes of the same models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.prepare import load_manifest, prepare
from penstock.prepare.folder import TOKENIZER
from penstock.text.tokenizer import Tokenizer
from penstock_conversion.quantize.folder import folder_source
from penstock_conversion.quantize.mixes import find_mix
from penstock_conversion.quantize.writing import write
from testing.tiny_models import CORPUS, sentencepiece_tokenizer, with_bos
from tests.conversion.hub_folders import make_model, write_folder
from tests.worker.models.gguf_writing import write as write_by_gguf
from tests.worker.models.test_gguf_families import CONVERSIONS

pytestmark = pytest.mark.slow

CONVERTED = (
    *("llama-plain", "qwen2-plain", "qwen3-plain", "smollm3", "gemma", "gemma2", "gemma3-of-six"),
    *("granite", "olmo2"),
)


def converted(folder: Path, path: Path) -> GGUFFile:
    """The folder's model as a file of float32 numbers."""
    prepared = prepare(str(folder), cache_dir=path.parent / "cache")
    source = folder_source(load_manifest(prepared), prepared)
    write(source, find_mix("F32"), path, importances={}, threads=1, written=lambda _: None)
    return GGUFFile(path)


def numbers(file: GGUFFile) -> dict[str, np.ndarray]:
    found = {}
    for name, tensor in file.tensors.items():
        assert tensor.type == "F32"
        found[name] = tensor.data.view("<f4").reshape(tensor.shape)
    return found


@pytest.mark.parametrize("case", CONVERTED)
def test_tensors_and_keys_are_those_of_llama_cpps_converter(case: str, tmp_path: Path) -> None:
    theirs = make_model(case)
    ours = converted(write_folder(tmp_path / "folder", theirs), tmp_path / "ours.gguf")
    write_by_gguf(tmp_path / "theirs.gguf", theirs, CONVERSIONS[case])
    expected = GGUFFile(tmp_path / "theirs.gguf")
    found, wanted = numbers(ours), numbers(expected)
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
    for key, value in expected.metadata.items():
        assert ours.metadata[key] == value, key


def rope_factors(case: str, tmp_path: Path) -> tuple[GGUFFile, Any]:
    theirs = make_model(case)
    return converted(write_folder(tmp_path / "folder", theirs), tmp_path / "ours.gguf"), theirs


def test_llama_3s_scaling_becomes_divisors(tmp_path: Path) -> None:
    ours, theirs = rope_factors("llama-7-7-llama3-rope", tmp_path)
    plain = 1.0 / theirs.config.rope_parameters["rope_theta"] ** (np.arange(0, 16, 2) / 16)
    scaled = theirs.model.rotary_emb.inv_freq.numpy()
    np.testing.assert_allclose(numbers(ours)["rope_freqs.weight"], plain / scaled, rtol=1e-5)
    assert ours.metadata["llama.block_count"] == theirs.config.num_hidden_layers


@pytest.mark.parametrize("case", ["llama-yarn", "llama-6-2-linear-rope"])
def test_scaled_rotations_are_said(case: str, tmp_path: Path) -> None:
    ours, theirs = rope_factors(case, tmp_path)
    rope = theirs.config.rope_parameters
    assert ours.metadata["llama.rope.scaling.type"] == rope["rope_type"]
    assert ours.metadata["llama.rope.scaling.factor"] == rope["factor"]


def test_what_a_file_cannot_say_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", make_model("mistral-window"))
    with pytest.raises(UnsupportedModel, match="can't say what this model has as layers"):
        converted(folder, tmp_path / "ours.gguf")
    assert not (tmp_path / "ours.gguf").exists()


def test_another_family_is_refused_and_the_allowed_are_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", make_model("cohere"))
    with pytest.raises(UnsupportedModel, match=r"family cohere can't be converted.*Qwen2, Qwen2.5"):
        converted(folder, tmp_path / "ours.gguf")


@pytest.mark.parametrize("prepend", ["", "first", "never"])
def test_sentencepiece_tokens_stay_the_same(prepend: str, tmp_path: Path) -> None:
    tokenizer = with_bos(sentencepiece_tokenizer(prepend_scheme=prepend), "<s>")
    theirs = make_model("llama-plain")
    folder = write_folder(tmp_path / "folder", theirs, tokenizer, eos_token_id=2, bos_token_id=1)
    ours = converted(folder, tmp_path / "ours.gguf")
    assert ours.metadata["tokenizer.ggml.model"] == "llama"
    assert ours.metadata["tokenizer.ggml.add_bos_token"] is True
    assert ours.metadata["tokenizer.ggml.add_space_prefix"] is (prepend != "never")
    assert_same_tokens(folder, tmp_path)


def test_byte_level_tokens_and_their_parts_stay_the_same(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", make_model("qwen2-plain"))
    ours = converted(folder, tmp_path / "ours.gguf")
    assert ours.metadata["tokenizer.ggml.pre"] == "gpt-2"
    assert len(ours.metadata["tokenizer.ggml.tokens"]) == 700
    assert_same_tokens(folder, tmp_path)
    read = load_manifest(prepare(str(ours.path), cache_dir=tmp_path / "cache"))
    assert set(read.generation.eos_token_ids) == {2, 0}
    assert read.has_chat_template


def assert_same_tokens(folder: Path, tmp_path: Path) -> None:
    tokenizers = []
    for model in (folder, tmp_path / "ours.gguf"):
        prepared = prepare(str(model), cache_dir=tmp_path / "cache")
        manifest = load_manifest(prepared)
        content = (prepared / TOKENIZER).read_bytes()
        bos = manifest.generation.bos_token_id
        tokenizers.append(Tokenizer.from_bytes(content, add_bos=manifest.add_bos, bos_token_id=bos))
    before, after = tokenizers
    for text in CORPUS:
        assert after.encode(text) == before.encode(text)
        assert after.decode(after.encode(text)) == before.decode(before.encode(text))
