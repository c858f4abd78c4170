"""Names for the contents of KV blocks.

The key of a full block is a hash of the key before it and of the block's own tokens, so that it
stands for everything that its keys and values depend on: all tokens up to its end, with what their
placeholders stand for, and the root, which is made of what else there is (salt, adapter).  The hash
is cryptographic, since a collision would show one client another's context: BLAKE2b (RFC 7693) of
256 bits.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b

from penstock.protocol.common import AdapterFile
from penstock_engine.media.request_media import RequestMedia

DIGEST_BYTES = 32

_SUFFIX_BYTES = 4
"""Bytes at the end of a stored name, in place of a part of the hash."""


def root_key(*parts: str) -> bytes:
    """Returns the parent key of a sequence's first block. parts: what the KV depends on in addition
    to the tokens."""
    digest = blake2b(b"penstock kv", digest_size=DIGEST_BYTES)
    for part in parts:
        text = part.encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.digest()


def prefix_root(tenant: str, cache_salt: str, adapter: AdapterFile | None = None) -> bytes:
    """The root of all requests that may share blocks: those of one tenant, with one salt, and with
    one adapter or none."""
    if adapter is None:
        return root_key("salt", tenant, cache_salt)
    return root_key("salt", tenant, cache_salt, adapter.digest)


def block_key(parent: bytes, tokens: array[int], contents: bytes = b"") -> bytes:
    """parent: the key of the block before, or the root.  tokens: of a full block, or the first of
    one, int32.  contents: what stands in their place, where some are placeholders
    (RequestMedia.contents)."""
    hashed = blake2b(parent + tokens.tobytes(), digest_size=DIGEST_BYTES)
    if contents:
        hashed = blake2b(hashed.digest() + contents, digest_size=DIGEST_BYTES, person=b"media")
    return hashed.digest()


def prompt_keys(
    root: bytes,
    prompt_token_ids: list[int],
    block_size: int,
    media: RequestMedia | None = None,
) -> Iterator[bytes]:
    """Keys of the full blocks before a prompt's last token, which is computed in any case."""
    key = root
    for start in range(0, len(prompt_token_ids) - block_size, block_size):
        end = start + block_size
        contents = b"" if media is None else media.contents(start, end)
        key = block_key(key, array("i", prompt_token_ids[start:end]), contents)
        yield key


def stored_name(name: bytes) -> bytes:
    """Returns the name of a cached block, of DIGEST_BYTES, by which it is stored outside of this
    process. Where the block's name in the cache goes on after the hash of its tokens (its KV group,
    a state), the end of the hash makes room for that."""
    more = name[DIGEST_BYTES:]
    if not more:
        return name
    return name[: DIGEST_BYTES - _SUFFIX_BYTES] + more.ljust(_SUFFIX_BYTES, b"\xff")
