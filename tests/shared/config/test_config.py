"""Flags, files and the reference's table say what the configuration tree says."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.cli.table import updated
from penstock.config import flags
from penstock.config.settings import EngineConfig, ServeConfig
from penstock.config.tree import Leaf, leaves, load_file, replace_settings
from penstock.errors import InvalidRequest

SETTINGS = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"
LEAVES = leaves(ServeConfig)


def parse(*arguments: str) -> ServeConfig:
    parser = argparse.ArgumentParser(exit_on_error=False)
    flags.add_settings(parser, flags.SERVE)
    return flags.resolve(parser.parse_args(list(arguments)))


def value_at(config: Any, leaf: Leaf) -> Any:
    for name in leaf.path:
        config = getattr(config, name)
    return config


def nested(leaf: Leaf, value: Any) -> Any:
    for name in reversed(leaf.path):
        value = {name: value}
    return value


def decodes(leaf: Leaf, value: Any) -> bool:
    """What msgspec itself says about the value, in the tree's own JSON."""
    try:
        msgspec.json.decode(msgspec.json.encode(nested(leaf, value)), type=ServeConfig)
    except msgspec.ValidationError:
        return False
    return True


def test_no_flags_means_the_defaults() -> None:
    assert parse() == ServeConfig()


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.name)
def test_every_setting_is_described(leaf: Leaf) -> None:
    assert leaf.description.endswith(".")
    assert value_at(ServeConfig(), leaf) == leaf.default


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.name)
def test_a_flag_takes_what_the_tree_takes_and_nothing_else(leaf: Leaf) -> None:
    trials = [-1, 0, 1, 2, 0.5, 0.95, 1000, 70_000, 2**31, "float32", "auto", "some text", ""]
    for value in trials:
        # A flag's text is a string to a setting of text, whatever it looks like.
        meant = str(value) if leaf.kind is str else value
        if leaf.kind is bool and value in (0, 1):
            meant = bool(value)
        text = f"{leaf.flag}={value}"
        if decodes(leaf, meant):
            assert value_at(parse(text), leaf) == meant
        else:
            with pytest.raises(argparse.ArgumentError) as caught:
                parse(text)
            assert leaf.flag in str(caught.value)
            assert leaf.allowed in str(caught.value)


def test_a_switch_can_be_given_in_four_ways() -> None:
    for given, expected in (
        ("--enable-prefix-caching", True),
        ("--enable-prefix-caching=true", True),
        ("--enable-prefix-caching=false", False),
        ("--no-enable-prefix-caching", False),
    ):
        assert parse(given).engine.cache.enable_prefix_caching is expected


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_a_number_must_be_finite(text: str) -> None:
    with pytest.raises(argparse.ArgumentError, match="--shutdown-timeout"):
        parse(f"--shutdown-timeout={text}")


def test_an_error_names_flag_and_range() -> None:
    with pytest.raises(argparse.ArgumentError, match=r"--port: '99999' .*\[0, 65,535\]"):
        parse("--port", "99999")
    allowed = "auto, bfloat16, float16, float32"
    with pytest.raises(argparse.ArgumentError, match=rf"--dtype: 'int4' .*{allowed}"):
        parse("--dtype", "int4")


def test_flags_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("gateways: 3\nengine:\n  model:\n    dtype: bfloat16\n    max_model_len: 99\n")
    config = parse("--config", str(file), "--dtype", "float32", "--max-model-len", "none")
    assert config.gateways == 3
    assert config.engine.model.dtype == "float32"
    assert config.engine.model.max_model_len is None


def test_a_resolved_configuration_reads_back(tmp_path: Path) -> None:
    config = parse("--threads", "2", "--port", "0", "--model", "minilm")
    file = tmp_path / "config.json"
    file.write_bytes(msgspec.json.encode(config))
    assert load_file(ServeConfig, str(file)) == config


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gatewayz: 2", "gatewayz"),
        ('{"engine": {"model": {"dtipe": "auto"}}}', "dtipe"),
        ("gateway: {port: 70000}", "$.gateway.port"),
        ("engine: [", "config.yaml"),
        ("", "object"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(InvalidRequest) as caught:
        load_file(ServeConfig, str(file))
    assert named in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"/no/such/file.*No such file"):
        load_file(ServeConfig, "/no/such/file")


def test_keywords_reach_any_depth_and_unknown_ones_are_refused() -> None:
    config = replace_settings(EngineConfig(), {"max_num_seqs": 3, "dtype": "float32"})
    assert (config.scheduler.max_num_seqs, config.model.dtype) == (3, "float32")
    with pytest.raises(InvalidRequest, match="'max_num_sequences'"):
        replace_settings(EngineConfig(), {"max_num_sequences": 3})
    with pytest.raises(InvalidRequest, match=r"max_num_seqs: 0 .*\[1, 4,096\]"):
        replace_settings(EngineConfig(), {"max_num_seqs": 0})


def test_the_references_table_is_current() -> None:
    text = SETTINGS.read_text(encoding="utf-8")
    assert updated(text) == text, "run `make format`"


def test_advanced_flags_work_and_only_help_all_shows_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as left:
            parse(flag)
        assert left.value.code == 0
        shown[flag] = capsys.readouterr().out
    assert any(leaf.advanced for leaf in LEAVES)
    for leaf in LEAVES:
        assert (f" {leaf.flag} " in shown["--help"]) != leaf.advanced
        assert f" {leaf.flag} " in shown["--help-all"]
    assert parse("--max-batch-lines", "7").storage.max_batch_lines == 7


def test_a_help_names_a_default_once_and_never_an_empty_one() -> None:
    """--allowed-origins ended with "default: none. Default: ."."""
    for leaf in LEAVES:
        text = flags.help_text(leaf)
        assert len(re.findall("default:", text, re.IGNORECASE)) <= 1, text
        assert not re.search(r"[Dd]efault: *\.", text), text
        if leaf.default not in (None, ""):
            assert f"Default: {leaf.default}." in text, text
