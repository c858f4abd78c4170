"""What adapters are called: in settings, in LoRARequest, and by what was said last."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import BinaryIO

import pytest

from penstock import LoRARequest
from penstock.adapters import read_adapter
from penstock.client.adapters import AdapterDirectory
from penstock.config import flags
from penstock.errors import InvalidRequest
from penstock.llm.adapters import LibraryAdapters
from penstock.llm.keywords import engine_config
from penstock.prepare import adapters as copies
from penstock.prepare.adapters import prepare_adapter
from penstock.protocol.common import AdapterFile, NamedAdapter
from penstock.request.lora import LoraModule, lora_modules
from penstock.request.terms import Terms
from penstock_engine.waiting.adapter_entry import AdapterNames
from tests.adapter_folders import random_factors, write_peft

FILES = [AdapterFile(digit * 64, f"/{digit}") for digit in "abc"]
SHAPES = {"model.layers.0.self_attn.q_proj": (16, 8)}


def parsed(*words: str) -> str | None:
    parser = argparse.ArgumentParser()
    flags.add_settings(parser, ("engine", "lora"))
    return flags.resolve(parser.parse_args(words)).engine.lora.lora_modules


def test_adapters_are_given_as_words_repeated_or_as_json() -> None:
    words = parsed("--lora-modules", "a=/x y", '{"name": "b", "path": "/b"}')
    again = parsed("--lora-modules", "a=/x y", "--lora-modules", "b=/b")
    listed = '[{"name": "a", "path": "/x y"}, {"name": "b", "path": "/b"}]'
    whole = [LoraModule("a", "/x y"), LoraModule("b", "/b")]
    for given in (words, again, listed):
        assert lora_modules(given) == whole
    assert lora_modules(parsed()) == []


def test_the_library_takes_them_as_vllm_does() -> None:
    module = {"name": "a", "path": "/a", "base_model_name": "m"}
    config = engine_config({"enable_lora": True, "max_loras": 2, "lora_modules": [module]})
    assert lora_modules(config.lora.lora_modules) == [LoraModule("a", "/a", "m")]
    assert (config.lora.enable_lora, config.lora.max_loras) == (True, 2)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ("a", "NAME=PATH"),
        ("=/a", "1 to 256"),
        ("a=", "no path"),
        ("a=/x\na=/y", "twice"),
        ("served=/x", "the model's own"),
        ('{"name": "a"}', "path"),
        ('{"name": "a", "path": "/a", "rank": 3}', "rank"),
    ],
)
def test_what_names_no_adapter_is_said(given: str, wrong: str) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        lora_modules(given, ["served"])


def test_a_request_names_an_adapter() -> None:
    request = LoRARequest("sql", 3, "/sql")
    assert (request.name, request.path) == ("sql", "/sql")
    for name, number, path in (("", 1, "/a"), ("a", 0, "/a"), ("a", 1, "")):
        with pytest.raises(ValueError, match="lora_"):
            LoRARequest(name, number, path)


# ---- what was said last


def named(name: str, file: int | None, stamp: int) -> NamedAdapter:
    return NamedAdapter(name, None if file is None else FILES[file], stamp)


def test_the_newest_word_holds_in_whatever_order_it_comes() -> None:
    told = [named("a", 0, 0), named("a", 1, 5), named("b", 2, 1), named("a", None, 9)]
    for order in (told, told[::-1]):
        directory = AdapterDirectory()
        for each in order:
            directory.learn([each])
        assert directory.find("a") is None
        assert directory.find("b") == told[2]
        assert directory.present() == [told[2]]
        assert sorted(each.stamp for each in directory.changes()) == [1, 9]
        assert directory.stamp("a") > 9


def test_of_the_settings_adapters_the_newest_engine_cores_word_holds() -> None:
    directory = AdapterDirectory()
    assert directory.learn([named("a", 0, 0)])
    assert not directory.learn([named("a", 0, 0)])
    assert directory.learn([named("a", 1, 0)])
    assert directory.changes() == []


def test_what_is_said_in_the_same_millisecond_is_the_same_for_all() -> None:
    told = [named("a", 0, 5), named("a", 1, 5)]
    ends = []
    for order in (told, told[::-1]):
        front, core = AdapterDirectory(), AdapterNames()
        for each in order:
            front.learn([each])
            core.learn([each])
        ends += [front.find("a"), *core.all()]
    assert ends == [told[1]] * 4


def test_one_name_too_many_takes_nobody_elses_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.adapters.MAX_ADAPTER_NAMES", 2)
    directory = AdapterDirectory()
    directory.learn([named("a", 0, 0), named("b", 1, 1)])
    assert directory.learn([named("c", 2, 2)]) == []
    assert [each.name for each in directory.present()] == ["a", "b"]
    directory.learn([named("b", None, 3), named("c", 2, 4)])
    assert [each.name for each in directory.present()] == ["a", "c"]


# ---- copies


def test_a_copy_is_named_by_its_contents_and_the_oldest_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MOST_COPIES", 2)
    folders = [write_peft(tmp_path / name, random_factors(SHAPES, 4, 1)) for name in ("one", "two")]
    first, second = (prepare_adapter(each, max_rank=4, cache_dir=tmp_path) for each in folders)
    assert first == second, "where it was found says nothing"
    assert Path(first.file.path) == tmp_path / "adapters" / first.file.digest
    for seed in (2, 3):
        write_peft(folders[0], random_factors(SHAPES, 4, seed))
        newest = prepare_adapter(folders[0], max_rank=4, cache_dir=tmp_path)
    left = [each.name for each in (tmp_path / "adapters").iterdir() if each.name[0] != "."]
    assert len(left) == 2
    assert newest.file.digest in left


def test_copies_have_a_bound_of_bytes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, found = tmp_path / "a", []
    for seed in (1, 2, 3, 4):
        write_peft(folder, random_factors(SHAPES, 4, seed))
        size = sum(file.stat().st_size for file in folder.iterdir())
        monkeypatch.setattr(copies, "MOST_COPIED_BYTES", 2 * size + 100)
        keep = {each.file.digest for each in found[:1]}
        found.append(prepare_adapter(folder, max_rank=4, cache_dir=tmp_path, keep=keep))
    left = {each.name for each in (tmp_path / "adapters").iterdir() if each.name[0] != "."}
    assert left == {found[0].file.digest, found[3].file.digest}


def test_a_copy_that_is_asked_for_stays_and_a_damaged_one_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MOST_COPIES", 1)
    folder = write_peft(tmp_path / "a", random_factors(SHAPES, 4, 1))
    first = prepare_adapter(folder, max_rank=4, cache_dir=tmp_path)
    Path(first.file.path, "adapter_model.safetensors").unlink()
    assert prepare_adapter(folder, max_rank=4, cache_dir=tmp_path) == first
    assert read_adapter(Path(first.file.path))[0] == first.file.digest
    for seed in (2, 3):
        write_peft(folder, random_factors(SHAPES, 4, seed))
        newest = prepare_adapter(
            folder, max_rank=4, cache_dir=tmp_path, keep={first.file.digest}
        ).file
    left = {each.name for each in (tmp_path / "adapters").iterdir() if each.name[0] != "."}
    assert left == {first.file.digest, newest.digest}


def test_links_and_files_that_change_while_they_are_opened_give_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = tmp_path / "allowed"
    folder = write_peft(allowed / "a", random_factors(SHAPES, 4, 1))
    secret = write_peft(tmp_path / "secret", random_factors(SHAPES, 4, 2))
    weights = folder / "adapter_model.safetensors"
    opens = copies.open_regular

    def late(path: Path) -> BinaryIO:
        """Between the look at a link and its opening somebody turns it."""
        if path == weights:
            weights.unlink()
            weights.symlink_to(secret / weights.name)
        return opens(path)

    monkeypatch.setattr(copies, "open_regular", late)
    (allowed / "loop").symlink_to(allowed / "loop")
    for name in ("a", "loop"):
        with pytest.raises(InvalidRequest, match=f"no adapter is at {name}:"):
            prepare_adapter(
                allowed / name, max_rank=4, cache_dir=tmp_path, within=allowed, shown=name
            )


def test_a_file_that_grows_is_not_copied_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_peft(tmp_path / "a", random_factors(SHAPES, 4, 1))
    monkeypatch.setattr(copies, "MAX_ADAPTER_BYTES", 100)
    with pytest.raises(InvalidRequest, match="larger than 100 bytes"):
        prepare_adapter(folder, max_rank=4, cache_dir=tmp_path)
    monkeypatch.undo()
    (folder / "adapter_config.json").write_bytes(b" " * (2 << 20))
    with pytest.raises(InvalidRequest, match=r"adapter_config\.json is larger"):
        prepare_adapter(folder, max_rank=4, cache_dir=tmp_path)


def test_an_adapter_is_read_again_when_its_files_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_peft(tmp_path / "a", random_factors(SHAPES, 4, 1))
    request, adapters = LoRARequest("a", 1, str(folder)), LibraryAdapters(str(tmp_path))

    async def digests(count: int, given: object) -> list[str | None]:
        terms = await adapters.apply([Terms()] * count, given, 4)  # type: ignore[arg-type]
        return [each.adapter and each.adapter.digest for each in terms]

    one, none = asyncio.run(digests(2, [request, None]))
    assert none is None
    monkeypatch.setattr(adapters, "_read", None)
    assert asyncio.run(digests(2, request)) == [one, one]
    monkeypatch.undo()
    write_peft(folder, random_factors(SHAPES, 4, 2), alpha=9.5)
    (other,) = asyncio.run(digests(1, request))
    assert other not in (one, None)


def test_the_library_reads_an_unfit_adapter_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_peft(tmp_path / "a", random_factors(SHAPES, 4, 1), use_dora=True)
    request, adapters = LoRARequest("a", 1, str(folder)), LibraryAdapters(str(tmp_path))

    def why(rank: int) -> str:
        with pytest.raises(InvalidRequest) as error:
            asyncio.run(adapters.apply([Terms()], request, rank))
        assert error.value.code == "invalid_adapter"
        return error.value.message

    said = why(4)
    assert "use_dora" in said
    with monkeypatch.context() as patched:
        patched.setattr(adapters, "_read", None)
        assert why(4) == said
    write_peft(folder, random_factors(SHAPES, 4, 1), alpha=9.5)
    assert asyncio.run(adapters.apply([Terms()], request, 4))[0].adapter is not None


def test_the_library_says_what_is_wrong_with_its_adapters(tmp_path: Path) -> None:
    adapters, request = LibraryAdapters(str(tmp_path)), LoRARequest("a", 1, str(tmp_path / "a"))
    for given, rank, wrong in (
        (request, 0, "enable_lora=True"),
        ([request], 4, "one for each"),
        (["a", None], 4, "not str"),
        (request, 4, "no adapter is at"),
    ):
        with pytest.raises(InvalidRequest, match=wrong):
            asyncio.run(adapters.apply([Terms()] * 2, given, rank))  # type: ignore[arg-type]
