"""Reports of other servers that loaded real files wrongly, and what holds here. Each names its
thread; those about tensors, shards, tokenizers and adapters stand beside other tests of these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import PreparedModel
from penstock.prepare import load_manifest, prepare
from penstock.prepare.hub_config import read_config
from penstock.prepare.hub_tokenizer import tokenizer_of_folder
from testing.tiny_models import LLAMA_CONFIG, byte_level_tokenizer, write_hub_folder

pytestmark = pytest.mark.timeout(120)


def prepared(folder: Path, **files: Any) -> PreparedModel:
    write_hub_folder(folder, **files)
    return load_manifest(prepare(str(folder), cache_dir=str(folder.parent / "cache")))


ENDS: dict[str, tuple[object, object, str, tuple[int, ...]]] = {
    "QwenLM/Qwen3 issue 927: the tokenizer names another than config.json": (
        0, None, "<|im_end|>", (2, 0)),
    "InfiniTensor/InfiniLM pull request 387: config.json has one of two": (
        0, [0, 2], "<|endoftext|>", (0, 2)),
    "Blaizzy/mlx-vlm pull request 1496: generation_config.json has none of three": (
        [1, 2, 5], 0, "<|endoftext|>", (0, 1, 2, 5)),
    "Blaizzy/mlx-vlm pull request 2112: only the tokenizer has the end of a turn": (
        0, [0], "<|im_end|>", (2, 0)),
}  # fmt: skip


@pytest.mark.parametrize("report", ENDS)
def test_every_stated_end_ends_an_answer(tmp_path: Path, report: str) -> None:
    config, generation, tokenizer, ends = ENDS[report]
    found = prepared(
        tmp_path / "m",
        config={**LLAMA_CONFIG, "eos_token_id": config},
        generation_config={"eos_token_id": generation},
        tokenizer_config={"eos_token": tokenizer},
    )
    assert found.generation.eos_token_ids == ends


@pytest.mark.parametrize(
    ("heads", "head_dim", "expected"),
    [(2, None, 12), (2, 16, 16), (3, -1, 8), (5, 16, 16)],
)
def test_a_head_is_as_large_as_stated(heads: int, head_dim: int | None, expected: int) -> None:
    """huggingface/text-generation-inference pull request 2254 (Mistral Nemo) and
    mozilla-ai/any-guardrail issue 239: not the hidden size's share.  HabanaAI/vllm-fork pull
    request 1294: null is not a size."""
    changes = {"num_attention_heads": heads, "head_dim": head_dim, "num_key_value_heads": 1}
    assert read_config(Fields({**LLAMA_CONFIG, **changes}, "c")).head_dim == expected


@pytest.mark.parametrize("tied", [True, False])
def test_whether_embedding_and_head_are_one_may_be_said_inside(tied: bool) -> None:
    """huggingface/transformers pull request 43429: Ministral 3 says it in its text_config alone,
    and its head had random values."""
    theirs = transformers.Mistral3Config().to_dict()
    theirs["architectures"] = ["Mistral3ForConditionalGeneration"]
    del theirs["tie_word_embeddings"]
    theirs["text_config"] |= {"tie_word_embeddings": tied}
    config = read_config(Fields(theirs, "c"), language_model_only=True)
    assert isinstance(config, ModelConfig)
    assert config.tie_word_embeddings == tied


@pytest.mark.parametrize("mode", ["cls", "mean", "max", "lasttoken"])
def test_pooling_as_newer_libraries_write_it(tmp_path: Path, mode: str) -> None:
    """vllm-project/vllm issue 45995: sentence-transformers 5.4 has one key in the place of seven,
    and the vectors were others' silently."""
    folder = tmp_path / "m"
    modules = [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "1_Pooling").mkdir(parents=True)
    stated = {"embedding_dimension": 24, "pooling_mode": mode, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(stated))
    (folder / "modules.json").write_text(json.dumps(modules))
    bert = transformers.BertConfig(vocab_size=700, hidden_size=24, num_attention_heads=3).to_dict()
    found = prepared(folder, config=bert | {"architectures": ["BertModel"]})
    assert found.pooling is not None
    assert found.pooling.mode == {"lasttoken": "last"}.get(mode, mode)


def test_the_base_of_rotation_is_read_wherever_it_stands() -> None:
    """lyogavin/airllm pull request 369: with a base of 10,000 for 500,000, long answers fall
    apart."""
    for section in ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5}}):
        config = read_config(Fields({**LLAMA_CONFIG, **section}, "c"))
        assert config.ropes[0].theta == 5e5


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_windows_begin_behind_max_window_layers(behind: int) -> None:
    """huggingface/transformers issue 35896: which layers of Qwen2 have a window. As in
    transformers, those from max_window_layers on."""
    theirs = transformers.Qwen2Config(
        num_hidden_layers=2, use_sliding_window=True, sliding_window=7, max_window_layers=behind
    )
    config = read_config(Fields({**theirs.to_dict(), "architectures": ["Qwen2ForCausalLM"]}, "c"))
    windows = [config.layer(number).attention.window for number in range(2)]
    assert windows == [7 if kind == "sliding_attention" else None for kind in theirs.layer_types]


@pytest.mark.parametrize(
    ("of", "architecture"),
    [
        (transformers.Qwen2Config, "Qwen2ForCausalLM"),
        (transformers.Qwen3Config, "Qwen3ForCausalLM"),
    ],
    ids=["qwen2", "qwen3"],
)
@pytest.mark.parametrize("stated", [True, False, None])
@pytest.mark.parametrize("behind", [0, 1, 3])
def test_windows_of_releases_from_before_layers_were_named(
    of: Any, architecture: str, stated: bool | None, behind: int
) -> None:
    """config.json of Qwen's releases has no layer_types, and states a window where it is off, or
    where nothing says that it is on."""
    use = {} if stated is None else {"use_sliding_window": stated}
    theirs = of(num_hidden_layers=3, sliding_window=7, max_window_layers=behind, **use)
    written = {**theirs.to_dict(), "architectures": [architecture], "sliding_window": 7}
    del written["layer_types"]
    if stated is None:
        del written["use_sliding_window"]
    config = read_config(Fields(written, "c"))
    windows = [config.layer(number).attention.window for number in range(3)]
    assert windows == [7 if kind == "sliding_attention" else None for kind in theirs.layer_types]


@pytest.mark.parametrize(("step", "dense"), [(1, []), (1, [0]), (2, []), (2, [3]), (3, [])])
def test_the_layers_with_experts_are_those_of_transformers(step: int, dense: list[int]) -> None:
    """Qwen's mixtures have them in every so many layers, but for those that are named."""
    theirs = transformers.Qwen3MoeConfig(
        vocab_size=32, hidden_size=32, intermediate_size=48, moe_intermediate_size=16,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_experts=4, num_experts_per_tok=2, decoder_sparse_step=step, mlp_only_layers=dense,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.Qwen3MoeForCausalLM(theirs)
    expected = [hasattr(layer.mlp, "experts") for layer in model.model.layers]
    written = {**theirs.to_dict(), "architectures": ["Qwen3MoeForCausalLM"]}
    config = read_config(Fields(written, "c"))
    layers = [config.layer(number) for number in range(4)]
    assert [layer.feed_forward.experts is not None for layer in layers] == expected
    assert any(expected)


def test_a_setting_of_rotations_that_nobody_knows_is_refused() -> None:
    section = {"rope_type": "default", "rope_theta": 1e4, "stretched_by": 2}
    with pytest.raises(UnsupportedModel, match="stretched_by is 2, which is not known here"):
        read_config(Fields({**LLAMA_CONFIG, "rope_parameters": section}, "c"))


@pytest.mark.parametrize("pad", [False, True])
def test_added_tokens_without_an_embedding_are_left_out(tmp_path: Path, pad: bool) -> None:
    """huggingface/transformers issue 37011: Gemma 3 1B's tokenizer has the picture's token of the
    models that see, behind its own embeddings. OpenRLHF/OpenRLHF issue 87: [PAD] of a training."""
    tokenizer = Tokenizer.from_str(byte_level_tokenizer().to_str())
    size = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens(["<image_soft_token>"])
    settings = {"eos_token": "<|im_end|>"} | ({"pad_token": "<image_soft_token>"} if pad else {})
    folder = tmp_path / "m"
    config = {**LLAMA_CONFIG, "vocab_size": size}
    write_hub_folder(folder, config=config, tokenizer=tokenizer, tokenizer_config=settings)
    ours = Tokenizer.from_file(
        str(Path(prepare(str(folder), cache_dir=str(tmp_path / "cache"))) / "tokenizer.json")
    )
    assert ours.get_vocab() == byte_level_tokenizer().get_vocab()
    for text in ("<|im_start|>user", "<image_soft_token>"):
        assert ours.encode(text).ids == byte_level_tokenizer().encode(text).ids


def token(text: str, **changes: bool) -> dict[str, object]:
    usual = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    return {"content": text, "special": True, **usual, **changes}


STATED: dict[str, dict[str, dict[str, Any]]] = {
    "in the decoder": {"tokenizer_config": {"added_tokens_decoder": {"600": token("<new>")}}},
    "with white space": {
        "tokenizer_config": {"added_tokens_decoder": {"1": token("<|im_start|>", rstrip=True)}}
    },
    "as the end": {"tokenizer_config": {"eos_token": "<new>"}},
    "as padding": {"tokenizer_config": {"pad_token": {"__type": "AddedToken", **token("<new>")}}},
    "in a list": {"tokenizer_config": {"additional_special_tokens": ["<new>"]}},
    "by a part to play": {"tokenizer_config": {"extra_special_tokens": {"image_token": "<new>"}}},
    "in the older map": {"special_tokens_map": {"additional_special_tokens": ["<new>"]}},
    "in the older list": {"added_tokens": {"<new>": 600, "<newer>": 601}},
    "by ids of several lengths": {"added_tokens": {"<new>": 1000, "<newer>": 999}},
    "not in order": {"tokenizer_config": {"pad_token": "<new>", "bos_token": "<newer>"}},
    "names in two files": {
        "special_tokens_map": {"mask_token": "<new>"},
        "tokenizer_config": {"bos_token": "<newer>"},
    },
}


@pytest.mark.parametrize("case", STATED)
def test_tokens_that_only_other_files_state(tmp_path: Path, case: str) -> None:
    """Files of a tokenizer that don't agree: as in transformers, tokenizer.json isn't all."""
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    files = STATED[case]
    folder = write_hub_folder(
        tmp_path / "m", tokenizer_config=kind | files.get("tokenizer_config", {})
    )
    for name in files.keys() - {"tokenizer_config"}:
        (folder / f"{name}.json").write_text(json.dumps(files[name]))
    made = Path(prepare(str(folder), cache_dir=str(tmp_path / "cache"))) / "tokenizer.json"
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.from_file(str(made))
    for text in ("a<new> b", "<|im_start|>  user<newer>\n", "<|im_end|> <new>"):
        assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert made.read_bytes() != (folder / "tokenizer.json").read_bytes()


def test_an_older_map_names_bos_eos_and_padding(tmp_path: Path) -> None:
    """They are the tokenizer's, as in transformers, where tokenizer_config.json names none."""
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    folder = write_hub_folder(tmp_path, tokenizer_config=kind)
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(names))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = tokenizer_of_folder(folder, Fields(kind, "c"), 1 << 20)
    ids = (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id)
    assert (ours.bos_id, ours.eos_id, ours.pad_id) == ids
    newer = Fields(kind | {"added_tokens_decoder": {"1": token("<|im_start|>")}}, "c")
    assert tokenizer_of_folder(folder, newer, 1 << 20).eos_id is None


@pytest.mark.parametrize("value", ["\ud800", {"content": "\ud800"}])
def test_half_of_a_character_is_no_token(tmp_path: Path, value: object) -> None:
    folder = write_hub_folder(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"the token '\\ud800', which is half of a char"):
        tokenizer_of_folder(folder, Fields({"eos_token": value}, "c"), 1 << 20)


@pytest.mark.parametrize(("stated", "loads"), [({}, 1), ({"pad_token": "<new>"}, 2)])
def test_a_tokenizer_is_loaded_once_unless_tokens_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: dict[str, str], loads: int
) -> None:
    """That takes a second for a large one."""
    loaded = []

    class Counted:
        @staticmethod
        def from_buffer(content: bytes) -> Tokenizer:
            loaded.append(content)
            return Tokenizer.from_buffer(content)

    folder = write_hub_folder(tmp_path)
    monkeypatch.setattr("penstock.text.tokenizer.Backend", Counted)
    tokenizer_of_folder(folder, Fields(stated, "c"), 1 << 20)
    assert len(loaded) == loads


@pytest.mark.parametrize("as_texts", [False, True])
def test_merges_into_a_token_without_an_embedding_are_left_out(
    tmp_path: Path, as_texts: bool
) -> None:
    vocabulary = {"a": 0, "b": 1, "c": 2, "bc": 3, "ab": 4}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("b", "c")]))
    tokenizer.add_tokens(["ab"])
    file = json.loads(tokenizer.to_str())
    if as_texts:
        file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    found = tokenizer_of_folder(tmp_path, Fields({}, "c"), 4)
    assert found.highest_id == 3
    assert Tokenizer.from_buffer(found.json).encode("abc").ids == [0, 3]


def test_an_end_without_an_embedding_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(byte_level_tokenizer().to_str())
    size = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens(["<end>"])
    folder = write_hub_folder(
        tmp_path / "m",
        config={**LLAMA_CONFIG, "vocab_size": size},
        tokenizer=tokenizer,
        tokenizer_config={"eos_token": "<end>"},
    )
    with pytest.raises(UnsupportedModel, match=f"highest id is {size}, but .* only {size} embed"):
        prepare(str(folder), cache_dir=str(tmp_path / "cache"))


def test_bytes_behind_the_last_tensor_are_refused(tmp_path: Path) -> None:
    """Comfy-Org/ComfyUI issue 15602: such a file was read or not, by the way that it was read."""
    folder = write_hub_folder(tmp_path / "m")
    with (folder / "model.safetensors").open("ab") as file:
        file.write(bytes(8))
    with pytest.raises(UnsupportedModel, match="8 bytes at its end belong to no tensor"):
        prepare(str(folder), cache_dir=str(tmp_path / "cache"))
