"""A lab's network on this host: address range, bridge, masquerading, and a way past another's packet filter."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from labctl.errors import ConfigError
from labctl.providers import host
from labctl.providers.identity import RUN_DIR

FIRST_SUBNET = IPv4Network("10.132.0.0/24")
_WIDE_PREFIX = (
    12  # a route as wide as this is a whole site's; a /24 of ours inside it takes precedence
)
_BRIDGE = re.compile(r"lab-[0-9a-f]{8}\Z")
_IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_SAVED_IP_FORWARD = RUN_DIR / "ip_forward"


def candidates() -> Iterable[IPv4Network]:
    """Yield the address ranges that a lab may have, 10.132.0.0/24 first."""
    return IPv4Network("10.132.0.0/16").subnets(new_prefix=24)


def choose_subnet(taken: Iterable[IPv4Network], wanted: IPv4Network | None = None) -> IPv4Network:
    """Return the wanted address range if it is free, else the first free one.

    Args:
        taken: Networks in use on this host.
        wanted: The range that the lab has had so far.

    Raises:
        ConfigError: All are taken.
    """
    used = [network for network in taken if network.prefixlen > _WIDE_PREFIX]
    for subnet in ([wanted] if wanted else []) + list(candidates()):
        if not any(subnet.overlaps(network) for network in used):
            return subnet
    raise ConfigError(
        "no address range is left for the lab",
        expected="a free /24 in 10.132.0.0/16; every one overlaps an address or route of this host",
        do="labctl down --lab NAME for a lab that is not needed (labctl labs lists them)",
    )


def host_address(subnet: IPv4Network) -> IPv4Address:
    """Return the host's own address in a lab's range, which is the machines' gateway."""
    return subnet[1]


def node_address(subnet: IPv4Network, index: int) -> IPv4Address:
    """Return a node's address: 10.132.0.2 for task 0, .3 for task 1, and so on."""
    return subnet[index + 2]


def taken_networks(bridge: str) -> tuple[IPv4Network, ...]:
    """Return the networks of this host's addresses and routes, those of a lab's own bridge apart."""
    addresses = host.run(["ip", "-json", "-4", "address"], "listing addresses").text
    routes = host.run(["ip", "-json", "-4", "route", "show", "table", "all"], "listing routes").text
    return parse_networks(addresses, routes, bridge)


def parse_networks(addresses: str, routes: str, bridge: str) -> tuple[IPv4Network, ...]:
    """Return the networks in the JSON of `ip address` and `ip route`, without those of one bridge."""
    found = set()
    for link in json.loads(addresses or "[]"):
        if link.get("ifname") == bridge:
            continue
        for each in link.get("addr_info", []):
            found.add(IPv4Network(f"{each['local']}/{each['prefixlen']}", strict=False))
    for route in json.loads(routes or "[]"):
        if route.get("dev") == bridge or route.get("dst") in {None, "default"}:
            continue
        with suppress(ValueError):
            found.add(IPv4Network(route["dst"], strict=False))
    return tuple(sorted(found))


def nft_text(table: str, bridge: str, subnet: IPv4Network) -> str:
    """Return the nft commands that make a lab's table, or make it anew, in one transaction."""
    return f"""\
table ip {table}
delete table ip {table}
table ip {table} {{
	comment "labctl: lets the machines on {bridge} reach the outside"
	chain postrouting {{
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr {subnet} ip daddr != {subnet} masquerade
	}}
}}
"""


def has_bridge(bridge: str) -> bool:
    return bridge in _interfaces()


def lab_bridges() -> set[str]:
    """Return the bridges of all labs on this host."""
    return {name for name in _interfaces() if _BRIDGE.match(name)}


def _interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def ensure_bridge(bridge: str, subnet: IPv4Network) -> None:
    """Make a bridge with the host's address, or mend one."""
    if not has_bridge(bridge):
        host.run(["ip", "link", "add", bridge, "type", "bridge"], "adding the bridge")
    address = f"{host_address(subnet)}/{subnet.prefixlen}"
    shown = host.run(
        ["ip", "-json", "-4", "address", "show", "dev", bridge], "reading the bridge"
    ).text
    have = {
        f"{each['local']}/{each['prefixlen']}"
        for link in json.loads(shown or "[]")
        for each in link.get("addr_info", [])
    }
    for old in have - {address}:
        host.run(["ip", "address", "delete", old, "dev", bridge], "removing an old address")
    if address not in have:
        host.run(["ip", "address", "add", address, "dev", bridge], "giving the bridge its address")
    host.run(["ip", "link", "set", bridge, "up"], "starting the bridge")


def remove_bridge(bridge: str) -> bool:
    """Remove a bridge and return whether there was one."""
    if not has_bridge(bridge):
        return False
    host.run(["ip", "link", "delete", bridge], "removing the bridge")
    return True


def ensure_nat(table: str, bridge: str, subnet: IPv4Network) -> None:
    """Masquerade what the machines send to the outside, in a table of the lab's own."""
    host.run(["nft", "-f", "-"], "loading the NAT table", stdin=nft_text(table, bridge, subnet))


def has_nat(table: str) -> bool:
    return host.try_run(["nft", "list", "table", "ip", table]).ok


def remove_nat(table: str) -> bool:
    """Remove a lab's table and return whether there was one."""
    if not has_nat(table):
        return False
    host.run(["nft", "delete", "table", "ip", table], "removing the NAT table")
    return True


def ensure_forwarding() -> None:
    """Let this host forward packets; the setting found is saved for the last lab's end."""
    if _IP_FORWARD.read_text().strip() != "1":
        RUN_DIR.mkdir(mode=0o755, parents=True, exist_ok=True)
        _SAVED_IP_FORWARD.write_text(_IP_FORWARD.read_text())
        _IP_FORWARD.write_text("1")


def restore_forwarding() -> str | None:
    """Give the forwarding setting back if no lab is left; returns what was done, None for nothing.

    Another bridge on this host (Docker's, a virtual machine's) needs forwarding as well, so it stays on then.
    """
    if lab_bridges() or not _SAVED_IP_FORWARD.exists():
        return None
    shown = host.run(["ip", "-json", "link", "show", "type", "bridge"], "listing bridges").text
    if any(json.loads(shown or "[]")):
        return None
    _IP_FORWARD.write_text(_SAVED_IP_FORWARD.read_text())
    _SAVED_IP_FORWARD.unlink()
    return "packet forwarding as it was"


def filter_chain(rules: str) -> str | None:
    """Return the chain that must accept a lab's packets, from the output of `iptables -S`; None if none drops them.

    Docker sets the policy of FORWARD to DROP and leaves DOCKER-USER to rules of the administrator.
    """
    lines = rules.splitlines()
    if "-P FORWARD DROP" not in lines:
        return None
    return "DOCKER-USER" if "-N DOCKER-USER" in lines else "FORWARD"


def filter_rules(bridge: str) -> tuple[tuple[str, ...], ...]:
    """Return the rules that accept a lab's packets: between its machines, to the outside, and answers."""
    return (
        ("-i", bridge, "-j", "ACCEPT"),
        ("-o", bridge, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"),
    )


def rules_of(rules: str, bridge: str) -> tuple[tuple[str, ...], ...]:
    """Return the rules in the output of `iptables -S` that name a bridge, each as (chain, words...)."""
    found = []
    for line in rules.splitlines():
        words = line.split()
        if words[:1] == ["-A"] and bridge in words:
            found.append(tuple(words[1:]))
    return tuple(found)


def _iptables() -> Iterable[tuple[str, str]]:
    """Yield (program, its `-S`) of each iptables on this host that has rules to look at."""
    seen = set()
    for name in ("iptables", "iptables-nft", "iptables-legacy"):
        program = shutil.which(name, path=host.PATH)
        if program is None:
            continue
        kind = (
            "legacy"
            if "legacy" in str(Path(program).resolve()) or name.endswith("legacy")
            else "nft"
        )
        if name == "iptables":
            version = host.try_run([program, "--version"]).text
            kind = "nft" if "nf_tables" in version else "legacy"
        if kind in seen or (kind == "legacy" and not _has_legacy_rules()):
            continue
        seen.add(kind)
        listed = host.try_run([program, "--wait", "10", "-S"])
        if listed.ok:
            yield program, listed.text


def _has_legacy_rules() -> bool:
    """Return whether the old iptables is in use; merely listing its rules would bring it into use."""
    with suppress(OSError):
        return "filter" in Path("/proc/net/ip_tables_names").read_text().split()
    return False


def dropping_chains(ruleset: str) -> tuple[str, ...]:
    """Return the chains that drop forwarded packets by default, `family table chain` each.

    The table of iptables is left out: `ensure_filter` takes care of it.

    Args:
        ruleset: Output of `nft -j list chains`.
    """
    chains = [
        each["chain"] for each in json.loads(ruleset or "{}").get("nftables", []) if "chain" in each
    ]
    return tuple(
        f"{chain['family']} {chain['table']} {chain['name']}"
        for chain in chains
        if chain.get("hook") == "forward"
        and chain.get("policy") == "drop"
        and chain["family"] in {"ip", "inet"}
        and (chain["family"], chain["table"], chain["name"]) != ("ip", "filter", "FORWARD")
    )


def other_filters(bridge: str) -> tuple[str, ...]:
    """Return what to tell the user about packet filters of the host's own, which labctl does not change."""
    chains = host.run(["nft", "-j", "list", "chains"], "listing packet filters").text
    return tuple(
        f"{chain} drops forwarded packets by default; if the machines do not reach the outside: "
        f"nft insert rule {chain} iifname {bridge} accept"
        for chain in dropping_chains(chains)
    )


def ensure_filter(bridge: str) -> tuple[str, ...]:
    """Accept a lab's packets where another's packet filter would drop them; returns the chains concerned."""
    chains = []
    for program, rules in _iptables():
        chain = filter_chain(rules)
        if chain is None:
            continue
        chains.append(chain)
        for rule in filter_rules(bridge):
            if not host.try_run([program, "--wait", "10", "-C", chain, *rule]).ok:
                host.run([program, "--wait", "10", "-I", chain, *rule], f"adding a rule to {chain}")
    return tuple(chains)


def remove_filter(bridge: str) -> int:
    """Remove a lab's rules from other packet filters and return how many there were."""
    count = 0
    for program, rules in _iptables():
        for chain, *words in rules_of(rules, bridge):
            host.run(
                [program, "--wait", "10", "-D", chain, *words], f"removing a rule from {chain}"
            )
            count += 1
    return count
