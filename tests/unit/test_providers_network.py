"""A lab's address range, its NAT table, and the packet filters of others."""

from __future__ import annotations

import json
from ipaddress import IPv4Network

import pytest

from labctl.errors import ConfigError
from labctl.providers import network

USUAL = IPv4Network("10.132.0.0/24")


def test_the_question_s_addresses_come_first() -> None:
    subnet = network.choose_subnet([IPv4Network("192.0.2.0/24")])
    assert subnet == USUAL
    assert str(network.host_address(subnet)) == "10.132.0.1"
    assert [str(network.node_address(subnet, i)) for i in range(2)] == ["10.132.0.2", "10.132.0.3"]


def test_taken_ranges_are_passed_over() -> None:
    # europe-west1's default network in a GCP VM is 10.132.0.0/20
    assert network.choose_subnet([IPv4Network("10.132.0.0/20")]) == IPv4Network("10.132.16.0/24")
    assert network.choose_subnet([USUAL, IPv4Network("10.132.1.64/26")]) == IPv4Network(
        "10.132.2.0/24"
    )


def test_a_lab_keeps_its_range_while_it_is_free() -> None:
    kept = IPv4Network("10.132.7.0/24")
    assert network.choose_subnet([], kept) == kept
    assert network.choose_subnet([kept], kept) == USUAL


def test_a_route_as_wide_as_a_site_does_not_count() -> None:
    assert network.choose_subnet([IPv4Network("10.0.0.0/8")]) == USUAL


def test_no_range_left_is_an_error_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="no address range") as caught:
        network.choose_subnet([IPv4Network("10.132.0.0/16")])
    assert "labctl down" in str(caught.value)


def test_networks_of_addresses_and_routes_but_for_the_own_bridge() -> None:
    addresses = json.dumps(
        [
            {"ifname": "eth0", "addr_info": [{"local": "192.0.2.2", "prefixlen": 24}]},
            {"ifname": "lab-1", "addr_info": [{"local": "10.132.0.1", "prefixlen": 24}]},
            {},
        ]
    )
    routes = json.dumps(
        [
            {"dst": "default", "dev": "eth0"},
            {"dst": "172.16.0.0/16", "dev": "tun0"},
            {"dst": "10.132.0.0/24", "dev": "lab-1"},
            {"type": "local", "dst": "127.0.0.1", "dev": "lo"},
        ]
    )
    assert {str(each) for each in network.parse_networks(addresses, routes, "lab-1")} == {
        "127.0.0.1/32",
        "172.16.0.0/16",
        "192.0.2.0/24",
    }
    assert network.parse_networks("", "", "lab-1") == ()


def test_nat_table_is_replaced_whole_and_leaves_the_lab_s_own_traffic() -> None:
    text = network.nft_text("labctl_1", "lab-1", USUAL)
    assert text.index("delete table ip labctl_1") < text.index("masquerade")
    assert "ip saddr 10.132.0.0/24 ip daddr != 10.132.0.0/24 masquerade" in text
    assert "flush ruleset" not in text


DOCKER = """\
-P INPUT ACCEPT
-P FORWARD DROP
-P OUTPUT ACCEPT
-N DOCKER
-N DOCKER-USER
-A FORWARD -j DOCKER-USER
-A DOCKER-USER -j RETURN
"""


def test_the_chain_for_the_lab_s_rules() -> None:
    assert network.filter_chain(DOCKER) == "DOCKER-USER"
    assert network.filter_chain("-P INPUT DROP\n-P FORWARD DROP\n") == "FORWARD"
    assert network.filter_chain("-P FORWARD ACCEPT\n-N DOCKER-USER\n") is None
    assert network.filter_chain("") is None


def test_only_the_lab_s_own_rules_are_found_again() -> None:
    listed = DOCKER + "".join(
        f"-A DOCKER-USER {' '.join(rule)}\n"
        for bridge in ("lab-00000001", "lab-000000012", "br-docker")
        for rule in network.filter_rules(bridge)
    )
    assert network.rules_of(listed, "lab-00000001") == tuple(
        ("DOCKER-USER", *rule) for rule in network.filter_rules("lab-00000001")
    )


def test_nothing_is_accepted_into_the_lab_but_answers() -> None:
    for rule in network.filter_rules("lab-1"):
        if "-o" in rule:
            assert "RELATED,ESTABLISHED" in rule


def test_packet_filters_of_the_host_s_own_are_named() -> None:
    def chain(family: str, table: str, name: str, hook: str, policy: str) -> dict[str, object]:
        return {
            "chain": {
                "family": family,
                "table": table,
                "name": name,
                "hook": hook,
                "policy": policy,
            }
        }

    listed = json.dumps(
        {
            "nftables": [
                {"metainfo": {"version": "1.0.6"}},
                chain("inet", "filter", "forward", "forward", "drop"),
                chain("inet", "filter", "input", "input", "drop"),
                chain("inet", "other", "forward", "forward", "accept"),
                chain("ip6", "filter", "forward", "forward", "drop"),
                chain("ip", "filter", "FORWARD", "forward", "drop"),
                {"chain": {"family": "ip", "table": "filter", "name": "DOCKER-USER"}},
            ]
        }
    )
    assert network.dropping_chains(listed) == ("inet filter forward",)
    assert network.dropping_chains("") == ()
