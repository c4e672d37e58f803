"""The address under which the internet sees this machine: SSH of a new lab is open to it alone."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from ipaddress import AddressValueError, IPv4Address

from labctl.errors import ConfigError

VARIABLE = "LABCTL_ADDRESS_URL"
DEFAULT_URL = "https://checkip.amazonaws.com"
_TIMEOUT_S = 10.0
_MOST_BYTES = 200

Fetch = Callable[[str], bytes]


def own_cidr(fetch: Fetch | None = None) -> str:
    """Return this machine's public address as a network of one.

    Args:
        fetch: Fetches a URL; the default waits 10 s at most.

    Raises:
        ConfigError: It cannot be found out.
    """
    url = os.environ.get(VARIABLE) or DEFAULT_URL
    if not url.startswith("https://"):
        raise _unknown(url, "no https URL")
    try:
        text = (fetch or _fetch)(url).decode("ascii").strip()
        address = IPv4Address(text)
    except (OSError, urllib.error.URLError) as error:
        raise _unknown(url, str(getattr(error, "reason", error))) from error
    except (UnicodeDecodeError, AddressValueError) as error:
        raise _unknown(url, "it answered something else than an IPv4 address") from error
    if not address.is_global:
        raise _unknown(url, f"it answered {address}, which is no address of the internet")
    return f"{address}/32"


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 https only
        return bytes(answer.read(_MOST_BYTES))


def _unknown(url: str, why: str) -> ConfigError:
    return ConfigError(
        f"this machine's public address cannot be asked of {url}: {why}",
        expected="the address that SSH of the lab shall be open to",
        do=f"--admin-cidr ADDRESS/32, or {VARIABLE} with another https service that answers an address",
    )
