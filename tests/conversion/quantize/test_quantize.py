"""`penstock quantize` as a whole, on tiny models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.cli.main import main
from penstock.errors import UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.formats.gguf_writing import GGUFWriter, TensorEntry, encoded_value, metadata_bytes
from penstock.prepare import prepare
from penstock_conversion.quantize import encoders, writing
from penstock_conversion.quantize.importance import importances
from penstock_conversion.quantize.source import gguf_source
from testing.tiny_models import write_gguf
from tests.conversion.hub_folders import make_model, write_folder

CHANGED = {"general.file_type", "general.quantization_version"}


def quantize(model: Path, to: str, output: Path, *more: str) -> int:
    cache = str(output.parent / "cache")
    words = ["quantize", str(model), "--to", to, "--output", str(output), "--cache-dir", cache]
    return main([*words, "--threads", "2", *more])


def source(tmp_path: Path, **settings: Any) -> Path:
    return write_gguf(tmp_path / "model.gguf", heads=8, kv_heads=2, **settings)


def test_metadata_are_copied_byte_by_byte(tmp_path: Path) -> None:
    path, output = source(tmp_path), tmp_path / "out.gguf"
    assert quantize(path, "Q8_0", output, "--no-perplexity") == 0
    before, after = metadata_bytes(path), metadata_bytes(output)
    assert {key: after[key] for key in before} == before
    assert after.keys() - before.keys() == CHANGED
    file = GGUFFile(output)
    assert file.metadata["general.file_type"] == 7
    assert {each.type for each in file.tensors.values()} == {"F32", "Q8_0"}
    assert file.tensors["blk.0.attn_norm.weight"].type == "F32"
    assert list(file.tensors) == list(GGUFFile(path).tensors)


def test_parts_become_one_file(tmp_path: Path) -> None:
    path = source(tmp_path, tensors_a_part=3)
    output = tmp_path / "out.gguf"
    assert quantize(path, "f32", output, "--no-perplexity") == 0
    file = GGUFFile(output)
    assert not any(key.startswith("split.") for key in file.metadata)
    assert len(file.tensors) == 11


@pytest.mark.slow
def test_the_figure_is_the_perplexity_of_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy without loss has the same; what it is follows from transformers' logits."""
    theirs = make_model("qwen2-plain")
    folder = write_folder(tmp_path / "folder", theirs)
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog, and over the quick fox. " * 3)
    assert quantize(folder, "F32", tmp_path / "same.gguf", "--text", str(text), "--json") == 0
    found = json.loads(capsys.readouterr().out)["quality"]
    assert found["before"] == found["after"]
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text.read_text()).ids
    assert len(ids) < theirs.config.max_position_embeddings
    with torch.inference_mode():
        logits = torch.log_softmax(theirs(torch.tensor([ids])).logits[0].double(), -1)
    expected = logits[:-1].gather(1, torch.tensor(ids[1:])[:, None]).mean().neg().exp()
    assert found["tokens"] == len(ids) - 1
    assert found["before"] == pytest.approx(float(expected), rel=0.02)  # bfloat16
    assert quantize(folder, "Q4_0", tmp_path / "less.gguf", "--text", str(text)) == 0
    said = capsys.readouterr().out
    assert "perplexity" in said
    assert "bits a number" in said


@pytest.mark.slow
def test_importances_are_the_mean_squares_that_transformers_sees(tmp_path: Path) -> None:
    theirs = make_model("qwen3-plain")
    folder = write_folder(tmp_path / "folder", theirs)
    tokens = np.random.default_rng(3).integers(0, 500, 101).tolist()
    prepared = prepare(str(folder), cache_dir=tmp_path / "cache")
    read: list[int] = []
    found = importances(prepared, tokens, read.append)
    assert sum(read) == len(tokens)
    seen: dict[str, torch.Tensor] = {}

    def hook(name: str) -> Any:
        def run(module: Any, inputs: Sequence[torch.Tensor]) -> None:
            seen[name] = inputs[0][0].square().mean(0)

        return run

    for name, module in theirs.model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(hook(name))
    with torch.inference_mode():
        theirs(torch.tensor([tokens]))
    assert found.keys() == seen.keys()
    for name, expected in seen.items():
        torch.testing.assert_close(found[name], expected, rtol=0.1, atol=0.02 * expected.max())


@pytest.mark.slow
def test_importances_change_what_is_written(tmp_path: Path) -> None:
    theirs = make_model("qwen3-plain", hidden_size=128, intermediate_size=256)
    folder = write_folder(tmp_path / "folder", theirs)
    texts = tmp_path / "texts.txt"
    texts.write_text("The quick brown fox jumps over the lazy dog. " * 20)
    plain, weighted = tmp_path / "plain.gguf", tmp_path / "weighted.gguf"
    assert quantize(folder, "Q4_K_M", plain, "--no-perplexity") == 0
    assert quantize(folder, "Q4_K_M", weighted, "--no-perplexity", "--imatrix", str(texts)) == 0
    one, other = GGUFFile(plain).tensors, GGUFFile(weighted).tensors
    same = {name for name in one if np.array_equal(one[name].data, other[name].data)}
    assert "token_embd.weight" in same
    assert "blk.0.attn_norm.weight" in same
    assert not any(".attn_q.w" in name or (".ffn_" in name and "norm" not in name) for name in same)


def test_a_chunk_of_a_matrix_is_in_memory_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def observed(rows: torch.Tensor, *more: Any) -> torch.Tensor:
        sizes.append(rows.numel())
        return encoders.encode(rows, *more)

    monkeypatch.setattr(writing, "encode", observed)
    monkeypatch.setattr(writing, "CHUNK", 640)
    path, output = source(tmp_path), tmp_path / "out.gguf"
    assert quantize(path, "Q5_1", output, "--no-perplexity") == 0
    assert len(sizes) > 100
    assert max(sizes) <= 640


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "Q9_X"], "--to is 'Q9_X'; allowed are F32, F16"),
        (["--to", "Q8_0", "--output", "a.bin"], "another ending than .gguf"),
        (["--to", "Q8_0", "--output", "no/where/a.gguf"], "the folder isn't there"),
        (["--to", "Q8_0", "--text", "no.txt"], "no.txt can't be read: No such file"),
        (["--to", "Q8_0", "--text-tokens", "1"], "--text-tokens is 1; allowed are 3 to"),
        (["--to", "Q8_0", "--threads", "0"], "--threads is 0; allowed are 1 to"),
    ],
)
def test_wrong_usage_is_named(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = source(tmp_path)
    assert main(["quantize", str(path), "--cache-dir", str(tmp_path / "cache"), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = source(tmp_path), tmp_path / "out.gguf"
    output.write_text("mine")
    assert quantize(path, "Q8_0", output, "--no-perplexity") == 2
    assert "is there already" in capsys.readouterr().err
    assert output.read_text() == "mine"


def test_nothing_is_left_of_a_file_that_could_not_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {"blk.0.ffn_gate.weight": np.full((128, 64), np.nan, np.float32)}
    path = source(tmp_path, without=("blk.0.ffn_gate.weight",), tensors=broken)
    output = tmp_path / "out.gguf"
    assert quantize(path, "Q4_0", output, "--no-perplexity") == 1
    assert "tensor blk.0.ffn_gate.weight holds numbers that aren't finite" in (
        capsys.readouterr().err
    )
    assert [each.name for each in tmp_path.glob("out.gguf*")] == []


def test_a_source_that_is_quantised_already_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, first, second = source(tmp_path), tmp_path / "a.gguf", tmp_path / "b.gguf"
    assert quantize(path, "Q8_0", first, "--no-perplexity") == 0
    assert "quantised already" not in capsys.readouterr().err
    assert quantize(first, "Q4_0", second, "--no-perplexity") == 0
    assert "is quantised already (Q8_0)" in capsys.readouterr().err


def test_a_source_with_factors_beside_its_matrices_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    metadata = {"general.architecture": encoded_value("llama", "string")}
    with GGUFWriter(path, metadata, [TensorEntry("blk.0.ffn_up.weight", (2, 64), "NVFP4")]) as file:
        file.begin()
        file.write(np.zeros(72, np.uint8))
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_up\.weight is NVFP4"):
        gguf_source(path)


def test_a_writer_wants_each_byte(tmp_path: Path) -> None:
    entries = [TensorEntry("a", (2, 3), "F32"), TensorEntry("b", (4,), "F16")]
    metadata = {"some.key": encoded_value([1, 2], "uint32"), "name": encoded_value("é", "string")}
    path = tmp_path / "x.gguf"
    with GGUFWriter(path, metadata, entries) as file:
        assert file.begin() == entries[0]
        file.write(np.arange(24, dtype=np.uint8))
        file.begin()
        with pytest.raises(ValueError, match="2 bytes too many"):
            file.write(np.zeros(10, np.uint8))
        file._left = 8
        file.write(np.zeros(8, np.uint8))
    read = GGUFFile(path)
    assert read.metadata == {"some.key": [1, 2], "name": "é"}
    assert read.tensors["a"].data.tolist() == list(range(24))
    with pytest.raises(ValueError, match="aren't all written"), GGUFWriter(path, {}, entries):
        pass
