"""Folders in the hub's format that want to do harm: a clear error each, at once, without much
memory.

Each case runs in one process of its own, with little memory to take and few seconds of processor
time: what takes more dies, and fails the test.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from penstock.errors import PenstockError, UnsupportedModel
from penstock.prepare.from_hub_folder import read_hub_folder
from testing.tiny_models import LLAMA_CONFIG, write_hub_folder
from tests.met import met
from tests.thinning import part

pytestmark = pytest.mark.timeout(240)

PRELUDE = """
import resource, sys
from pathlib import Path
from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.prepare.from_hub_folder import read_hub_folder
import hashlib, json, numpy, tokenizers
resource.setrlimit(resource.RLIMIT_DATA, (1 << 29, 1 << 29))
for folder in sys.stdin.read().splitlines():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    soft = int(before) + 5
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
    try:
        read_hub_folder(Path(folder))
        print('accepted')
    except (ModelNotFound, UnsupportedModel) as error:
        print(type(error).__name__, str(error)[:3000].replace('\\n', ' '))
    sys.stdout.flush()
"""


def _header(folder: Path, raw: bytes, data: bytes = b"") -> None:
    content = struct.pack("<Q", len(raw)) + raw + data
    (folder / "model.safetensors").write_bytes(content)


def _tensors(folder: Path, *entries: tuple[str, dict[str, Any]], data: int = 16) -> None:
    """Names may occur twice."""
    listed = ",".join(f"{json.dumps(name)}:{json.dumps(entry)}" for name, entry in entries)
    _header(folder, f"{{{listed}}}".encode(), bytes(data))


def _entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def _config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: _write(folder / "config.json", {**LLAMA_CONFIG, **changes})


def _deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def _many(folder: Path) -> None:
    raw = b"{" + b",".join(b'"%07d":0' % number for number in range(2_000_000)) + b"}"
    _header(folder, raw)


def _truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size // 2)


def _shards(folder: Path, index: dict[str, str], **held: list[str]) -> None:
    (folder / "model.safetensors").unlink()
    for shard, names in held.items():
        values = np.full(4, ord(shard[0]), np.float32)
        save_file({n: values.copy() for n in names}, folder / f"{shard}.safetensors")
    _write(folder / "model.safetensors.index.json", {"weight_map": index})


def _pipe(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return make


def _device(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("/dev/zero")

    return make


def _text(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


HUGE = 10**12
CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (_truncated, "cut short"),
    "a header of 2 million tensors": (_many, "header"),
    "deep header": (lambda f: _header(f, b'{"a":' * 5_000_000), "header"),
    "deep list": (lambda f: _header(f, b'{"a":' + b"[" * 20_000_000), "header is not valid"),
    "many dimensions": (
        lambda f: _tensors(f, ("a", _entry(0, 16, [2**40] * 200_000))),
        "200000 dimensions",
    ),
    "a long dimension": (lambda f: _tensors(f, ("a", _entry(0, 16, [2**60, 0]))), "the shape"),
    "overlap": (
        lambda f: _tensors(f, ("a", _entry(0, 16, [4])), ("b", _entry(0, 16, [4]))),
        "lies",
    ),
    "outside": (lambda f: _tensors(f, ("a", _entry(0, 2**62, [2**60]))), "cut short"),
    "negative": (lambda f: _tensors(f, ("a", _entry(-16, 0, [4]))), "lies at bytes -16"),
    "wrong shape": (lambda f: _tensors(f, ("a", _entry(0, 16, [5]))), "takes 16 bytes"),
    "dtype": (lambda f: _tensors(f, ("a", _entry(0, 16, [4], "F5"))), "unknown dtype 'F5'"),
    "a name twice": (
        lambda f: _tensors(f, ("a", _entry(0, 8, [2])), ("a", _entry(8, 16, [2]))),
        "begins at 0",
    ),
    "10^12 embeddings": (_config(vocab_size=HUGE), "vocab_size is 1000000000000"),
    "wide": (_config(hidden_size=1 << 24, num_attention_heads=1 << 16), "all weights together"),
    "10^12 layers": (_config(num_hidden_layers=HUGE), "num_layers is"),
    "10^12 inner": (_config(intermediate_size=HUGE), "intermediate_size is"),
    "10^12 positions": (_config(max_position_embeddings=HUGE), "max_position is"),
    "digits": (_text("config.json", b'{"vocab_size": ' + b"9" * 1_000_000 + b"}"), "readable JSON"),
    "a large theta": (_config(rope_theta=10**400), "rope_theta"),
    "400,000 kinds of layers": (_config(layer_types=["full_attention"] * 400_000), "layer_types"),
    "a class that is a list": (_config(architectures=[["LlamaForCausalLM"]]), "architectures is"),
    "classes that are a number": (_config(architectures=7, model_type="llama"), "rchitectures"),
    "a class of a million letters": (_config(architectures=["x" * 10**6]), "architecture xxx"),
    "an activation of a million letters": (_config(hidden_act="x" * 10**6), "hidden_act"),
    "a deep setting": (_config(oddity=_deep(800)), "nested deeper than 64 levels"),
    "a deep setting for transformers' code": (
        _config(architectures=["PersimmonForCausalLM"], model_type="persimmon", oddity=_deep(800)),
        "nested deeper than 64 levels",
    ),
    "half of a character": (_config(oddity="\ud800"), "surrogates not allowed"),
    "large config": (_text("config.json", b"[" * (9 << 20)), "larger than"),
    "large tokenizer config": (_text("tokenizer_config.json", b" " * (9 << 20)), "larger than"),
    "a wide list": (_text("config.json", b"[" + b"[]," * 2_000_000 + b"0]"), "not a JSON object"),
    "index out of the folder": (
        lambda f: _shards(f, {"a": "../../../etc/x.safetensors"}),
        "beside it",
    ),
    "index of a name that no file has": (
        lambda f: _shards(f, {"a": "a" * 5000 + ".safetensors"}),
        "beside it",
    ),
    "a module of a name that no file has": (
        lambda f: _write(f / "modules.json", [{"type": "x.Pooling", "path": "a" * 5000}]),
        "a module's path is 'aaa",
    ),
    "index of a missing file": (lambda f: _shards(f, {"a": "y.safetensors"}), "not in the folder"),
    "a tensor in two files": (
        lambda f: _shards(f, {"a": "x.safetensors", "b": "y.safetensors"}, x=["a"], y=["a", "b"]),
        "the tensor a is in two files",
    ),
    "a tensor elsewhere": (
        lambda f: _shards(f, {"a": "y.safetensors", "b": "x.safetensors"}, x=["a"], y=["b"]),
        "accepted",
    ),
    "a tensor that is missing": (
        lambda f: _shards(f, {"a": "x.safetensors", "c": "x.safetensors"}, x=["a"]),
        "accepted",
    ),
    "index of numbers": (lambda f: _shards(f, {"a": 5}, x=["a"]), "not a readable shard index"),  # type: ignore[dict-item]
    "pipe for a config": (_pipe("tokenizer_config.json"), "not a regular file"),
    "pipe for weights": (_pipe("model.safetensors"), "not a regular file"),
    "pipe for a template": (_pipe("chat_template.jinja"), "not a regular file"),
    "endless settings": (_device("generation_config.json"), "not a regular file"),
    "endless template": (_device("chat_template.jinja"), "not a regular file"),
    "endless index": (_device("model.safetensors.index.json"), "accepted"),
    "link out of the folder": (
        lambda f: (
            (f / "model.safetensors").rename(f.parent / "elsewhere")
            and (f / "model.safetensors").symlink_to(f.parent / "elsewhere")
        ),
        "accepted",
    ),
}


def test_each_gives_a_clear_error(tmp_path: Path) -> None:
    folders = []
    for number, (harm, _) in enumerate(CASES.values()):
        folder = write_hub_folder(tmp_path / str(number) / "m")
        harm(folder)
        folders.append(folder)
    ran = subprocess.run(
        [sys.executable, "-c", PRELUDE],
        input="\n".join(map(str, folders)),
        capture_output=True,
        text=True,
        timeout=200,
    )
    answers = ran.stdout.splitlines()
    assert len(answers) == len(CASES), (list(CASES)[len(answers)], ran.stderr[-2000:])
    for name, answer in zip(CASES, answers, strict=True):
        reason = CASES[name][1]
        assert reason in answer, (name, answer)
        assert answer == "accepted" or len(answer) < 2100, name


HOSTILE = st.sampled_from(
    [0, -1, 1, 2**31, 2**63, HUGE, 10**400, 1.5, -0.0, 1e308, float("nan"), float("inf"), None,
     True, "", "x", "../x", [], {}, [0], {"a": 1}, [[[]]]]
)  # fmt: skip


@settings(max_examples=part(150, 1 / 3))
@given(data=st.data())
def test_any_damage_gives_a_known_error(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    """Values of the settings, and bytes of all files."""
    folder = tmp_path_factory.mktemp("m", numbered=True)
    config = {**LLAMA_CONFIG, "eos_token_id": 2, "rope_scaling": {"type": "linear", "factor": 2.0}}
    write_hub_folder(folder, config=config, generation_config={"eos_token_id": [2], "top_k": 3})
    file = data.draw(st.sampled_from(["config.json", "generation_config.json", "bytes"]))
    if file == "bytes":
        path = data.draw(st.sampled_from(sorted(folder.iterdir())))
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            # Mostly at the beginning, where headers are.
            last = data.draw(st.sampled_from([16, 200, len(content)]))
            content[data.draw(st.integers(0, min(last, len(content)) - 1))] = data.draw(
                st.integers(0, 255)
            )
        path.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    else:
        values = json.loads((folder / file).read_text())
        for key in data.draw(st.lists(st.sampled_from(sorted(values)), max_size=3)):
            values[key] = data.draw(HOSTILE)
        _write(folder / file, values)
    try:
        read_hub_folder(folder)
    except PenstockError:
        met("refused", True)
    else:
        met("refused", False)


def test_an_index_is_as_long_as_it_may_be(tmp_path: Path) -> None:
    """The bound on a file's size holds for one that grows while it is read, too."""
    folder = write_hub_folder(tmp_path / "m")
    with open(folder / "model.safetensors.index.json", "wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(UnsupportedModel, match="larger than 67108864 bytes"):
        read_hub_folder(folder)
