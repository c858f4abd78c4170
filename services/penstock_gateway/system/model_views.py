"""The list of models as another API shows it, at the paths of OpenAI's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import msgspec
from starlette.requests import Request

from penstock_gateway.http.operations import Parameters


class Card(Protocol):
    """A model as the list of models shows it."""

    id: str
    created: int
    max_model_len: int | None


class ModelView(ABC):
    """What one API makes of the list. of_list, of_one: query parameters that it adds to the two
    paths; others are refused there."""

    of_list: Parameters
    of_one: Parameters

    @abstractmethod
    def asked(self, request: Request) -> bool:
        """Whether a client of this API asks."""

    @abstractmethod
    def refuse(self, request: Request) -> None:
        """Raises InvalidRequest where another client sends a parameter of this API's list."""

    @abstractmethod
    def page(self, request: Request, cards: Sequence[Card]) -> msgspec.Struct:
        """Returns the models that the request's parameters ask for. Raises InvalidRequest."""

    @abstractmethod
    def one(self, card: Card) -> msgspec.Struct:
        """Returns one model."""
