"""Filters on the addresses of firewall rules."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def holds_address(networks: Iterable[str], address: str) -> bool:
    """Return whether one of the networks holds the address; an IPv4 address in IPv6 form counts as IPv4."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    candidates = (_network(network) for network in networks)
    return any(network is not None and parsed in network for network in candidates)


def only_names(sources: Iterable[str]) -> list[str]:
    """Return those sources that are neither address nor network, each once, sorted."""
    return sorted({source for source in sources if _network(source) is None})


def of_version(
    sources: Sequence[str], version: int, resolved: dict[str, list[str]] | None = None
) -> list[str]:
    """Return the networks of an IP version in nft's notation, sorted, without those that another one holds.

    Args:
        sources: Addresses, networks and names.
        version: 4 or 6.
        resolved: Addresses of each name.
    """
    plain: list[str] = []
    for source in sources:
        plain += [source] if _network(source) is not None else (resolved or {})[source]
    networks = [
        network
        for network in map(_network, plain)
        if network is not None and network.version == version
    ]
    return [
        str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)
        for network in ipaddress.collapse_addresses(networks)  # type: ignore[type-var]
    ]


class FilterModule:
    """Names the filters for Ansible."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"holds_address": holds_address, "of_version": of_version, "only_names": only_names}
