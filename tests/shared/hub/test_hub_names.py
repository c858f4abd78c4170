"""Names of models on the hub, and which files of a repository they mean."""

from __future__ import annotations

import pytest

from penstock.errors import ModelNotFound
from penstock.hub.gguf_names import group_gguf, label_of
from penstock.hub.name import HubName, parse
from penstock.hub.selection import select


@pytest.mark.parametrize(
    ("text", "repository", "revision", "choice"),
    [
        ("org/repo", "org/repo", None, None),
        ("org/repo.v1-GGUF", "org/repo.v1-GGUF", None, None),
        ("org/repo:Q4_K_M", "org/repo", None, "Q4_K_M"),
        ("org/repo:sub/file.Q8_0.gguf", "org/repo", None, "sub/file.Q8_0.gguf"),
        ("org/repo@v1.2", "org/repo", "v1.2", None),
        ("org/repo@refs/pr/3:Q8_0", "org/repo", "refs/pr/3", "Q8_0"),
        ("org/repo:Q8_0@main", "org/repo", "main", "Q8_0"),
    ],
)
def test_names(text: str, repository: str, revision: str | None, choice: str | None) -> None:
    name = parse(text)
    assert name == HubName(repository, revision, choice)
    assert parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    ["repo", "a/b/c", "/a/b", "../a", "org/..", "org/repo:", "org/repo@", "org/repo:../x",
     "org/repo@../../x", "org/repo@a@b", "org/repo@a:b@c", "folder/model.gguf", "org/re po",
     "org/repo:/etc", "-a/b", "org/repo@a//b", "org/repo\n"],
)  # fmt: skip
def test_what_is_no_name(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("smollm2-135m-instruct-q8_0.gguf", "Q8_0"),
        ("qwen2.5-7b-instruct-fp16-00001-of-00004.gguf", ""),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Qwen3-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Qwen3-8B-IQ4_XS.gguf", "IQ4_XS"),
        ("model-BF16.gguf", "BF16"),
        ("gemma-3-1b-it-f16.gguf", "F16"),
        ("Q6_K/DeepSeek.gguf", "Q6_K"),
        ("model.gguf", ""),
        ("Q3-model.gguf", "Q3"),
    ],
)
def test_the_quantisation_that_a_file_name_states(path: str, label: str) -> None:
    assert label_of(path) == label


FILES = [
    "README.md",
    "m-Q4_K_M.gguf",
    "m-Q8_0.gguf",
    "BF16/m-BF16-00001-of-00002.gguf",
    "BF16/m-BF16-00002-of-00002.gguf",
    "m-UD-Q2_K_XL.gguf",
    "mmproj-F16.gguf",
    "m.imatrix.gguf",
]


def test_parts_of_a_split_file_go_together() -> None:
    groups = {model.label: model for model in group_gguf(FILES)}
    assert set(groups) == {"BF16", "Q4_K_M", "Q8_0", "UD-Q2_K_XL"}
    assert groups["BF16"].files == tuple(FILES[3:5])
    assert all(model.complete for model in groups.values())
    for missing in FILES[3:5]:
        left = group_gguf(file for file in FILES if file != missing)
        assert [model.label for model in left if not model.complete] == ["BF16"]


@pytest.mark.parametrize(
    ("choice", "files"),
    [
        ("Q4_K_M", ("m-Q4_K_M.gguf",)),
        ("q8_0", ("m-Q8_0.gguf",)),
        ("m-Q8_0.gguf", ("m-Q8_0.gguf",)),
        ("bf16", tuple(FILES[3:5])),
        ("BF16/m-BF16-00001-of-00002.gguf", tuple(FILES[3:5])),
        ("m-BF16.gguf", tuple(FILES[3:5])),
        ("Q2_K_XL", ("m-UD-Q2_K_XL.gguf",)),
    ],
)
def test_a_choice(choice: str, files: tuple[str, ...]) -> None:
    chosen = select(HubName("o/r", None, choice), FILES)
    assert chosen.gguf is not None
    assert chosen.gguf.files == files
    assert set(chosen.files) == {*files, "README.md"}
    assert not chosen.default


def test_the_default_of_a_repository_of_gguf_files() -> None:
    chosen = select(HubName("o/r"), FILES)
    assert chosen.gguf is not None
    assert (chosen.gguf.label, chosen.default) == ("Q4_K_M", True)
    fewer = [file for file in FILES if "Q4" not in file]
    default = select(HubName("o/r"), fewer).gguf
    assert default is not None
    assert default.label == "Q8_0"


def test_a_folder_in_the_hubs_format_comes_before_gguf_files() -> None:
    folder = ["config.json", "model.safetensors", "tokenizer.json", "onnx/model.onnx", "x.py"]
    chosen = select(HubName("o/r"), [*folder, *FILES])
    assert chosen.gguf is None
    assert chosen.files == ("README.md", "config.json", "model.safetensors", "tokenizer.json")
    assert select(HubName("o/r", None, "Q8_0"), [*folder, *FILES]).gguf is not None


def test_files_in_mistrals_own_format_stay_there() -> None:
    own = ["consolidated.safetensors", "consolidated-00001-of-00002.safetensors"]
    for weights in ("model.safetensors", "consolidated_merge.safetensors"):
        folder = ["config.json", weights]
        assert select(HubName("o/r"), [*folder, *own]).files == tuple(sorted(folder))


def test_what_is_not_there_is_answered_with_what_is() -> None:
    with pytest.raises(ModelNotFound, match=r"no 'Q5_K_M'; it has BF16, Q4_K_M, Q8_0, UD-Q2_K_XL"):
        select(HubName("o/r", None, "Q5_K_M"), FILES)
    with pytest.raises(ModelNotFound, match=r"holds no \.gguf file, so 'Q8_0' can't be chosen"):
        select(HubName("o/r", None, "Q8_0"), ["config.json", "model.safetensors"])
    with pytest.raises(ModelNotFound, match=r"no supported model.*of these kinds: bin, json"):
        select(HubName("o/r"), ["config.json", "pytorch_model.bin"])
    with pytest.raises(
        ModelNotFound, match=r"several files for 'Q8_0'.*a-Q8_0\.gguf, b-Q8_0\.gguf"
    ):
        select(HubName("o/r", None, "Q8_0"), ["a-Q8_0.gguf", "b-Q8_0.gguf"])
