"""OpenSSH's own view of a host, asked of `ssh -G`: aliases, Include, Match, jumps, keys and files.

Host keys are always checked, whatever `StrictHostKeyChecking` says: an unknown key is refused as with `yes`.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import ConfigError, InventoryError, MissingHostPackagesError
from labctl.lab.model import SshTarget

_RESOLVE_S = 30.0
_DEFAULT_KEY = re.compile(r"~/\.ssh/id_[a-z0-9_]+\Z")

# Options of the inventory that are passed to `ssh -G` and take effect.
_HONOURED = {
    "addressfamily", "bindaddress", "connecttimeout", "globalknownhostsfile", "hostkeyalias", "hostname",
    "identitiesonly", "identityagent", "identityfile", "port", "proxycommand", "proxyjump", "user",
    "userknownhostsfile",
}  # fmt: skip
# Options that change nothing for labctl: one connection, keys only, no forwarding, keys always checked.
_NEEDLESS = {
    "addkeystoagent", "batchmode", "checkhostip", "compression", "connectionattempts", "controlmaster",
    "controlpath", "controlpersist", "exitonforwardfailure", "forwardagent", "forwardx11",
    "gssapiauthentication", "gssapidelegatecredentials", "hashknownhosts", "kbdinteractiveauthentication",
    "loglevel", "numberofpasswordprompts", "passwordauthentication", "preferredauthentications",
    "pubkeyauthentication", "requesttty", "serveralivecountmax", "serveraliveinterval",
    "stricthostkeychecking", "tcpkeepalive", "updatehostkeys", "visualhostkey",
}  # fmt: skip
_WITH_VALUE = {"-J", "-F", "-i", "-p", "-l", "-o"}
_HONOURED_FLAGS = {"-4", "-6"}
_NEEDLESS_FLAGS = {"-A", "-C", "-T", "-a", "-q", "-t", "-tt", "-v", "-vv", "-vvv", "-x"}


@dataclass(frozen=True, slots=True)
class Hop:
    """One SSH connection as OpenSSH would make it.

    Attributes:
        alias: The name that was asked for.
        host: Where to connect to.
        port: TCP port.
        user: Login user.
        key_files: Private keys to try, in order, `~` and tokens expanded.
        named_keys: Those of them that somebody named; the others are OpenSSH's defaults.
        agent: Socket of the agent, None for none.
        identities_only: Only the agent's keys that belong to `key_files` may be tried.
        known_hosts: Files of known host keys, the user's first.
        key_alias: Name under which the host key is looked up, None for host and port.
        jumps: Hosts to jump through, nearest first, each `[user@]host[:port]`.
        proxy_command: Command whose standard streams are the connection, tokens expanded, or None.
        config_args: `-F FILE` if that was given: it holds for jump hosts too.
        family: socket.AF_UNSPEC, AF_INET or AF_INET6.
        bind_address: Local address to connect from, or None.
        connect_timeout_s: `ConnectTimeout`, or None.
    """

    alias: str
    host: str
    port: int
    user: str
    key_files: tuple[Path, ...]
    named_keys: frozenset[Path]
    agent: str | None
    identities_only: bool
    known_hosts: tuple[Path, ...]
    key_alias: str | None
    jumps: tuple[str, ...]
    proxy_command: str | None
    config_args: tuple[str, ...]
    family: int
    bind_address: str | None
    connect_timeout_s: float | None

    @property
    def where(self) -> str:
        """`user@host:port`, for messages."""
        return f"{self.user}@{self.host}:{self.port}"


def check_options(options: tuple[str, ...], node: str) -> tuple[str, ...]:
    """Return the `ssh` arguments of an inventory that matter, in order.

    Raises:
        InventoryError: One of them cannot be honoured; the message names it.
    """
    kept: list[str] = []
    words = iter(options)
    for word in words:
        flag, value = word, ""
        if flag[:2] in _WITH_VALUE:
            flag, value = word[:2], word[2:] or next(words, "")
            if not value:
                raise InventoryError(f"the SSH option {word} of {node} has no value")
        if flag == "-o":
            name = re.split(r"[=\s]", value.strip(), maxsplit=1)[0].lower()
            if name in _HONOURED:
                kept += [flag, value]
            elif name not in _NEEDLESS:
                raise _unsupported(name, node)
        elif flag in _WITH_VALUE:
            kept += [flag, value]
        elif flag in _HONOURED_FLAGS:
            kept.append(flag)
        elif flag not in _NEEDLESS_FLAGS:
            raise _unsupported(flag, node)
    return tuple(kept)


def _unsupported(name: str, node: str) -> InventoryError:
    return InventoryError(
        f"the SSH option {name} of {node} is not supported by labctl",
        expected="options of the connection: ProxyJump, ProxyCommand, IdentityFile, Port, User, …",
        do="remove it from ansible_ssh_common_args, or set it for Ansible alone in ansible_ssh_args",
    )


def resolve(target: SshTarget, node: str) -> Hop:
    """Return how OpenSSH would connect to a target.

    Args:
        target: From the inventory, or a jump host.
        node: Name of the node, for messages.

    Raises:
        ConfigError: `ssh` is missing, or does not accept its configuration or these options.
    """
    options = check_options(target.options, node)
    if target.host.startswith("-") or not target.host:
        raise InventoryError(f"{target.host!r} cannot be the SSH host of {node}")
    command = ["ssh", "-G"]
    command += ["-p", str(target.port)] if target.port is not None else []
    command += ["-l", target.user] if target.user is not None else []
    command += ["-i", str(target.key_file)] if target.key_file is not None else []
    command += [*options, "--", target.host]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_RESOLVE_S
        )
    except FileNotFoundError as error:
        raise MissingHostPackagesError(
            "ssh is not installed on this machine", do="apt-get install openssh-client"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"ssh -G {target.host} did not answer within {_RESOLVE_S:g} s",
            do="look for a Match exec in ~/.ssh/config that hangs",
        ) from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().replace("\r", "").splitlines()
        raise ConfigError(
            f"OpenSSH refuses its configuration for {node} ({target.host}): {said[-1] if said else '?'}",
            do=f"ssh -G {target.host}",
        )
    return _hop(_settings(done.stdout.decode("utf-8", "surrogateescape")), target, options, node)


def _settings(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), []).append(value.strip())
    return found


def _hop(
    found: dict[str, list[str]], target: SshTarget, options: tuple[str, ...], node: str
) -> Hop:
    def one(key: str) -> str | None:
        value = found.get(key, ["none"])[0]
        return None if value.lower() == "none" else value

    for key in ("revokedhostkeys", "knownhostscommand"):
        if one(key) is not None:
            raise ConfigError(
                f"OpenSSH's configuration sets {key} for {node}, which labctl cannot honour",
                do=f"leave it out for {target.host} in ~/.ssh/config",
            )
    host, port, user = one("hostname") or target.host, int(one("port") or 22), one("user") or ""
    alias = one("hostkeyalias")
    tokens = {
        "%": "%",
        "d": _home(),
        "h": host,
        "i": str(os.getuid()),
        "k": alias or target.host,
        "L": socket.gethostname().partition(".")[0],
        "l": socket.gethostname(),
        "n": target.host,
        "p": str(port),
        "r": user,
        "u": pwd.getpwuid(os.getuid()).pw_name,
    }
    listed = [each for each in found.get("identityfile", []) if each.lower() != "none"]
    given = [] if target.key_file is None else [target.key_file]  # -G leaves out a missing one
    keys = [*given, *(_path(each, tokens) for each in listed)]
    named = [*given, *(_path(each, tokens) for each in listed if not _DEFAULT_KEY.match(each))]
    files = [
        each
        for key in ("userknownhostsfile", "globalknownhostsfile")
        for each in found.get(key, [])
    ]
    wait = one("connecttimeout")
    command = one("proxycommand")
    config = [index for index, word in enumerate(options) if word == "-F"]
    return Hop(
        alias=target.host,
        host=host,
        port=port,
        user=user,
        key_files=tuple(dict.fromkeys(keys)),
        named_keys=frozenset(named),
        agent=_agent(found.get("identityagent", ["SSH_AUTH_SOCK"])[0], tokens),
        identities_only=one("identitiesonly") == "yes",
        known_hosts=tuple(
            _path(each, tokens) for line in files for each in line.split() if each.lower() != "none"
        ),
        key_alias=alias,
        jumps=tuple((one("proxyjump") or "").split(",")) if one("proxyjump") else (),
        proxy_command=None if command is None else _expand(command, tokens),
        config_args=options[config[0] : config[0] + 2] if config else (),
        family={"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(
            one("addressfamily") or "any", socket.AF_UNSPEC
        ),
        bind_address=one("bindaddress"),
        connect_timeout_s=float(wait) if wait is not None and float(wait) > 0 else None,
    )


def _home() -> str:
    """Return the home directory as OpenSSH takes it: of the account, not of `$HOME`."""
    return pwd.getpwuid(os.getuid()).pw_dir


def _expand(text: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)


def _path(text: str, tokens: dict[str, str]) -> Path:
    text = text.strip('"')
    if text == "~" or text.startswith("~/"):
        text = _home() + text[1:]
    return Path(_expand(os.path.expandvars(text), tokens)).expanduser()


def _agent(value: str, tokens: dict[str, str]) -> str | None:
    if value.lower() == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if value.startswith("$") and not value.startswith("${"):
        return os.environ.get(value[1:]) or None
    return str(_path(value, tokens))


def jump_target(text: str, before: tuple[str, ...], config_args: tuple[str, ...]) -> SshTarget:
    """Return the target of one jump host.

    Args:
        text: `[user@]host[:port]` or `ssh://[user@]host[:port]`.
        before: Jump hosts on the way to it, nearest first.
        config_args: `-F FILE`, if given.

    Raises:
        ConfigError: The text is no host.
    """
    form = r"(?:ssh://)?(?:(?P<user>.+)@)?(?:\[(?P<six>[^]]+)\]|(?P<host>[^:@/]+))(?::(?P<port>\d+))?/?"
    found = re.fullmatch(form, text)
    if found is None:
        raise ConfigError(f"{text!r} in ProxyJump is no jump host", expected="[user@]host[:port]")
    return SshTarget(
        host=found["six"] or found["host"],
        user=found["user"],
        port=int(found["port"]) if found["port"] else None,
        options=(*config_args, *(("-o", f"ProxyJump={','.join(before)}") if before else ())),
    )
