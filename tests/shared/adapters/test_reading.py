"""Reading adapters: what they hold, what names them, and why one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.adapters import UnfitAdapter, read_adapter
from tests.adapter_folders import random_factors, write_gguf, write_peft

Q = "model.layers.0.self_attn.q_proj"
DOWN = "model.layers.1.mlp.down_proj"
SHAPES = {Q: (32, 16), DOWN: (16, 48)}


def test_a_peft_folder_has_its_factors_and_scales(tmp_path: Path) -> None:
    factors = random_factors(SHAPES, 4, 1)
    _, adapter = read_adapter(write_peft(tmp_path / "a", factors, alpha=6, lora_dropout=0.5))
    assert (adapter.rank, adapter.base, adapter.format) == (4, "some/model", "peft")
    assert [each.module for each in adapter.modules] == [Q, DOWN]
    for each in adapter.modules:
        down, up = factors[each.module]
        assert each.scale == 6 / 4
        assert np.array_equal(each.down.data.view(np.float32).reshape(each.down.shape), down)
        assert np.array_equal(each.up.data.view(np.float32).reshape(each.up.shape), up)


def test_scales_by_root_and_by_pattern(tmp_path: Path) -> None:
    factors = random_factors({Q: SHAPES[Q]}, 4, 1) | random_factors({DOWN: SHAPES[DOWN]}, 9, 2)
    folder = write_peft(
        tmp_path / "a",
        factors,
        use_rslora=True,
        r=4,
        rank_pattern={"down_proj": 9},
        alpha_pattern={"layers.1.mlp.down_proj": 30},
    )
    _, adapter = read_adapter(folder)
    assert [each.scale for each in adapter.modules] == [8 / 2, 30 / 3]


def test_a_gguf_file(tmp_path: Path) -> None:
    factors = random_factors({"blk.0.attn_q": (32, 16)}, 4, 1)
    _, adapter = read_adapter(write_gguf(tmp_path / "a.gguf", factors, alpha=2))
    (module,) = adapter.modules
    assert (module.module, module.scale, module.rank) == ("blk.0.attn_q", 0.5, 4)
    assert (module.down.shape, module.up.shape) == ((4, 16), (32, 4))
    assert (adapter.format, adapter.architecture) == ("gguf", "llama")


def test_the_digest_is_of_the_contents_alone(tmp_path: Path) -> None:
    factors = random_factors(SHAPES, 4, 1)
    digest, _ = read_adapter(write_peft(tmp_path / "a", factors))
    same, _ = read_adapter(write_peft(tmp_path / "b", factors, lora_dropout=0, task_type=None))
    assert same == digest
    assert len(digest) == 64
    scaled, _ = read_adapter(write_peft(tmp_path / "c", factors, alpha=9))
    factors[Q][0][0, 0] += 1
    changed, _ = read_adapter(write_peft(tmp_path / "d", factors))
    assert len({digest, scaled, changed}) == 3


def test_what_one_part_ends_with_is_not_what_the_next_one_begins_with(tmp_path: Path) -> None:
    """Whoever may name an adapter's modules gives it no other's digest."""
    _, read = read_adapter(write_peft(tmp_path / "a", random_factors(SHAPES, 4, 1)))
    first = read.modules[0]
    names = [("blk", ".0.q"), ("blk.0", ".q"), ("blk.0.q", "")]
    digests = {
        msgspec.structs.replace(
            read, architecture=before, modules=(msgspec.structs.replace(first, module=after),)
        ).digest()
        for before, after in names
    }
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type is IA3"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is pissa"),
        ({"something_new": 3}, "something_new is 3"),
        ({"alpha_pattern": {"(a+)+": 3}}, "not patterns"),
        ({"alpha_pattern": {"q_proj": float("nan")}}, "nan"),
        ({"alpha_pattern": {"q_proj": 10**400}}, "a finite number"),
        ({"bias": "x" * 100_000}, r"bias is '[^']{,500}$"),
        ({"lora_alpha": "8"}, "a number is needed"),
        ({"r": 5}, "has rank 4; adapter_config.json says 5"),
    ],
)
def test_settings_that_are_not_served(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    folder = write_peft(tmp_path / "a", random_factors(SHAPES, 4, 1), **settings)
    with pytest.raises(UnfitAdapter, match=said):
        read_adapter(folder)


def test_damaged_files_say_what_is_wrong_and_no_folder(tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "a", random_factors(SHAPES, 4, 1))
    weights = folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    for content in (whole[:-4], b"", whole[:100]):
        weights.write_bytes(content)
        with pytest.raises(UnfitAdapter) as error:
            read_adapter(folder)
        assert str(tmp_path) not in str(error.value)
        assert "adapter_model.safetensors" in str(error.value)
    weights.unlink()
    with pytest.raises(UnfitAdapter, match=r"has no adapter_model\.safetensors"):
        read_adapter(folder)
    with pytest.raises(UnfitAdapter, match="is not an adapter"):
        read_adapter(tmp_path / "nothing")


def test_tensors_that_are_no_pair(tmp_path: Path) -> None:
    down, up = random_factors(SHAPES, 4, 1)[Q]
    with pytest.raises(UnfitAdapter, match="don't fit together"):
        read_adapter(write_peft(tmp_path / "a", {Q: (down, up[:, :3].copy())}))
    for theirs, said in (
        (b".lora_embed_B2", "lora_embed_B2 is of a kind that is not supported"),
        (b".lora_AB.weigh", "lora_AB.weigh is of a kind"),
    ):
        folder = write_peft(tmp_path / "b", {"model.embed_tokens.": (down, up)})
        file = folder / "adapter_model.safetensors"
        file.write_bytes(file.read_bytes().replace(b"..lora_B.weight", b"." + theirs))
        with pytest.raises(UnfitAdapter, match=said):
            read_adapter(folder)


def test_two_factors_of_one_kind(tmp_path: Path) -> None:
    """A layer and an embedding are named."""
    factors = random_factors({Q: SHAPES[Q]}, 4, 1)
    more = {f"{Q}.lora_embedding_A": np.ones((4, 16), np.float32)}
    with pytest.raises(UnfitAdapter, match=r"has base_model.*lora_.* and base_model.*lora_"):
        read_adapter(write_peft(tmp_path / "a", factors, whole=more))


def test_whole_matrices_lengths_and_embeddings(tmp_path: Path) -> None:
    whole = {"lm_head.weight": np.ones((6, 4), np.float32)}
    token = {"model.embed_tokens": (4, 6)}
    plain = random_factors(token | SHAPES, 4, 1)
    digest, adapter = read_adapter(write_peft(tmp_path / "a", plain, whole=whole))
    assert [(each.name, each.shape) for each in adapter.whole] == [("lm_head.weight", (6, 4))]
    assert [each.module for each in adapter.modules] == ["model.embed_tokens", Q, DOWN]
    assert (adapter.modules[0].down.shape, adapter.modules[0].up.shape) == ((4, 6), (4, 4))
    lengths = {name: np.full(outputs, 2, np.float32) for name, (outputs, _) in SHAPES.items()}
    factors = random_factors(SHAPES, 4, 1)
    scaled, adapter = read_adapter(write_peft(tmp_path / "b", factors, magnitudes=lengths))
    assert [each.magnitude.shape for each in adapter.modules] == [(32, 1), (16, 1)]
    whole["lm_head.weight"][2, 3] = 0
    other, _ = read_adapter(write_peft(tmp_path / "c", plain, whole=whole))
    lengths[Q][0] = 3
    longer, _ = read_adapter(write_peft(tmp_path / "d", factors, magnitudes=lengths))
    assert len({digest, scaled, other, longer}) == 4


def test_whole_matrices_that_do_not_fit(tmp_path: Path) -> None:
    whole = {"lm_head.weight": np.ones((6, 4), np.float32)}
    with pytest.raises(UnfitAdapter, match="ensure_weight_tying is true"):
        read_adapter(write_peft(tmp_path / "a", {}, whole=whole, ensure_weight_tying=True))
    token = random_factors({"model.embed_tokens": (4, 6)}, 2, 1)
    copied = "model.embed_tokens.base_layer.weight"
    for rows in (6, 7):
        copy = {copied: np.zeros((rows, 4), np.float32)}
        folder = write_peft(tmp_path / str(rows), token, whole=copy)
        if rows == 6:
            assert not read_adapter(folder)[1].whole
            continue
        with pytest.raises(UnfitAdapter, match=r"has shape \(7, 4\); its factors are of"):
            read_adapter(folder)


def test_half_of_a_character_is_refused(tmp_path: Path) -> None:
    """No message between processes can hold it, so its name would keep gateways and engine cores
    apart for good."""
    factors = random_factors(SHAPES, 4, 1)
    for number, said in enumerate(
        ({"base_model_name_or_path": "\ud800"}, {"peft_type": "LO\ud83d"})
    ):
        with pytest.raises(UnfitAdapter, match="surrogates not allowed") as error:
            read_adapter(write_peft(tmp_path / str(number), factors, **said))
        str(error.value).encode()


def test_a_rank_of_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnfitAdapter, match="rank 0"):
        read_adapter(write_peft(tmp_path / "a", random_factors(SHAPES, 0, 1)))


def test_names_of_any_length_make_short_messages(tmp_path: Path) -> None:
    factors = random_factors({"x" * 100_000: (32, 16)}, 4, 1)
    folder = write_peft(tmp_path / "a", factors, r=5, target_modules=[])
    with pytest.raises(UnfitAdapter, match="xxx") as error:
        read_adapter(folder)
    assert len(str(error.value)) < 1000
