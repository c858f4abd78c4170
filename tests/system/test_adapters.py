"""Adapters through the whole system: the same bytes whoever else is served, and whoever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
import torch
from openai import OpenAI

from penstock import LLM, LoRARequest, SamplingParams
from testing.pooling_models import save
from testing.processes import freeze
from testing.serving import PATIENCE, Server, wait_until
from tests.adapter_folders import random_factors, write_gguf, write_peft
from tests.system.test_pause import Stream
from tests.system.test_struck_operations import BLOWS, WHOLE, alone, struck
from tests.worker.pooling.test_adapters import merged

pytestmark = [pytest.mark.timeout(600)]

SHAPES = {
    "blk.0.attn_q": (24, 24),
    "blk.0.attn_k": (8, 24),
    "blk.0.attn_v": (8, 24),
    "blk.0.attn_output": (24, 24),
    "blk.0.ffn_gate": (48, 24),
    "blk.0.ffn_up": (48, 24),
    "blk.0.ffn_down": (24, 48),
}
"""Outputs and inputs of the modules of testing.tiny_models."""

KERNEL_SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 3}
QUERIES = {
    f"bert.encoder.layer.{layer}.attention.self.{part}": (48, 48)
    for layer in range(2)
    for part in ("query", "value")
}
"""Outputs and inputs of a small BERT's modules."""

PLACES = 4
FROM_START = ("one", "two", "three")


def write_adapter(path: Path, seed: int, *, rank: int = 4, shapes: dict = SHAPES) -> Path:
    return write_gguf(path, random_factors(shapes, rank, seed, size=0.5), alpha=2.0 * rank)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(FROM_START):
        write_adapter(folder / f"{name}.gguf", seed, rank=2**seed)
    return folder


@pytest.fixture(scope="module")
def serving(tiny_model: str, folder: Path) -> Iterator[Server]:
    modules = [f"{name}={folder / name}.gguf" for name in FROM_START]
    flags = ["--max-loras", str(PLACES), "--max-lora-rank", "8", "--num-kv-blocks", "512"]
    flags += ["--lora-allowed-folder", str(folder), "--cache-dir", str(folder / "cache")]
    with Server(tiny_model, "--enable-lora", *flags, "--lora-modules", *modules) as server:
        yield server


@pytest.fixture
def server(serving: Server) -> Server:
    wait_until(serving.ready)
    return serving


def complete(server: Server, model: str | None, **more: Any) -> httpx.Response:
    body = {
        "model": model,
        "prompt": "The history of the city begins",
        "max_tokens": 24,
        "temperature": 0.8,
        "seed": 5,
        "ignore_eos": True,
        "logprobs": 1,
        **more,
    }
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=240)


def choice(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def admin(server: Server, what: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{what}_lora_adapter", json=body, timeout=60)


def listed(server: Server) -> list[str]:
    cards = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"]
    return [card["id"] for card in cards]


def test_the_model_and_adapters_together_say_what_each_says_alone(server: Server) -> None:
    names = [server.model, *FROM_START]
    alone = {name: choice(complete(server, name)) for name in names}
    assert len({each["text"] for each in alone.values()}) == len(names)
    with ThreadPoolExecutor(12) as pool:
        crowd = list(pool.map(lambda name: choice(complete(server, name)), names * 3))
    assert crowd == [alone[name] for name in names] * 3
    assert listed(server)[:4] == names


def test_more_adapters_than_places_all_get_their_turn(server: Server, folder: Path) -> None:
    names = [f"many-{number}" for number in range(16)]
    for number, name in enumerate(names):
        write_adapter(folder / f"{name}.gguf", 100 + number)
        answer = admin(server, "load", lora_name=name, lora_path=f"{name}.gguf")
        assert answer.status_code == 200, answer.text
    alone = [choice(complete(server, name)) for name in names]
    assert len({each["text"] for each in alone}) == len(names)
    with ThreadPoolExecutor(16) as pool:
        crowd = list(pool.map(lambda name: choice(complete(server, name)), names * 2))
    assert crowd == alone * 2
    for name in names:
        assert admin(server, "unload", lora_name=name).status_code == 200
    assert complete(server, names[0]).status_code == 404


def test_replacing_an_adapter_under_load_disturbs_no_stream(server: Server, folder: Path) -> None:
    """Streams with other adapters and with none go on meanwhile; whoever asks for the name gets all
    of one of the two contents."""

    def put(seed: int) -> None:
        write_adapter(folder / "changing.gguf", seed, rank=8)
        body = {"lora_name": "changing", "lora_path": "changing.gguf", "load_inplace": True}
        assert admin(server, "load", **body).status_code == 200

    names, contents = [server.model, *FROM_START], {}
    alone = {name: choice(complete(server, name)) for name in names}
    for seed in (30, 31):
        put(seed)
        contents[seed] = choice(complete(server, "changing"))["text"]
    assert contents[30] != contents[31]
    done = Event()

    def stream(number: int) -> int:
        count = 0
        while not done.is_set():
            name = names[(number + count) % len(names)]
            assert choice(complete(server, name)) == alone[name]
            assert choice(complete(server, "changing"))["text"] in contents.values()
            count += 1
        return count

    with ThreadPoolExecutor(6) as pool:
        streams = [pool.submit(stream, number) for number in range(6)]
        try:
            for turn in range(12):
                put(30 + turn % 2)
                assert choice(complete(server, "changing"))["text"] == contents[30 + turn % 2]
                write_adapter(folder / "passing.gguf", 50 + turn)
                load = {"lora_name": "passing", "lora_path": "passing.gguf"}
                assert admin(server, "load", **load).status_code == 200
                assert choice(complete(server, "passing"))["text"]
                assert admin(server, "unload", lora_name="passing").status_code == 200
        finally:
            done.set()
        assert all(each.result() for each in streams)
    assert admin(server, "unload", lora_name="changing").status_code == 200


def wait_until_back(server: Server, victim: str, before: int) -> None:
    """Another process has taken its place, and requests are served."""
    wait_until(lambda: server.children().get(f"penstock: {victim}") not in (None, before))
    wait_until(server.ready)


def streamed(server: Server, model: str, on_chunk: Callable[[int], None]) -> str:
    body = {
        "model": model,
        "prompt": "The history of the city begins",
        "max_tokens": 90,
        "temperature": 0.8,
        "seed": 5,
        "ignore_eos": True,
        "stream": True,
    }
    text = ""
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=240, max_retries=0) as client:
        extra = {"ignore_eos": body.pop("ignore_eos")}
        for count, chunk in enumerate(client.completions.create(**body, extra_body=extra)):
            text += chunk.choices[0].text
            on_chunk(count)
    return text


@pytest.mark.parametrize("victim", ["worker 0", "engine"])
def test_a_stream_goes_on_with_its_adapter_when_a_process_dies(
    server: Server, folder: Path, victim: str
) -> None:
    path = write_adapter(folder / "kept.gguf", 7)
    assert admin(server, "load", lora_name="kept", lora_path="kept.gguf").status_code == 200
    undisturbed = streamed(server, "kept", lambda count: None)
    worker, dies = server.child("worker 0"), server.child(victim)

    def replace_and_kill(count: int) -> None:
        if count != 3:
            return
        # Nothing is computed from here on until the victim has died.
        freeze(worker)
        try:
            # The name stands for something else now, and the old files are gone.
            write_adapter(path, 8)
            body = {"lora_name": "kept", "lora_path": "kept.gguf", "load_inplace": True}
            assert admin(server, "load", **body).status_code == 200
            os.kill(dies, signal.SIGKILL)
        finally:
            os.kill(worker, signal.SIGCONT)

    assert streamed(server, "kept", replace_and_kill) == undisturbed
    wait_until_back(server, victim, dies)
    wait_until(lambda: "kept" in listed(server))
    assert streamed(server, "kept", lambda count: None) != undisturbed
    assert admin(server, "unload", lora_name="kept").status_code == 200


@pytest.mark.parametrize(("victim", "how"), BLOWS)
def test_loading_under_which_a_process_is_struck_ends(
    server: Server, folder: Path, victim: str, how: str
) -> None:
    """It is loaded, or there is a reason; who asked for it is answered, and what streams meanwhile
    has its bytes."""
    write_adapter(folder / "late.gguf", 9)
    body = {"lora_name": "late", "lora_path": "late.gguf"}
    undisturbed = alone(server, model="three")
    stream = Stream(server.url, model="three", **WHOLE)

    def operate() -> tuple[httpx.Response, httpx.Response]:
        return admin(server, "load", **body), complete(server, "late")

    loaded, answered = struck(server, victim, how, operate, after=0.02)
    stream.join(2 * PATIENCE)
    assert (stream.text, stream.finish) == (undisturbed, "length")
    if loaded.status_code == 200:
        assert answered.status_code == 200, answered.text
    else:
        assert (loaded.status_code, answered.status_code) == (503, 404)
        assert loaded.json()["error"]["message"]
        assert admin(server, "load", **body).status_code == 200
    wait_until(lambda: "late" in listed(server))
    again = complete(server, "late")
    assert loaded.status_code != 200 or choice(again)["text"] == choice(answered)["text"]
    assert admin(server, "unload", lora_name="late").status_code == 200


def test_adapters_of_the_settings_outlive_their_files_and_the_engine_core(
    server: Server, folder: Path
) -> None:
    before, path = choice(complete(server, "three")), folder / "three.gguf"
    path.rename(folder / "elsewhere")
    try:
        victim = server.child("engine")
        os.kill(victim, signal.SIGKILL)
        wait_until_back(server, "engine", victim)
        assert choice(complete(server, "three")) == before
    finally:
        (folder / "elsewhere").rename(path)


def test_all_gateways_and_engine_cores_know_what_one_was_told(
    tiny_model: str, folder: Path
) -> None:
    write_adapter(folder / "told.gguf", 9)
    flags = ["--enable-lora", "--max-lora-rank", "8", "--num-kv-blocks", "64", "--gateways", "2"]
    flags += ["--data-parallel-size", "2", "--routing", "round-robin"]
    flags += ["--lora-allowed-folder", str(folder), "--cache-dir", str(folder / "cache")]
    with Server(tiny_model, *flags) as server:

        def answers(count: int = 8) -> list[int]:
            """Each over a connection of its own, which any gateway may take."""
            return [complete(server, "told", max_tokens=2).status_code for _ in range(count)]

        wait_until(lambda: set(answers(4)) == {404})
        loaded = admin(server, "load", lora_name="told", lora_path="told.gguf")
        assert loaded.status_code == 200, loaded.text
        wait_until(lambda: set(answers()) == {200})
        for victim in ("engine 0", "gateway 0"):
            before = server.child(victim)
            os.kill(before, signal.SIGKILL)
            wait_until_back(server, victim, before)
            wait_until(lambda: set(answers()) == {200})
        assert admin(server, "unload", lora_name="told").status_code == 200
        wait_until(lambda: set(answers()) == {404})


def test_an_adapter_of_another_model_is_a_bad_request_and_disturbs_nobody(
    server: Server, folder: Path
) -> None:
    shapes = {name: (rows + 8, columns) for name, (rows, columns) in SHAPES.items()}
    write_adapter(folder / "foreign.gguf", 1, shapes=shapes)
    alone = choice(complete(server, "one"))
    admin(server, "load", lora_name="foreign", lora_path="foreign.gguf")
    with ThreadPoolExecutor(4) as pool:
        names = ["foreign", "one", "foreign", "one"]
        answers = list(pool.map(lambda name: complete(server, name), names))
    assert [answer.status_code for answer in answers[::2]] == [400, 400]
    error = answers[0].json()["error"]
    assert (error["code"], error["param"]) == ("invalid_adapter", "model")
    assert str(folder) not in error["message"]
    assert [choice(answer) for answer in answers[1::2]] == [alone] * 2
    admin(server, "unload", lora_name="foreign")


def test_the_library_applies_adapters(tiny_model: str, folder: Path, server: Server) -> None:
    request = LoRARequest("one", 1, str(folder / "one.gguf"))
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=5, ignore_eos=True)
    prompt = "The history of the city begins"
    settings: dict[str, Any] = {"cache_dir": str(folder / "cache"), "num_kv_blocks": 256}
    with LLM(tiny_model, enable_lora=True, max_loras=2, max_lora_rank=8, **settings) as llm:
        both = llm.generate([prompt, prompt], params, lora_request=[None, request], use_tqdm=False)
        again = llm.generate(prompt, params, lora_request=request, use_tqdm=False)
    said = [output.outputs[0].text for output in both]
    assert said == [choice(complete(server, name))["text"] for name in (None, "one")]
    assert again[0].outputs[0].text == said[1]


def test_a_server_whose_adapter_cant_be_served_says_so_at_once(
    tiny_model: str, folder: Path
) -> None:
    write_adapter(folder / "wide.gguf", 1, rank=16)
    flags = ["--enable-lora", "--lora-modules", f"wide={folder / 'wide.gguf'}"]
    server = Server(tiny_model, *flags, "--max-lora-rank", "8", wait=False)
    try:
        with pytest.raises(Exception, match="rank 16; at most 8"):
            server.wait_ready()
    finally:
        server.close()


def test_a_classifier_with_adapters(start_server: Callable[..., Server], tmp_path: Path) -> None:
    """Each text gets the scores of its adapter's layers and head; the library says the same."""
    model = save(tmp_path / "m", "BertForSequenceClassification", **KERNEL_SIZES, num_labels=3)
    factors = random_factors(QUERIES, 4, 1, 0.3)
    head = {
        f"classifier.{name}": each.detach().numpy() + 1
        for name, each in model.classifier.named_parameters()
    }
    head["classifier.weight"][0] *= -1
    adapter = write_peft(tmp_path / "a", factors, alpha=8, whole=head)
    flags = ["--enable-lora", "--cache-dir", str(tmp_path / "cache")]
    server = start_server(str(tmp_path / "m"), *flags, "--lora-modules", f"mine={adapter}")
    texts = ["w5 w8 w13", "w9 w7"]

    def scores(model: str) -> list[list[float]]:
        body = {"model": model, "input": texts}
        answer = httpx.post(f"{server.url}/classify", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        return [each["probs"] for each in answer.json()["data"]]

    twin = merged(model, factors, 8 / 4)
    for name, values in head.items():
        twin.get_parameter(name).data = torch.from_numpy(values)
    served = httpx.get(f"{server.url}/v1/models", timeout=PATIENCE).json()["data"][0]["id"]
    found = {name: scores(name) for name in (served, "mine")}
    for name, theirs in ((served, model), ("mine", twin)):
        for text, probs in zip(texts, found[name], strict=True):
            tokens = torch.tensor([[int(word[1:]) for word in text.split()]])
            with torch.inference_mode():
                wanted = theirs(tokens).logits[0].softmax(0)
            assert probs == pytest.approx(wanted.tolist(), abs=1e-4)
    with LLM(str(tmp_path / "m"), enable_lora=True, cache_dir=str(tmp_path / "cache")) as llm:
        request = LoRARequest("mine", 1, str(adapter))
        own, plain = llm.classify(texts[:1] * 2, use_tqdm=False, lora_request=[request, None])
    assert own.outputs.probs == pytest.approx(found["mine"][0], abs=1e-6)
    assert plain.outputs.probs == pytest.approx(found[served][0], abs=1e-6)
