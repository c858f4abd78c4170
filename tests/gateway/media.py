"""A gateway over an engine that sees: tiny pictures, a real tokenizer, a real template."""

from __future__ import annotations

import base64
from typing import Any

import httpx

from penstock.client import ModelText
from penstock.config.settings import GatewayConfig, MediaSettings
from penstock.media.desk import MediaDesk
from penstock.media.fetch import Fetcher
from penstock.media.item_names import PromptMedia
from penstock.model.media_facts import KindFacts, MediaFacts
from penstock.model.sound_facts import LogMel
from penstock.protocol.media import Media
from penstock.protocol.to_frontend import Limits
from penstock.text.template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from penstock_gateway.app import create_app
from tests.gateway.fake_engine import FakeEngineClient, FakeGeneration, welcome
from tests.shared.media.media_tokenizer import tokenizer
from tests.shared.media.pictures import PREPARATION, picture, saved
from tests.shared.media.sounds import RATE, saved_sound, sound

PARTS = (
    "{% for m in messages %}{{ m['role'] }}:"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<image>"
    "{% elif c['type'] == 'audio' %}<|AUDIO|>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %};{% endfor %}"
)
"""Takes texts and parts."""
ROWS = PREPARATION.rows
MEL = LogMel(sampling_rate=RATE, bins=12, n_fft=400, hop=160, seconds=1, row_frames=4, cut=True)
"""How sounds are prepared: as Qwen2-Audio's are, but of a second at most."""


class SeeingEngine(FakeEngineClient):
    """media, prepared: of each submission."""

    def __init__(
        self, template: str = PARTS, context: int = 512, kinds: tuple[str, ...] = ("image",)
    ) -> None:
        super().__init__()
        content = tokenizer().to_str().encode()
        tokens = Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)
        self.text = ModelText(tokens, ChatTemplate(template, tokens))
        image = tokens.special_tokens["<image>"]
        facts = {
            "image": KindFacts(
                preparation=PREPARATION, placeholder="<image>", token="<image>", token_id=image
            ),
            "audio": KindFacts(
                preparation=MEL,
                placeholder="<|AUDIO|>",
                token="<|AUDIO|>",
                token_id=tokens.special_tokens["<|AUDIO|>"],
            ),
        }
        facts = {kind: each for kind, each in facts.items() if kind in kinds}
        limits = Limits(
            max_model_len=context, vocab_size=1000, max_waiting_requests=100, max_num_seqs=8
        )
        self.welcome = welcome(media=MediaFacts(kinds=facts), limits=limits)
        self.media: list[Media | None] = []
        self.prepared: list[dict[str, bytes]] = []

    async def submit(  # type: ignore[override]
        self,
        *arguments: Any,
        media: PromptMedia | None = None,
        **named: Any,
    ) -> FakeGeneration:
        self.media.append(None if media is None else media.media)
        self.prepared.append({} if media is None else media.prepared)
        return await super().submit(*arguments, **named)


class SeeingGateway:
    """Use it as an async context manager: `post` asks, `desk` is its media's."""

    def __init__(
        self,
        engine: FakeEngineClient | None = None,
        *,
        fetcher: Fetcher | None = None,
        **settings: Any,
    ) -> None:
        self.engine = engine or SeeingEngine()
        self.app = create_app(
            self.engine,  # type: ignore[arg-type]
            GatewayConfig(),
            media=MediaSettings(**settings),
        )
        self.service = self.app.state.service
        if fetcher is not None:
            self.service.media = MediaDesk(MediaSettings(**settings), fetcher)
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://gateway"
        )

    @property
    def desk(self) -> MediaDesk:
        desk: MediaDesk = self.service.media
        return desk

    async def __aenter__(self) -> SeeingGateway:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.aclose()
        self.desk.close()
        self.engine.text.close()

    async def ask(self, *content: dict[str, Any], path: str = "/v1/chat/completions", **more: Any):
        messages = [{"role": "user", "content": list(content)}]
        return await self.client.post(path, json={"messages": messages, **more})


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def data_uri(data: bytes | None = None, kind: str = "image/png") -> str:
    data = saved(picture()) if data is None else data
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(url: str | None = None, **more: Any) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "image_url", "image_url": {"url": data_uri() if url is None else url}, **more}


def recorded(seconds: float = 0.5, **more: Any) -> bytes:
    """A sound's file."""
    return saved_sound(sound(seconds, **more))


def audio(data: bytes | None = None, form: str = "wav", **more: Any) -> dict[str, Any]:
    """A part of a message, as OpenAI has it."""
    content = base64.b64encode(recorded() if data is None else data).decode()
    return {"type": "input_audio", "input_audio": {"data": content, "format": form}, **more}
