"""The tiny model that was trained to see, asked about pictures that it has never seen."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from penstock import LLM
from testing.serving import Server
from testing.trained.seeing import FOLDER
from testing.trained.seeing.exam import LONGEST, Task, file_of, parts, right, whole
from testing.trained.seeing.measure import answers
from testing.trained.seeing.pictures import NEVER_SHOWN, Things
from testing.trained.seeing.talk import BLIND

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PICTURES = 200
LEAST = 0.95
"""The share of the answers that must be right."""
LEAST_OF_NEW = 0.7
"""The share for combinations of number, colour and shape that training left out; by chance one in
ninety-six is right."""


def image(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    url = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def said(server: Server, *messages: Any) -> str:
    """The answer to a conversation; a message is a text, or a list of parts, of user and assistant
    in turn."""
    talk: Any = [
        {"role": ("user", "assistant")[place % 2], "content": content}
        for place, content in enumerate(messages)
    ]
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120) as client:
        reply = client.chat.completions.create(
            model=server.model, messages=talk, temperature=0, max_tokens=2 * LONGEST
        )
    return reply.choices[0].message.content or ""


def asked(task: Task) -> list[dict[str, Any]]:
    return [image(task.picture, task.media_type), {"type": "text", "text": task.question}]


def test_the_library_names_what_is_in_unseen_pictures() -> None:
    exams = [
        (whole(PICTURES), LEAST),
        (parts(PICTURES), LEAST),
        (whole(PICTURES // 2, NEVER_SHOWN), LEAST_OF_NEW),
    ]
    with LLM(str(FOLDER), max_model_len=512, num_kv_blocks=512) as llm:
        for tasks, least in exams:
            assert right(tasks, answers(llm, tasks)) >= least * len(tasks)


def test_over_http_it_says_what_is_in_the_picture(seeing_server: Server) -> None:
    tasks = whole(PICTURES)[::8]  # of every number, colour and shape
    with ThreadPoolExecutor(8) as crowd:
        found = list(crowd.map(lambda task: said(seeing_server, asked(task)), tasks))
    assert right(tasks, found) >= LEAST * len(tasks), list(zip(tasks, found, strict=True))
    assert found == [said(seeing_server, asked(task)) for task in tasks]  # Alone as in company.


def test_a_conversation_about_pictures(seeing_server: Server) -> None:
    """Further questions about the same picture; another one; two at once; none."""
    stars = Things(3, "blue", "star")
    circle = Things(1, "red", "circle")
    first = [image(file_of(stars, 1, 200, 200)), {"type": "text", "text": "What do you see?"}]
    assert said(seeing_server, first) == stars.words
    colour = "Which colour?"
    assert said(seeing_server, first, stars.words, colour) == "Blue."
    second = [image(file_of(circle, 2, 90, 90)), {"type": "text", "text": "What shape is it?"}]
    assert said(seeing_server, first, stars.words, second) == "Circle."
    both = [first[0], second[0], {"type": "text", "text": "What is in the pictures?"}]
    assert said(seeing_server, both) == f"{stars.words} {circle.words}"
    assert said(seeing_server, "What is in the picture?") == BLIND


def test_openais_client_shows_pictures_in_every_way(seeing_server: Server) -> None:
    """Chats whole and streamed, with `detail`, and the responses' endpoint, whole and streamed."""
    stars = Things(3, "blue", "star")
    url = image(file_of(stars, 1, 200, 200))["image_url"]["url"]
    question = "What do you see?"
    chat: Any = [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": url, "detail": "high"}},
                {"type": "text", "text": question},
            ],
        }
    ]
    asked: Any = [
        {
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": url, "detail": "auto"},
                {"type": "input_text", "text": question},
            ],
        }
    ]
    with OpenAI(base_url=f"{seeing_server.url}/v1", api_key="none", timeout=120) as client:
        create = client.chat.completions.create
        model, most = seeing_server.model, 2 * LONGEST
        pieces = create(model=model, messages=chat, temperature=0, max_tokens=most, stream=True)
        streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces)
        assert streamed == stars.words
        reply = client.responses.create(
            model=model, input=asked, temperature=0, max_output_tokens=most
        )
        assert reply.output_text == stars.words
        with client.responses.stream(
            model=model, input=asked, temperature=0, max_output_tokens=most
        ) as events:
            assert events.get_final_response().output_text == stars.words
