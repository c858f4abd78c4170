"""Prepared folders: re-used while their inputs are the same, whole or not there at all."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from penstock.errors import ModelNotFound, StartupError, UnsupportedModel
from penstock.prepare import find_prepared, load_manifest, prepare
from penstock.prepare import folder as prepared_folder
from penstock.prepare.folder import check_weights
from penstock.prepare.inputs import folder_inputs
from testing.tiny_models import write_gguf, write_hub_folder

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_hub_folder(tmp_path / "model")


def _inodes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


def test_an_unchanged_model_is_not_prepared_again(tmp_path: Path, model: Path) -> None:
    said: list[str] = []
    first = prepare(str(model), cache_dir=str(tmp_path / "cache"), progress=said.append)
    before = _inodes(first)
    assert sorted(before) == ["chat_template.jinja", "manifest.json", "tokenizer.json"]
    second = prepare(str(model), cache_dir=str(tmp_path / "cache"), progress=said.append)
    assert second == first
    assert _inodes(second) == before
    assert said == ["preparing model"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_a_changed_input_leads_to_another_folder(tmp_path: Path, model: Path, name: str) -> None:
    first = prepare(str(model), cache_dir=str(tmp_path / "cache"))
    before = _inodes(first)
    os.utime(model / name, ns=(1, 1))
    second = prepare(str(model), cache_dir=str(tmp_path / "cache"))
    assert second != first
    assert _inodes(first) == before, "a folder that is in use was changed"


@pytest.mark.parametrize("folder", ["2_Dense", "projection"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_changed_module_leads_to_another_folder(model: Path, folder: str, name: str) -> None:
    """Whatever sentence-transformers' module is called."""
    (model / folder).mkdir()
    for each in ("config.json", "model.safetensors"):
        (model / folder / each).write_text("{}")
    modules = [{"path": "", "type": "x.Transformer"}, {"path": folder, "type": "x.Dense"}]
    (model / "modules.json").write_text(json.dumps(modules))
    inputs = folder_inputs(model)
    assert model / folder / name in inputs
    assert len(inputs) == len(set(inputs))


@pytest.mark.parametrize("modules", ["{", "[3]", '[{"path": "../up"}]', '[{"type": "x.Dense"}]'])
def test_modules_that_can_not_be_read_are_left_to_their_reader(model: Path, modules: str) -> None:
    (model / "modules.json").write_text(modules)
    assert model / "modules.json" in folder_inputs(model)


def test_digest_depends_on_what_outputs_depend_on(tmp_path: Path, model: Path) -> None:
    def digest() -> str:
        return load_manifest(prepare(str(model), cache_dir=str(tmp_path / "cache"))).digest

    first = digest()
    os.utime(model / "model.safetensors", ns=(1, 1))
    assert digest() == first, "times don't matter"
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    second = digest()
    assert second != first
    (model / "chat_template.jinja").write_text("{{ messages }}")
    third = digest()
    assert third not in (first, second)
    (model / "generation_config.json").write_text('{"eos_token_id": [1, 2, 7]}')
    fourth = digest()
    assert fourth not in (first, second, third), "where an answer ends"
    (model / "generation_config.json").write_text('{"eos_token_id": [1, 2, 7], "temperature": 2}')
    assert digest() == fourth, "a request's answer doesn't depend on what holds where it is silent"


@pytest.mark.parametrize("damage", ["manifest.json", "tokenizer.json", "chat_template.jinja", ""])
def test_a_damaged_folder_is_made_again(tmp_path: Path, model: Path, damage: str) -> None:
    folder = prepare(str(model), cache_dir=str(tmp_path / "cache"))
    if damage:
        (folder / damage).write_bytes(b"")
    else:
        for path in folder.iterdir():
            path.unlink()
    assert prepare(str(model), cache_dir=str(tmp_path / "cache")) == folder
    assert load_manifest(folder).name == "model"
    assert all((folder / name).stat().st_size for name in ("tokenizer.json", "chat_template.jinja"))


def test_other_weights_of_the_same_size_and_time_lead_to_another_folder(
    tmp_path: Path, model: Path
) -> None:
    folder = prepare(str(model), cache_dir=tmp_path)
    former, before = load_manifest(folder), _inodes(folder)
    check_weights(former)
    weights = model / "model.safetensors"
    status, whole = weights.stat(), weights.read_bytes()
    weights.write_bytes(whole[:-7] + b"changed")
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(StartupError, match=rf"{weights} isn't what it was when model was prepared"):
        check_weights(former)
    other = prepare(str(model), cache_dir=tmp_path)
    assert other != folder
    assert _inodes(folder) == before, "a folder that is in use was changed"
    check_weights(load_manifest(other))
    assert load_manifest(other).digest != former.digest
    weights.unlink()
    with pytest.raises(StartupError, match="can't be read: No such file"):
        check_weights(former)


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
@pytest.mark.parametrize("damage", ["cut off", "overwritten"])
def test_a_file_that_is_not_what_was_written_is_made_again(
    tmp_path: Path, model: Path, name: str, damage: str
) -> None:
    folder = prepare(str(model), cache_dir=tmp_path)
    whole = (folder / name).read_bytes()
    bad = whole[:-7] if damage == "cut off" else whole[:-7] + b"\0" * 7
    (folder / name).write_bytes(bad)
    assert prepare(str(model), cache_dir=tmp_path) == folder
    assert (folder / name).read_bytes() == whole


def test_another_format_version_is_not_used(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = prepare(str(model), cache_dir=str(tmp_path / "cache"))
    this = prepared_folder.FORMAT_VERSION
    monkeypatch.setattr(prepared_folder, "FORMAT_VERSION", this + 1)
    with pytest.raises(
        UnsupportedModel, match=f"format version {this}, this build reads {this + 1}"
    ):
        load_manifest(old)


def test_a_manifest_in_another_versions_shape_is_said_to_be_of_that(tmp_path: Path) -> None:
    """Of format version 19, encoders' layers were null or a decoder's."""
    manifest = {"format_version": 19, "config": {"kind": "encoder", "layers": None}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UnsupportedModel, match=r"version 19, .*prepare the model again"):
        load_manifest(tmp_path)


def test_a_manifest_of_an_unknown_family(tmp_path: Path, model: Path) -> None:
    """A later release may have written it."""
    folder = prepare(str(model), cache_dir=tmp_path)
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    assert '"architecture": "llama"' in text
    manifest.write_text(text.replace('"architecture": "llama"', '"architecture": "llama9"'))
    with pytest.raises(UnsupportedModel, match="the family 'llama9' is not served"):
        load_manifest(folder)


def test_several_processes_at_once(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    code = (
        "import sys; from penstock.prepare import prepare; "
        "print(prepare(sys.argv[1], cache_dir=sys.argv[2]))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(tmp_path / "cache")],
            stdout=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    printed = {process.communicate(timeout=150)[0] for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(printed) == 1
    folder = Path(printed.pop().strip())
    assert load_manifest(folder).name == "tiny"
    assert [p.name for p in folder.parent.iterdir() if p.name != ".lock"] == [folder.name]


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path, model: Path) -> None:
    models = tmp_path / "cache" / "models"
    old, new = models / ".making-old", models / ".making-new"
    for left in (old, new):
        left.mkdir(parents=True)
        (left / "tokenizer.json").touch()
    long_ago = time.time() - 7200
    os.utime(old, (long_ago, long_ago))
    prepare(str(model), cache_dir=str(tmp_path / "cache"))
    assert not old.exists()
    assert new.exists(), "another process may be at work there"


def test_default_cache_folder(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert prepare(str(model)).parent == tmp_path / "xdg" / "penstock" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert prepare(str(model)).parent == tmp_path / "home" / ".cache" / "penstock" / "models"


def _no_home(folder: Path, monkeypatch: pytest.MonkeyPatch, home: Path | None) -> Path:
    """Where the cache then is. folder: of temporary files."""
    folder.mkdir()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    if home is not None:
        monkeypatch.setenv("HOME", str(home))
    return folder / f"penstock-cache-{os.getuid()}"


@pytest.mark.parametrize("home", [Path("/dev/null"), None], ids=["not writable", "unknown"])
def test_without_a_home_the_cache_is_a_temporary_folder(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, home: Path | None
) -> None:
    cache = _no_home(tmp_path / "t", monkeypatch, home)
    first = prepare(str(model))
    assert first.is_relative_to(cache)
    assert cache.stat().st_mode & 0o777 == 0o700
    assert find_prepared(str(model)) == first


@pytest.mark.parametrize("home", [Path("/dev/null"), None], ids=["not writable", "unknown"])
@pytest.mark.parametrize("whose", ["writable by all", "a link"])
def test_a_temporary_folder_that_others_can_write_is_no_cache(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, home: Path | None, whose: str
) -> None:
    cache = _no_home(tmp_path / "t", monkeypatch, home)
    if whose == "a link":
        cache.symlink_to(tmp_path)
    else:
        cache.mkdir()
        cache.chmod(0o777)
    with pytest.raises(StartupError, match="--cache-dir names another place"):
        prepare(str(model))
    assert list((tmp_path / "t").iterdir()) == [cache]


def test_a_cache_folder_that_cannot_be_written(tmp_path: Path, model: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match=f"{tmp_path}/file/.* --cache-dir names another place"):
        prepare(str(model), cache_dir=str(tmp_path / "file"))


def test_reading_a_manifest_needs_no_tokenizer_library(tmp_path: Path, model: Path) -> None:
    folder = prepare(str(model), cache_dir=str(tmp_path / "cache"))
    code = (
        "import sys; from penstock.prepare import load_manifest; load_manifest(sys.argv[1]); "
        "print([m for m in ('numpy', 'tokenizers', 'jinja2', 'torch') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=150
    )
    assert (ran.stdout.strip(), ran.returncode) == ("[]", 0), ran.stderr


def test_what_is_no_prepared_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="not a prepared folder"):
        load_manifest(tmp_path)
    this = prepared_folder.FORMAT_VERSION
    (tmp_path / "manifest.json").write_text(f'{{"format_version": {this}}}')
    with pytest.raises(UnsupportedModel, match="can't be read"):
        load_manifest(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "nope", "./nope", "/no/such/model.gguf", "no/such.gguf", "a/b/c", "../x"),
        *("a" * 5000, "/" + "a" * 300, "a\0b", "~nobody-of-this-name/a", "\ud800"),
    ],
)
def test_names_that_lead_nowhere(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)  # Elsewhere "../x" may be there.
    with pytest.raises(ModelNotFound, match=r"smollm2-135m.*hub id"):
        prepare(name, cache_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("weights.bin", "pickled"),
        ("weights.pt", "pickled"),
        ("model.safetensors", "give the folder that contains it"),
        ("notes.txt", "is not a .gguf file"),
        ("broken.gguf", "not a readable GGUF file"),
    ],
)
def test_files_of_other_kinds(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / name).write_text("something else")
    with pytest.raises(UnsupportedModel, match=reason):
        prepare(str(tmp_path / name), cache_dir=str(tmp_path / "cache"))


def test_a_gguf_file_needs_no_suffix(tmp_path: Path) -> None:
    """The hub's cache keeps files under names that are digests."""
    write_gguf(tmp_path / "x.gguf").rename(tmp_path / "blob")
    assert (
        load_manifest(prepare(str(tmp_path / "blob"), cache_dir=str(tmp_path / "c"))).name == "blob"
    )


def test_what_is_prepared_is_found_without_the_readers(tmp_path: Path, model: Path) -> None:
    cache = str(tmp_path / "cache")
    assert find_prepared(str(model), cache) is None
    assert find_prepared(str(tmp_path / "none"), cache) is None
    folder = prepare(str(model), cache_dir=cache)
    code = (
        "import sys; from penstock.prepare import find_prepared\n"
        "print(find_prepared(*sys.argv[1:]))\n"
        "heavy = ('numpy', 'tokenizers', 'huggingface_hub')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(model), cache],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ran.stdout.splitlines() == [str(folder), "[]"]
    (folder / "tokenizer.json").write_bytes(b"{}")
    assert find_prepared(str(model), cache) is None
