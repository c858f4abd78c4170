"""What a visit to a GPU measures of others, reads from ncu and from streams, and counts of its
processors."""

from __future__ import annotations

import asyncio
import importlib.machinery
import json
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from loadtest.gpu import __main__ as command
from loadtest.gpu import sse, wheels
from loadtest.gpu.extent import DRY, GPU
from loadtest.gpu.job import ABSENT, DONE, FAILED, Job, part_file, run, write_json
from loadtest.gpu.parts import EVERY_PART, VISITS, Part, counters, kernels_humming
from loadtest.gpu.stored_models import write_fp8, write_gguf

COUNTED = """==PROF== Connected to process 4711
==PROF== Disconnected
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","4711","_attend(float *, int)","GPU Speed Of Light Throughput","Duration","us","12.3"
"0","4711","_attend(float *, int)","GPU Speed Of Light Throughput","Memory Throughput","%","71.20"
"0","4711","_attend(float *, int)","Instruction Statistics","Executed Instructions","inst","1,024"
"1","4711","_linear","Launch Statistics","Registers Per Thread","register/thread","168"
"1","4711","_linear","Launch Statistics","Grid Size","","7"
"""


def test_what_ncu_counts_is_read_by_kernel() -> None:
    assert counters.kernels(COUNTED.splitlines()) == {
        "0": {
            "kernel": "_attend",
            "duration": "12.3 us",
            "memory": "71.20 %",
            "instructions": "1,024 inst",
        },
        "1": {"kernel": "_linear", "registers": "168 register/thread"},
    }


@pytest.mark.parametrize(("status", "ended"), [(0, DONE), (9, FAILED)])
def test_five_kernels_are_counted_where_ncu_is_there(
    status: int, ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program stands in for it, which says what it was asked."""
    (tmp_path / "said").write_text(COUNTED)
    ncu = tmp_path / "ncu"
    ncu.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/said\nexit {status}\n')
    ncu.chmod(ncu.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(shutil, "which", lambda name: str(ncu))
    part = EVERY_PART["counters"]
    run(Job(part, tmp_path, tmp_path, 30.0, DRY))
    found = json.loads(part_file(tmp_path, part.name).read_text())
    assert found["status"] == ended
    assert [row["kernel"] for row in found["rows"]] == (
        ["_attend", "_linear"] if not status else []
    )
    asked = (tmp_path / "asked").read_text().split()
    assert asked[:4] == ["--clock-control", "none", "--profile-from-start", "off"]
    assert asked[-2:] == ["loadtest.gpu.counted", "--dry"]


def test_both_calls_have_what_a_visit_is_for() -> None:
    works, speed = ({part.name for part in VISITS[name].parts} for name in ("works", "speed"))
    assert works >= {"counters", "bits", "kernels-humming", "features", "promise-0"}
    assert works >= {"steps-0-packed", "steps-1-mixture", "kernels-products", "kernels-attention"}
    assert speed >= {"end-to-end-0", "end-to-end-1", "stored-kv", "steps-0-q4k", "steps-1-host"}
    assert (min(GPU.alike_rows), max(GPU.alike_rows)) == (1, 4096)
    assert GPU.requests == (256, 1024)


def test_a_rehearsal_fails_by_processor_seconds(tmp_path: Path) -> None:
    part = Part("a", "module", 20.0)
    for computed, dry, ended in ((30.0, True, DONE), (31.0, True, FAILED), (31.0, False, DONE)):
        document = {"part": "a", "status": DONE, "reason": "", "rows": [], "notes": []}
        write_json(part_file(tmp_path, "a"), document)
        assert command.count(part, tmp_path, computed, dry=dry).startswith(ended)
        found = json.loads(part_file(tmp_path, "a").read_text())
        assert (found["status"], found["processor_seconds"]) == (ended, computed)
    parts = [{"processor_seconds": each} for each in (30.0, 40.5)] + [{}]
    assert [command.exceeds(parts, seconds) for seconds in (70.0, 71.0)] == [True, False]


class Layer:
    """Stands in for Humming's: it multiplies by the matrix itself, a row at a time. Rows differ by
    how many there are, unless they are to be the same."""

    def __init__(self, **asked: Any) -> None:
        self.asked = asked

    def to(self, device: torch.device) -> Layer:
        return self

    def load_from_unquantized(self, weight: Tensor) -> None:
        self.weight = weight

    def transform(self) -> None:
        self.transformed = True

    def __call__(self, x: Tensor, compute_config: dict[str, bool] | None) -> Tensor:
        assert self.transformed
        noise = 0.0 if compute_config else float(len(x))
        rows = [self.weight.float() @ row.float() + noise for row in x]
        return torch.stack(rows).bfloat16()


def test_humming_is_measured_as_it_chooses_and_by_rows_that_keep_their_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("humming", "humming.layer"):
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys.modules["humming.layer"], "HummingLayer", Layer, raising=False)
    counts, forms = (1, 3), len(kernels_humming.FORMS)
    extent = replace(DRY, packed_rows=counts)
    job = Job(EVERY_PART["kernels-humming"], tmp_path, tmp_path, 30.0, extent)
    cases = list(kernels_humming.cases(job))
    assert len(cases) == 2 * len(counts) * forms
    plain, invariant = cases[1], cases[3]
    assert plain.op == "linear, Humming, int4"
    assert invariant.op == "linear, Humming, int4, batch-invariant"
    for case, apart in ((plain, float(max(counts))), (invariant, 0.0)):
        bench = case.make(torch.device("cpu"))
        assert bench.torch is not None
        found, true = bench.work(None)(), bench.torch()
        torch.testing.assert_close(found, true + apart, rtol=0.02, atol=0.1)  # type: ignore[operator]
    kernels_humming.rows_alike(job)
    monkeypatch.setattr(kernels_humming, "INVARIANT", {})
    kernels_humming.rows_alike(job)
    rows = json.loads(part_file(tmp_path, "kernels-humming").read_text())["rows"]
    assert [row["unlike"] for row in rows] == [[]] * forms + [[1, 2]] * forms


def test_a_visit_without_humming_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_humming, "find_spec", lambda name: None)
    part = EVERY_PART["kernels-humming"]
    run(Job(part, tmp_path, tmp_path, 30.0, DRY))
    found = json.loads(part_file(tmp_path, part.name).read_text())
    assert (found["status"], "isn't installed" in found["reason"]) == (ABSENT, True)
    assert any(line.startswith("humming-kernels") for line in wheels.requirements())


@pytest.mark.parametrize("tokens", [2, 3])
def test_a_stream_is_read_to_its_end_or_is_no_stream(tokens: int) -> None:
    events = b"".join(b'data: {"choices": [{"text": "a"}]}\n\n' for _ in range(2))
    events += b'data: {"choices": [], "usage": {"completion_tokens": 2}}\n\ndata: [DONE]\n\n'
    bodies: list[dict[str, Any]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.partition("content-length: ")[2].split()[0])
        bodies.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + events)
        await writer.drain()
        writer.close()

    async def both() -> dict[str, Any]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await asyncio.wait_for(sse.read(port, "m", [([5, 6], tokens)]), 30)

    if tokens == 3:
        with pytest.raises(RuntimeError, match="a stream of 3 tokens ended"):
            asyncio.run(both())
    else:
        found = asyncio.run(both())
        assert (found["tokens"], len(found["first"])) == (2, 1)
    assert bodies[0] | {"temperature": 0} == {
        "model": "m",
        "prompt": [5, 6],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_models_are_written_whole(tmp_path: Path) -> None:
    """As the formats have them: a scale for each block, and a type for each matrix."""
    tensors = load_file(write_fp8(DRY.mixture, tmp_path / "fp8") / "model.safetensors")
    up = "model.layers.0.mlp.experts.3.up_proj.weight"
    assert (tensors[up].dtype, tensors[up].shape) == (torch.float8_e4m3fn, (128, 128))
    assert tensors[f"{up}_scale_inv"].shape == (1, 1)
    assert tensors["model.layers.0.mlp.gate.weight"].dtype == torch.bfloat16
    file = gguf.GGUFReader(write_gguf(tmp_path / "a.gguf", DRY.q4_k, 320))
    kinds = {each.name: each.tensor_type.name for each in file.tensors}
    assert (kinds["blk.0.attn_q.weight"], kinds["blk.0.ffn_down.weight"]) == ("Q4_K", "Q6_K")
    assert len(file.fields["tokenizer.ggml.tokens"].data) == 320
