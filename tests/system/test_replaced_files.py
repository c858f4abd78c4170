"""A model's files that are replaced on disk change nothing in a running system, whichever of its
processes is started again: not even what the processes that come later read. The next start has
them."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from testing.serving import Server, wait_until
from testing.tiny_models import CHATML, write_gguf, write_hub_folder

pytestmark = [pytest.mark.timeout(400)]

ASKED = {"messages": [{"role": "user", "content": "abba and baab"}]}


def write_weights(folder: Path) -> None:
    """Writes weights of LLAMA_CONFIG's shapes, drawn at random."""
    drawn = np.random.default_rng(3)
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (700, 24),
        "model.norm.weight": (24,),
        "lm_head.weight": (700, 24),
        f"{layer}input_layernorm.weight": (24,),
        f"{layer}post_attention_layernorm.weight": (24,),
        f"{layer}self_attn.q_proj.weight": (24, 24),
        f"{layer}self_attn.k_proj.weight": (8, 24),
        f"{layer}self_attn.v_proj.weight": (8, 24),
        f"{layer}self_attn.o_proj.weight": (24, 24),
        f"{layer}mlp.gate_proj.weight": (48, 24),
        f"{layer}mlp.up_proj.weight": (48, 24),
        f"{layer}mlp.down_proj.weight": (24, 48),
    }
    tensors = {n: drawn.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written = write_hub_folder(tmp_path / "model")
    write_weights(written)
    return written


def replace_file(file: Path, content: str | bytes) -> None:
    """Another file under the same name, as an update puts it there."""
    other = file.with_suffix(".new")
    other.write_bytes(content.encode() if isinstance(content, str) else content)
    other.replace(file)


def swap_letters(file: Path) -> None:
    """Gives a and b each other's ids."""
    said = json.loads(file.read_text())
    ids = said["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    replace_file(file, json.dumps(said))


def chat(server: Server) -> tuple[list[int], Any]:
    """The prompt's ids, and the answer as text and ids."""
    body = {**ASKED, "temperature": 0.8, "seed": 7, "max_tokens": 24, "return_token_ids": True}
    body["ignore_eos"] = True
    status, answer = server.post("/v1/chat/completions", body)
    assert status == 200, answer
    (choice,) = answer["choices"]
    status, prompt = server.post("/tokenize", ASKED)
    assert status == 200, prompt
    return prompt["tokens"], (choice["message"]["content"], choice["token_ids"])


def renewed_one_by_one(server: Server) -> list[Any]:
    """What is said after each process that could read files was started again."""
    answers = []
    server.process.send_signal(signal.SIGUSR2)
    wait_until(lambda: 'event="gateways restarted"' in server.stderr)
    answers.append(chat(server))
    for names in (["engine"], ["worker 0"], ["fork-server", "gateway 0"]):
        boot = server.get("/status")[1]["boot"]
        killed = {name: server.child(name) for name in names}
        for pid in killed.values():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda k=killed: not set(k.values()) & set(server.processes().values()))
        wait_until(lambda k=killed: set(k) <= set(server.processes()))
        if "engine" in names:
            wait_until(lambda b=boot: server.engine_replaced(b))
        wait_until(server.ready)
        answers.append(chat(server))
    return answers


def test_a_replaced_tokenizer_is_that_of_the_next_start(
    start_server: Callable[..., Server], folder: Path
) -> None:
    """Neither a gateway that is renewed nor one whose engine core was has another one's ids."""
    server = start_server(str(folder))
    before = chat(server)
    swap_letters(folder / "tokenizer.json")
    assert renewed_one_by_one(server) == [before] * 4
    server.stop()
    after = chat(start_server(str(folder)))
    assert len(after[0]) == len(before[0])
    assert after[0] != before[0]


@pytest.mark.parametrize(
    ("own", "source"),
    [(True, CHATML), (False, CHATML), (False, "Tell me a story.")],
    ids=["the model's own", "--chat-template", "one that looks like a name"],
)
def test_so_is_a_replaced_chat_template(
    start_server: Callable[..., Server], folder: Path, tmp_path: Path, own: bool, source: str
) -> None:
    template = (folder if own else tmp_path) / "chat_template.jinja"
    template.write_text(source)
    flags = () if own else ("--chat-template", str(template))
    server = start_server(str(folder), *flags)
    before = chat(server)
    replace_file(template, "Once upon a time {{ messages[0].content }}")
    assert renewed_one_by_one(server) == [before] * 4
    server.stop()
    assert chat(start_server(str(folder), *flags))[0] != before[0]


def test_of_several_models_the_next_load_has_the_new_file(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    """Whether it had made way before, or its worker has to read the file again and is refused; the
    other model notices nothing. A chat template that a file has was read when all were started."""
    for seed in range(3):
        write_gguf(tmp_path / f"{seed}.gguf", seed=seed)
    (tmp_path / "0.gguf").replace(tmp_path / "one.gguf")
    shutil.copy(tmp_path / "1.gguf", tmp_path / "two.gguf")
    template = tmp_path / "chat_template.jinja"
    template.write_text(CHATML)
    entries = [
        {
            "name": name,
            "model": str(tmp_path / f"{name}.gguf"),
            "load": "on-demand",
            "settings": {"chat_template": str(template)},
        }
        for name in ("one", "two")
    ]
    listed = tmp_path / "models.yaml"
    listed.write_text(yaml.safe_dump({"models": entries}))
    server = start_server("--models", str(listed))

    def said(model: str) -> str:
        """Empty where it isn't served."""
        body = {"model": model, "prompt": "abc", "temperature": 0}
        status, reply = server.post("/v1/completions", body)
        return str(reply["choices"][0]["text"]) if status == 200 else ""

    def prompt(model: str) -> Any:
        status, reply = server.post("/tokenize", {"model": model, **ASKED})
        assert status == 200, reply
        return reply["tokens"]

    alone, former, prompts = said("one"), said("two"), prompt("one")
    assert prompt("two") == prompts
    replace_file(template, "Once upon a time {{ messages[0].content }}")
    pid = server.child("worker 0 of two")
    replace_file(tmp_path / "two.gguf", (tmp_path / "2.gguf").read_bytes())
    assert said("two") == former
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: said("two") not in (former, ""))
    assert said("one") == alone
    assert prompt("two") == prompts
    assert "isn't what it was when two was prepared" in server.stderr
    assert 'event="model prepared again" model=two' in server.stderr
