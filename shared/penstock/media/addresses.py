"""Which addresses of the network media may be fetched from: public ones only.

The registries of special addresses are IANA's, as Python's `ipaddress` knows them.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

_TRANSLATED = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
"""NAT64: an IPv4 address within; a gateway may lead to private ones (RFC 6052, 8215)."""


def is_public(text: str) -> bool:
    """Whether an address, as `getaddrinfo` writes it, is neither private, loopback, link-local nor
    of any other special kind, nor hides one that is."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        return _is_plain(address)
    hidden = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(inner is not None and not _is_plain(inner) for inner in hidden):
        return False
    if address.ipv4_mapped is not None:
        return True
    return _is_plain(address) and not any(address in network for network in _TRANSLATED)


def _is_plain(address: IPv4Address | IPv6Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_unspecified
        and not address.is_loopback
        and not address.is_link_local
        and not address.is_private
    )
