"""One agent's loop: the model calls tools or answers, and the tokens of each turn are counted."""

from __future__ import annotations

import random
from dataclasses import dataclass

import httpx
import msgspec

from testing.words import WORDS
from tests.system.agents.apis import NAMES, Conversation
from tests.system.agents.system import Scripted
from tests.system.agents.writing import Call, Writing

TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Work:
    """What an agent does.

    turns: requests.  task: turns after which the model answers with text and the user goes on; 0:
    never.  least, most: tokens of what the tools of a turn say together.  pair: every so many turns
    the model calls two tools at once.  system: tokens of the system prompt.
    """

    turns: int = 20
    task: int = 0
    least: int = 2000
    most: int = 8000
    pair: int = 3
    system: int = 4000


class Turn(msgspec.Struct, frozen=True):
    """Tokens of one request.

    before: those that the request before it had, with its answer.  shared: how many of these the
    prompt begins with.  where: the text around the first that it lacks, as before and as now.
    """

    prompt: int
    cached: int
    before: int = 0
    shared: int = 0
    where: tuple[str, str] = ("", "")


class WrongAnswer(Exception):
    """The server did not give what the model wrote."""


async def turns_of(
    system: Scripted, writing: Writing, make: type[Conversation], work: Work, number: int
) -> list[Turn]:
    """All turns of agent `number`. Raises WrongAnswer."""
    draw = random.Random(number)
    asked = f"You are agent {number}.{prose(draw, work.system)}"
    conversation = make(system.model, asked, prose(draw, 60))
    found: list[Turn] = []
    known: list[int] = []
    async with httpx.AsyncClient(base_url=system.url, timeout=TIMEOUT) as client:
        for turn in range(work.turns):
            seed = 1000 * number + turn
            over = work.task > 0 and turn % work.task == work.task - 1
            count = 0 if over else 2 if turn % work.pair == work.pair - 1 else 1
            calls = [
                Call(draw.choice(NAMES), f"src/{draw.randrange(10**6)}.py") for _ in range(count)
            ]
            text = prose(draw, 80).strip() if over else ""
            said = system.say(seed, writing.answer(prose(draw, 60).strip(), text, calls))
            reply = await client.post(make.path, json=conversation.body(seed))
            if reply.status_code != 200:
                raise WrongAnswer(f"{writing.name}, {make.name}, turn {turn}: {reply.text[:500]}")
            ids, usage = conversation.take(reply.json())
            if len(ids) != count:
                raise WrongAnswer(f"{writing.name}, {make.name}, turn {turn}: {reply.text[:1000]}")
            prompt = system.script.prompts.pop(seed)
            found.append(_turn(system, usage.prompt, usage.cached, known, prompt))
            known = prompt + said
            if over:
                conversation.ask(prose(draw, 60))
            else:
                length = draw.randint(work.least, work.most) // count
                conversation.tell({id: prose(draw, length) for id in ids})
    return found


def _turn(system: Scripted, counted: int, cached: int, known: list[int], prompt: list[int]) -> Turn:
    if counted != len(prompt):
        raise WrongAnswer(f"a prompt of {len(prompt)} tokens is said to have {counted}")
    pairs = zip(known, prompt, strict=False)
    end = min(len(known), len(prompt))
    shared = next((at for at, (old, new) in enumerate(pairs) if old != new), end)
    where = ("", "")
    if shared < len(known):
        around = slice(max(0, shared - 8), shared + 12)
        decode = system.tokenizer.decode
        where = (
            decode(known[around], skip_special_tokens=False),
            decode(prompt[around], skip_special_tokens=False),
        )
    return Turn(counted, cached, len(known), shared, where)


def prose(draw: random.Random, tokens: int) -> str:
    """Words of a token each, in lines."""
    words = draw.choices(WORDS, k=tokens)
    return "".join("\n" if at % 13 == 12 else word for at, word in enumerate(words))
