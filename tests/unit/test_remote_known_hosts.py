from __future__ import annotations

import base64
import hashlib
import hmac
import os
from pathlib import Path

import pytest

from labctl.errors import HostKeyError
from labctl.remote.known_hosts import KnownHosts, fingerprint, read_known_hosts

KIND = "ssh-ed25519"


def blob(kind: str = KIND, body: bytes = b"k" * 32) -> bytes:
    return len(kind).to_bytes(4, "big") + kind.encode() + len(body).to_bytes(4, "big") + body


def line(names: str, kind: str = KIND, body: bytes = b"k" * 32) -> str:
    return f"{names} {kind} {base64.b64encode(blob(kind, body)).decode()} a comment"


def hashed(name: str) -> str:
    salt = os.urandom(20)
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def accepts(path: Path, text: str, host: str, port: int | None) -> bool:
    path.write_text(text + "\n")
    known = KnownHosts([path], host, port)
    try:
        known.check(KIND, blob(), node="tf1", login="ssh tf1")
    except HostKeyError:
        return False
    return True


@pytest.mark.parametrize(
    ("names", "host", "port", "expected"),
    [
        ("node", "node", 22, True),
        ("node", "NODE", 22, True),
        ("node", "node2", 22, False),
        ("a,node,b", "node", 22, True),
        ("*.example,10.132.0.?", "10.132.0.2", 22, True),
        ("*.example,10.132.0.?", "10.132.0.22", 22, False),
        ("*,!node", "node", 22, False),
        ("*,!node", "other", 22, True),
        ("[node]:2201", "node", 2201, True),
        ("[node]:2201", "node", 2202, False),
        ("[node]:2201", "node", 22, False),
        ("[n]ode", "node", 22, False),
        ("node", "node", 2201, True),
        ("fe80::1", "fe80::1", 22, True),
        ("alias", "alias", None, True),
    ],
)
def test_names_match_as_openssh_matches_them(
    tmp_path: Path, names: str, host: str, port: int | None, expected: bool
) -> None:
    assert accepts(tmp_path / "known", line(names), host, port) is expected


@pytest.mark.parametrize(("host", "port"), [("node", 22), ("node", 2201)])
def test_hashed_names_match(tmp_path: Path, host: str, port: int) -> None:
    name = host if port == 22 else f"[{host}]:{port}"
    assert accepts(tmp_path / "known", line(hashed(name)), host, port)
    assert not accepts(tmp_path / "known", line(hashed("another")), host, port)


def test_unusable_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "known"
    good = line("node")
    unusable = [
        "",
        "# a comment",
        f"@cert-authority {line('node')}",
        f"@unknown {line('node')}",
        "node ssh-ed25519",
        "node ssh-ed25519 !!!!",
        "node ssh-rsa " + good.split()[2],
        "|1|broken " + good.split(maxsplit=1)[1],
        "node 1024 35 1234567890",
    ]
    path.write_text("\n".join([*unusable, good]))
    found = [each for each in read_known_hosts(path) if each.is_for("node")]
    assert [(each.line, each.kind) for each in found] == [(len(unusable) + 1, KIND)]


def test_key_on_any_file_is_enough(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text(line("node", body=b"o" * 32) + "\n")
    two.write_text(line("node") + "\n")
    KnownHosts([one, tmp_path / "none", two], "node", 22).check(KIND, blob(), node="n", login="")


def test_known_types_come_first_and_once(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_text(
        "\n".join(
            [line("node", "ssh-rsa"), line("node"), line("node", "ssh-rsa", b"x"), line("other")]
        )
    )
    assert KnownHosts([path], "node", 22).kinds() == ["ssh-rsa", KIND]


def test_changed_key_of_a_port_is_removed_by_its_full_name(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_text(line("[10.0.0.1]:2201", body=b"o" * 32) + "\n")
    with pytest.raises(HostKeyError) as caught:
        KnownHosts([path], "10.0.0.1", 2201).check(KIND, blob(), node="tf1", login="ssh x")
    error = caught.value
    assert error.found == (
        f"the host key of tf1 ([10.0.0.1]:2201) has changed: it is now ED25519 {fingerprint(blob())}"
    )
    old = fingerprint(blob(body=b"o" * 32))
    assert error.expected == f"ED25519 {old}, as {path}:1 says"
    assert (error.do or "").endswith(f"ssh-keygen -f {path} -R '[10.0.0.1]:2201'")


def test_other_type_is_unknown_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_text(line("node", "ecdsa-sha2-nistp256") + "\n")
    with pytest.raises(HostKeyError, match=r"is not known: .* \(known: ECDSA\)"):
        KnownHosts([path], "node", 22).check(KIND, blob(), node="tf1", login="ssh x")


def test_revoked_key_is_refused_even_if_known(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_text(f"{line('node')}\n@revoked {line('*')}\n")
    with pytest.raises(HostKeyError, match=f"is revoked by {path}:2"):
        KnownHosts([path], "node", 22).check(KIND, blob(), node="tf1", login="ssh x")
