"""KServe's protocol over a fake engine core."""

from __future__ import annotations

import asyncio
import math
import struct
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock_rpc.kserve import bodies
from penstock_rpc.kserve import service as kserve
from penstock_rpc.kserve.tensors import FINAL, INDEX
from penstock_rpc.protos.kserve_pb2 import (
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
    ModelReadyRequest,
    ModelReadyResponse,
    ModelStreamInferResponse,
    ServerMetadataRequest,
    ServerMetadataResponse,
    ServerReadyRequest,
    ServerReadyResponse,
)
from tests.gateway import keyring
from tests.gateway.fake_engine import HELLO, MODEL
from tests.rpc.conftest import Serve, Serving

SERVICE = "/inference.GRPCInferenceService/"
Input = ModelInferRequest.InferInputTensor


def packed(*texts: str) -> bytes:
    raw = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(each)) + each for each in raw)


def raw_request(text: str, *, stream: bool = False, **fields: Any) -> ModelInferRequest:
    return ModelInferRequest(
        model_name=MODEL,
        inputs=[
            Input(name="text_input", datatype="BYTES", shape=[1]),
            Input(name="stream", datatype="BOOL", shape=[1]),
        ],
        raw_input_contents=[packed(text), bytes([stream])],
        **fields,
    )


async def infer(serving: Serving, request: ModelInferRequest) -> ModelInferResponse:
    return await serving.unary(f"{SERVICE}ModelInfer", request, ModelInferResponse)


async def test_state_and_metadata(serving: Serving) -> None:
    ready = await serving.unary(f"{SERVICE}ServerReady", ServerReadyRequest(), ServerReadyResponse)
    assert ready.ready
    request = ModelReadyRequest(name=MODEL)
    assert (await serving.unary(f"{SERVICE}ModelReady", request, ModelReadyResponse)).ready
    server = await serving.unary(
        f"{SERVICE}ServerMetadata", ServerMetadataRequest(), ServerMetadataResponse
    )
    assert server.name == "penstock"
    about = await serving.unary(
        f"{SERVICE}ModelMetadata", ModelMetadataRequest(name=MODEL), ModelMetadataResponse
    )
    assert [each.name for each in about.inputs][:2] == ["text_input", "input_ids"]
    assert [each.name for each in about.outputs] == ["text_output", "finish_reason"]
    for wrong in (
        ModelMetadataRequest(name="nobody"),
        ModelMetadataRequest(name=MODEL, version="2"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await serving.unary(f"{SERVICE}ModelMetadata", wrong, ModelMetadataResponse)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_raw_contents(serving: Serving) -> None:
    request = raw_request("Hi", id="seven")
    request.parameters["max_tokens"].int64_param = 9
    request.parameters["temperature"].double_param = 0.5
    reply = await infer(serving, request)
    assert (reply.id, reply.model_name) == ("seven", MODEL)
    assert list(reply.raw_output_contents) == [packed(f"{HELLO}0"), packed("stop")]
    params = serving.engine.submitted[0][1]
    assert (params.max_tokens, params.temperature) == (9, 0.5)


async def test_typed_contents_and_several_texts(serving: Serving) -> None:
    texts = InferTensorContents(bytes_contents=[b"one", b"two"])
    sampling = InferTensorContents(bytes_contents=[b'{"max_tokens": "9", "seed": 1}'])
    request = ModelInferRequest(
        model_name=MODEL,
        inputs=[
            Input(name="text_input", datatype="BYTES", shape=[2], contents=texts),
            Input(name="sampling_parameters", datatype="BYTES", shape=[1], contents=sampling),
        ],
        outputs=[ModelInferRequest.InferRequestedOutputTensor(name="text_output")],
    )
    reply = await infer(serving, request)
    (output,) = reply.outputs
    assert list(output.shape) == [2]
    assert [each.decode() for each in output.contents.bytes_contents] == [f"{HELLO}0"] * 2
    assert [ids for ids, _, _ in serving.engine.submitted] == [list(b"one"), list(b"two")]
    assert serving.engine.submitted[0][1].max_tokens == 9


async def test_token_ids(serving: Serving) -> None:
    request = ModelInferRequest(
        model_name=MODEL,
        inputs=[Input(name="input_ids", datatype="INT64", shape=[1, 3])],
        raw_input_contents=[struct.pack("<3q", 1, 2, 3)],
    )
    await infer(serving, request)
    assert serving.engine.submitted[0][0] == [1, 2, 3]


async def test_a_row_of_token_ids_for_each_prompt(serving: Serving) -> None:
    request = ModelInferRequest(
        model_name=MODEL,
        inputs=[Input(name="input_ids", datatype="INT64", shape=[2, 3])],
        raw_input_contents=[struct.pack("<6q", *range(1, 7))],
    )
    reply = await infer(serving, request)
    assert [ids for ids, _, _ in serving.engine.submitted] == [[1, 2, 3], [4, 5, 6]]
    assert list(reply.outputs[0].shape) == [2]


async def test_sampling_parameters_whose_text_is_a_number(serving: Serving) -> None:
    request = raw_request("Hi")
    request.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
    fields = '{"stop": "7", "user": "12", "cache_salt": "true", "max_tokens": "9", "echo": "false"}'
    request.raw_input_contents.append(packed(fields))
    await infer(serving, request)
    params = serving.engine.submitted[0][1]
    assert (params.stop, params.max_tokens) == ("7", 9)


async def test_responses_of_a_stream_name_their_sequence(serving: Serving) -> None:
    texts = {"name": "text_input", "datatype": "BYTES", "shape": [2]}
    request = ModelInferRequest(
        model_name=MODEL,
        inputs=[Input(**texts), Input(name="stream", datatype="BOOL", shape=[1])],
        raw_input_contents=[packed("one", "three"), b"\1"],
    )
    found = {0: b"", 1: b""}
    stream = infer_stream(serving)
    await stream.write(request)
    await stream.done_writing()
    async for reply in stream:
        answer = reply.infer_response
        assert not reply.error_message
        if not answer.parameters[FINAL].bool_param:
            found[answer.parameters[INDEX].int64_param] += answer.raw_output_contents[0][4:]
    assert found == {0: f"{HELLO}0".encode(), 1: f"{HELLO}0".encode()}


async def test_a_stream_without_requests_ends(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kserve, "IDLE", 0.0)
    stream = infer_stream(serving)
    assert await stream.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "no request" in await stream.details()


async def test_an_open_stream_ends_when_the_server_leaves(serving: Serving) -> None:
    stream = infer_stream(serving)
    await stream.write(raw_request("Hi", id="one"))
    assert (await stream.read()).infer_response.id == "one"
    serving.service.draining = True
    async with asyncio.timeout(30):
        assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


def infer_stream(serving: Serving) -> Any:
    return serving.channel.stream_stream(
        f"{SERVICE}ModelStreamInfer",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=ModelStreamInferResponse.FromString,
    )()


async def test_requests_of_one_stream(serving: Serving) -> None:
    stream = infer_stream(serving)
    await stream.write(raw_request("Hi", stream=True, id="streamed"))
    await stream.write(raw_request("Hi", id="whole"))
    await stream.write(raw_request("", id="wrong"))
    await stream.done_writing()
    texts: dict[str, bytes] = {"streamed": b"", "whole": b""}
    finals, errors = [], {}
    async for reply in stream:
        answer = reply.infer_response
        if reply.error_message:
            errors[answer.id] = reply.error_message
        elif answer.parameters[FINAL].bool_param:
            finals.append(answer.id)
        else:
            texts[answer.id] += answer.raw_output_contents[0][4:]
    assert texts == {"streamed": f"{HELLO}0".encode(), "whole": f"{HELLO}0".encode()}
    assert finals == ["streamed"]
    assert "empty" in errors["wrong"]


def wrong_inputs() -> list[tuple[ModelInferRequest, str]]:
    text = Input(name="text_input", datatype="BYTES", shape=[1])
    huge = Input(name="text_input", datatype="BYTES", shape=[2**62, 2**62])
    ids = Input(name="input_ids", datatype="INT64", shape=[1])
    cases = [
        ([], [], "give either"),
        ([text, ids], [packed("x"), bytes(8)], "give either"),
        ([text], [b"\xff\xff\xff\x7fx"], "end within"),
        ([text], [b"\x01"], "end within"),
        ([text], [packed("x"), b""], "raw_input_contents"),
        ([huge], [packed("x")], "shape"),
        ([ids], [b"123"], "not a multiple"),
        ([Input(name="other", datatype="BYTES", shape=[1])], [packed("x")], "no input"),
        ([Input(name="text_input", datatype="FP16", shape=[1])], [b"12"], "datatype"),
        ([text, text], [packed("x"), packed("x")], "twice"),
        ([text], [struct.pack("<I", 1) + b"\xff"], "UTF-8"),
        ([Input(name="input_ids", datatype="INT64", shape=[1, 1, 1])], [bytes(8)], "dimensions"),
    ]
    found = [
        (ModelInferRequest(model_name=MODEL, inputs=inputs, raw_input_contents=raw), part)
        for inputs, raw, part in cases
    ]
    sampling = Input(name="sampling_parameters", datatype="BYTES", shape=[1])
    deep = "[" * 20_000 + "]" * 20_000
    for told, part in ((deep, "one JSON object"), (f'{{"temperature": "{deep}"}}', "temperature")):
        request = raw_request("x")
        request.inputs.append(sampling)
        request.raw_input_contents.append(packed(told))
        found.append((request, part))
    infinite = raw_request("x")
    infinite.parameters["temperature"].double_param = math.nan
    return [*found, (infinite, "finite")]


@pytest.mark.parametrize(("request_", "part"), wrong_inputs())
async def test_tensors_that_are_wrong(
    serving: Serving, request_: ModelInferRequest, part: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await infer(serving, request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert part in refused.value.details()


@pytest.mark.parametrize("where", ["parameters", "sampling_parameters"])
async def test_more_fields_than_any_request_has_are_refused(serving: Serving, where: str) -> None:
    request = raw_request(HELLO)
    many = bodies.MAX_PARAMETERS + 1
    if where == "parameters":
        for number in range(many):
            request.parameters[f"k{number}"].bool_param = True
    else:
        request.inputs.append(Input(name=where, datatype="BYTES", shape=[1]))
        fields = ",".join(f'"k{number}":1' for number in range(many))
        request.raw_input_contents.append(packed("{" + fields + "}"))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await infer(serving, request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"{where} has {many} entries; at most {bodies.MAX_PARAMETERS}" in str(
        refused.value.details()
    )


async def test_a_large_message_is_unpacked_beside_the_event_loop(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    unpack = kserve.body_of

    def watched(message: ModelInferRequest, **how: Any) -> kserve.InferBody:
        threads.append(threading.get_ident())
        return unpack(message, **how)

    monkeypatch.setattr(kserve, "body_of", watched)
    small, large = raw_request(HELLO), raw_request(HELLO + " " * 50_000)
    await infer(serving, small)
    with pytest.raises(grpc.aio.AioRpcError, match="token"):
        await infer(serving, large)
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False]


async def test_large_messages_of_two_keys_are_unpacked_at_the_same_time(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits until the other is being unpacked, too."""
    keys = (keyring.ALICE, keyring.ADMIN)
    serving = await serve(api_keys=keyring.write(tmp_path / "keys.json", *map(keyring.key, keys)))
    both, unpack = threading.Barrier(len(keys), timeout=20), kserve.body_of

    def meets(message: ModelInferRequest, **how: Any) -> kserve.InferBody:
        both.wait()
        return unpack(message, **how)

    monkeypatch.setattr(kserve, "body_of", meets)

    async def told(key: str) -> str:
        call = serving.unary(
            f"{SERVICE}ModelInfer",
            raw_request(HELLO + " " * 50_000),
            ModelInferResponse,
            metadata=[("authorization", f"Bearer {key}")],
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        return str(refused.value.details())

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(told(key)) for key in keys]
    assert all("token" in each.result() for each in asked)
