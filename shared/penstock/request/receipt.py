"""A receipt as replies have it; `penstock_receipts` knows what its statement says."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType


class PublicKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that checks signatures. id: the first 16 hex digits of the SHA-256 of its bytes.
    public_key: its 32 bytes, in base64."""

    id: str
    algorithm: Literal["ed25519"] = "ed25519"
    public_key: str


TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class TokenLists(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids of each prompt and of each output; logprobs: log-probabilities of the outputs'
    tokens, where they were asked for."""

    prompts: list[list[TokenId]]
    outputs: list[list[TokenId]]
    logprobs: list[list[float]] | None = None


MAX_DEPTH = 64
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class TreePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt's place in a batch. statement: JSON text of a TreeStatement.  signature: of its
    UTF-8 bytes, in base64.  index: of the receipt, from 0.  path: digests from the leaf's sibling
    up."""

    statement: str
    signature: str
    key: PublicKey
    index: Annotated[int, msgspec.Meta(ge=0)]
    path: Annotated[list[Digest], msgspec.Meta(max_length=MAX_DEPTH)]


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """statement: JSON text of a Statement.  signature: of its UTF-8 bytes, in base64.  tokens: null
    in a receipt of digests only.  batch: its place among the receipts of a batch's output."""

    statement: str
    signature: str
    key: PublicKey
    tokens: TokenLists | None = None
    batch: TreePlace | UnsetType = UNSET
