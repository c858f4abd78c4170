"""What must not be started: a server that anybody can reach and use, limits that count nothing."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from penstock.config.settings import GatewayConfig
from penstock.errors import StartupError
from penstock.request.api_keys import ApiKey, key_of_environment, load_keys, metrics_key


def configured_keys(config: GatewayConfig) -> list[ApiKey] | None:
    """The API keys; None: everybody may ask. Raises StartupError for a file that is wrong."""
    found = [] if config.api_keys is None else load_keys(config.api_keys)
    single = key_of_environment()
    if config.api_keys is None and single is None:
        return None
    more = None if config.metrics_key_file is None else metrics_key(config.metrics_key_file)
    for key in filter(None, (single, more)):
        if all(key.digest != other.digest for other in found):
            found.append(key)
    return found


def check_exposure(config: GatewayConfig, address: str, *, has_keys: bool) -> None:
    """address: that the socket is bound to.  Raises StartupError where it is open to others."""
    if has_keys or config.allow_open or is_loopback(address):
        return
    raise StartupError(
        f"no API keys are configured, and {address} can be reached from other machines: give "
        "--api-keys FILE (`penstock key` makes a key and its entry) or PENSTOCK_API_KEY, listen "
        "on --host 127.0.0.1, or say --allow-open if everybody may use this server"
    )


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches the address; an empty one is a Unix socket's."""
    try:
        return not address or ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_limits(config: GatewayConfig, gateways: int, keys: Iterable[ApiKey]) -> None:
    """Raises StartupError where several gateways would each count for themselves unasked."""
    if gateways == 1 or config.rate_limit_storage != "memory" or config.rate_limit_per_gateway:
        return
    limited = next((key.name for key in keys if key.limited), None)
    if limited is not None:
        raise StartupError(
            f"the key {limited} has limits by the minute, and {gateways} gateways (gRPC's process "
            "is one) would count in memory, each for itself: give --rate-limit-storage "
            "redis://HOST:PORT, run one gateway, or say --rate-limit-per-gateway if a key may have "
            "its limits once per gateway"
        )
