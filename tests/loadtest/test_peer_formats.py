"""A GGUF file's weights under the hub's names, for the converter to OpenVINO's format, and contexts
that go on from what they have, as llama.cpp and its fork are asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers

from loadtest.peers.library.runner import BATCH, _in_batches
from loadtest.peers.random_gguf import SHAPES, write
from loadtest.peers.servers import default_model
from loadtest.peers.to_openvino import hub_config, write_hub
from testing.quick_gguf import read_once


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "moe"])
def test_transformers_reads_the_checkpoint(tmp_path: Path, name: str) -> None:
    shape = replace(SHAPES[name], layers=2, hidden=256, feed_forward=256)
    with read_once():
        write(tmp_path / "m.gguf", shape, default_model(), "Q4_K_M")
    folder = tmp_path / "hub"
    folder.mkdir()
    write_hub(tmp_path / "m.gguf", folder)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float16
    )
    assert not any(info.values()), info
    assert sum(each.numel() for each in model.parameters()) == sum(
        int(np.prod(tensor.shape)) for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors
    )
    weights = model.state_dict()["model.layers.1.self_attn.k_proj.weight"]
    (tensor,) = (
        each
        for each in gguf.GGUFReader(tmp_path / "m.gguf").tensors
        if each.name == "blk.1.attn_k.weight"
    )
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    np.testing.assert_array_equal(weights.numpy(), values.astype(np.float16))


def test_another_architecture_is_refused() -> None:
    with pytest.raises(KeyError, match="gemma3"):
        hub_config({"general.architecture": "gemma3"}, vocabulary=5, tied=True)


class Counting:
    """A model whose next token is the sum of all tokens before; it checks what it is asked."""

    def __init__(self) -> None:
        self.sequences: list[list[int]] = []
        self.most = self.fed = 0

    def open(self, sequences: int, tokens: int) -> None:
        self.sequences = [[] for _ in range(sequences)]
        self.most = tokens

    def forget(self, position: int) -> None:
        del self.sequences[0][position:]

    def decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        assert len(rows) <= BATCH
        found = []
        for token, position, sequence, asked in rows:
            tokens = self.sequences[sequence]
            assert position == len(tokens)
            tokens.append(token)
            if asked:
                found.append(sum(tokens) % 1009)
        self.fed += len(rows)
        assert sum(map(len, self.sequences)) <= self.most
        return found


def followed(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(sum(tokens) % 1009)
    return tokens[len(prompt) :]


def test_all_prompts_get_their_tokens() -> None:
    prompts = [[number, *range(700)] for number in range(3)]
    answer = _in_batches(Counting())(prompts, 5)
    assert answer["tokens"] == [followed(each, 5) for each in prompts]
    assert answer["decode_s"] is None


def test_a_chat_reads_only_what_is_new() -> None:
    model = Counting()
    run, said = _in_batches(model), list(range(1, 600))
    for asked in ([7, 8], [9, 10, 11], [5]):
        said += asked
        before = model.fed
        answer = run([said], 4)
        assert answer["tokens"] == [followed(said, 4)]
        # The last token of an answer has not been read yet.
        assert before == 0 or model.fed - before == 1 + len(asked) + 3
        said += answer["tokens"][0]
    other = [*said[:50], 3, 4]
    assert run([other], 4)["tokens"] == [followed(other, 4)]
    assert run([other], 4)["tokens"] == [followed(other, 4)]
