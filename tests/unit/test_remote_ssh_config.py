from __future__ import annotations

import pytest

from labctl.errors import ConfigError, InventoryError
from labctl.lab.model import SshTarget
from labctl.remote.ssh import SshExecutor
from labctl.remote.ssh_config import check_options, jump_target


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (("-o", "ProxyJump=me@gate"), ("-o", "ProxyJump=me@gate")),
        (("-oProxyJump=gate",), ("-o", "ProxyJump=gate")),
        (("-o", "ProxyCommand ssh -W %h:%p gate"), ("-o", "ProxyCommand ssh -W %h:%p gate")),
        (("-J", "a,b", "-4"), ("-J", "a,b", "-4")),
        (("-F", "file", "-p2222"), ("-F", "file", "-p", "2222")),
        (("-o", "ControlMaster=auto", "-o", "ControlPersist=60s", "-C", "-v"), ()),
        (("-o", "stricthostkeychecking=no", "-o", "USER=me"), ("-o", "USER=me")),
    ],
)
def test_options_that_matter_are_kept(given: tuple[str, ...], kept: tuple[str, ...]) -> None:
    assert check_options(given, "tf1") == kept


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("-o", "PKCS11Provider=/x"), "pkcs11provider"),
        (("-o", "KnownHostsCommand=/x"), "knownhostscommand"),
        (("-L", "1:2:3"), "-L"),
        (("-w", "0"), "-w"),
        (("gate",), "gate"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_by_name(
    given: tuple[str, ...], named: str
) -> None:
    with pytest.raises(
        InventoryError, match=f"SSH option {named} of tf1 is not supported"
    ) as caught:
        check_options(given, "tf1")
    assert caught.value.exit_code == 3


def test_option_without_its_value_is_refused() -> None:
    with pytest.raises(InventoryError, match="SSH option -o of tf1 has no value"):
        check_options(("-4", "-o"), "tf1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gate", (None, "gate", None)),
        ("me@gate:2222", ("me", "gate", 2222)),
        ("ssh://me@gate:2222", ("me", "gate", 2222)),
        ("me@realm@gate", ("me@realm", "gate", None)),
        ("[fe80::1]:22", (None, "fe80::1", 22)),
    ],
)
def test_jump_hosts_are_taken_apart(
    text: str, expected: tuple[str | None, str, int | None]
) -> None:
    target = jump_target(text, (), ())
    assert (target.user, target.host, target.port) == expected


def test_jump_goes_through_those_before_it() -> None:
    target = jump_target("c", ("a", "b:1"), ("-F", "file"))
    assert target.options == ("-F", "file", "-o", "ProxyJump=a,b:1")


@pytest.mark.parametrize("text", ["", "me@", "gate:x", "a b:c:d"])
def test_what_is_no_jump_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no jump host"):
        jump_target(text, (), ())


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_connect_timeout_that_is_no_time_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("LABCTL_CONNECT_TIMEOUT_S", text)
    with pytest.raises(ConfigError, match="LABCTL_CONNECT_TIMEOUT_S"):
        SshExecutor("tf1", SshTarget("node"))
