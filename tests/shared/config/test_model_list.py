"""The list of several models: what it may say, and what each model is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.model_list import (
    ModelEntry,
    check_for_several,
    checked,
    config_of,
    gateway_config_of,
    name_of,
    read_list,
)
from penstock.config.settings import ServeConfig
from penstock.config.tree import replace_settings
from penstock.errors import InvalidRequest
from penstock.request.lora import adapters_of, check_adapters


def write(folder: Path, text: str) -> str:
    file = folder / "models.yaml"
    file.write_text(text)
    return str(file)


def test_entries_get_names_settings_and_a_part_of_what_is_shared_out(tmp_path: Path) -> None:
    entries = read_list(
        write(
            tmp_path,
            """
models:
  - model: smollm2-135m
    aliases: [small, gpt-4o-mini]
    settings: {max_model_len: 256, tool_call_parser: hermes, threads: 3}
  - name: other
    model: ./folder/another.gguf
    load: on-demand
    memory_gib: 1.5
""",
        )
    )
    assert [entry.names for entry in entries] == [
        ("smollm2-135m", "small", "gpt-4o-mini"),
        ("other",),
    ]
    assert [entry.pinned for entry in entries] == [True, False]
    base = ServeConfig()
    first, second = (config_of(entry, base, 2).engine for entry in entries)
    assert first.model.served_names == ("smollm2-135m", "small", "gpt-4o-mini")
    assert (first.model.model, first.model.max_model_len) == ("smollm2-135m", 256)
    assert first.worker.threads == 3
    assert second.cache.kv_memory_gib == base.engine.cache.kv_memory_gib / 2
    assert gateway_config_of(entries[0], base.gateway).tool_call_parser == "hermes"
    assert gateway_config_of(entries[1], base.gateway) == base.gateway


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: []", "0 models; 1 to 64 are allowed"),
        ("models: [{model: a}, {model: a}]", "two models are called 'a'"),
        ("models: [{model: a, aliases: [b]}, {model: b}]", "two models are called 'b'"),
        ("models: [{model: a, name: 'x y'}]", "can't be called 'x y'"),
        ("models: [{model: a, memory_gib: 0}]", "memory_gib of a must be above 0"),
        ("models: [{model: a, settings: {port: 1}}]", "no model has a setting 'port' of its own"),
        ("models: [{model: a, settings: {max_model_len: 0}}]", "a: max_model_len: 0 is not"),
        ("models: [{model: a, load: later}]", "Invalid enum value 'later'"),
        ("models: [{model: a, size: 1}]", "unknown field `size`"),
    ],
)
def test_a_wrong_entry_of_the_list_of_models_is_named(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_list(write(tmp_path, text))
    assert words in str(caught.value)


def test_a_model_is_called_by_what_names_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert name_of("smollm2-135m") == "smollm2-135m"
    assert name_of("HuggingFaceTB/SmolLM2-135M") == "HuggingFaceTB/SmolLM2-135M"
    assert name_of("/models/tiny.Q4_0.gguf") == "tiny.Q4_0"
    assert name_of(str(tmp_path / "folder")) == "folder"


@pytest.mark.parametrize("name", ["served_model_name", "lora_modules", "executor"])
def test_settings_of_one_model_are_refused_for_several(name: str) -> None:
    value = "ray" if name == "executor" else "x=y"
    with pytest.raises(InvalidRequest, match=name):
        check_for_several(replace_settings(ServeConfig(), {name: value}))


def test_two_words_for_one_model_need_a_name() -> None:
    with pytest.raises(InvalidRequest, match="give one a name"):
        checked([ModelEntry(model="/a/m.gguf"), ModelEntry(model="/b/m.gguf")], "the models named")


def test_adapters_of_an_entry_have_names_that_nobody_else_has() -> None:
    rhymes = {"enable_lora": True, "lora_modules": "rhymes=/a\nprose=/b"}
    entry = ModelEntry(model="one", settings=rhymes)
    [named] = checked([entry], "here")
    assert adapters_of(named) == ("rhymes", "prose")
    for other in (ModelEntry(model="prose"), ModelEntry(model="two", settings=rhymes)):
        with pytest.raises(InvalidRequest, match=r"an adapter is called '.*', and that is"):
            check_adapters(checked([entry, other], "here"))
    broken = ModelEntry(model="one", settings={"lora_modules": "rhymes"})
    with pytest.raises(InvalidRequest, match="one: lora_modules: 'rhymes' is not NAME=PATH"):
        check_adapters(checked([broken], "here"))


def test_recordings_of_models_keep_apart(tmp_path: Path) -> None:
    base = replace_settings(ServeConfig(), {"record_dir": str(tmp_path)})
    names = ("a/b", "a-b", "a%2Fb", "..", ".", "a b")
    folders = {
        config_of(ModelEntry(model="m", name=name), base, len(names)).engine.record.record_dir
        for name in names
    }
    assert len(folders) == len(names)
    assert {Path(str(folder)).resolve().parent for folder in folders} == {tmp_path}
