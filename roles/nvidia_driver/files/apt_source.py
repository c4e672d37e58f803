"""Try a driver's packages out before anything is touched, and write its repository's entry.

Reads one JSON object from stdin (`verb`, `file`, `key_file`, `source`, `foreign`, `packages`, `branch`, `version`,
`tries`, `delay_s`). Its verbs:

- `try` resolves the packages against copies of the machine's sources and lists, with the repository's entry in and
  contradicting ones out; the machine is not changed.
- `write` writes the entry and its key and removes contradicting entries; `check` says what `write` would change.
- `update` fetches the machine's lists, all of them or none.

Prints one JSON object. Standard library only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

APT = Path("/etc/apt")
LISTS = Path("/var/lib/apt/lists")
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
HEADER = "# Written by the role nvidia_driver.\n"
# What apt says, and what it means; the first that fits counts. Those that pass by themselves are tried again.
FAULTS = (
    ("conflict", False, r"Conflicting values set for option Signed-By"),
    (
        "key",
        False,
        r"NO_PUBKEY|EXPKEYSIG|REVKEYSIG|BADSIG|is not signed|signatures? (couldn't|were) |Unsupported",
    ),
    (
        "mismatch",
        True,
        r"Hash Sum mismatch|has unexpected size|Mirror sync in progress|Clearsigned file isn't valid",
    ),
    ("absent", True, r"404 +Not Found|does not have a Release file|File not found"),
    (
        "unreachable",
        True,
        r"Could not (resolve|connect)|Connection (failed|timed out|refused)|Unable to connect|50\d ",
    ),
    ("locked", True, r"Could not get lock|Unable to lock"),
)


class SourceError(Exception):
    """The repository cannot be used; the arguments are the kind, what was found, expected and what to do."""


@dataclass
class Entry:
    """One source of packages, as a one-line entry or a deb822 stanza.

    Attributes:
        file: Where it stands.
        text: As it stands there.
        uris: Without a trailing slash.
        suites: Of it.
        components: Of it.
        signed_by: Key file or key, "" for none.
        options: Further fields, of a stanza by name.
    """

    file: Path
    text: str
    uris: list[str] = field(default_factory=list)
    suites: list[str] = field(default_factory=list)
    components: list[str] = field(default_factory=list)
    signed_by: str = ""
    options: dict[str, str] = field(default_factory=dict)

    @property
    def binary(self) -> bool:
        """It gives packages that can be installed, and is not switched off."""
        return (
            "deb" in self.options.get("types", "").split()
            and self.options.get("enabled", "yes") != "no"
        )


def _one_line(file: Path, row: str) -> Entry | None:
    match = re.match(r"\s*(deb(?:-src)?)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", row)
    if match is None:
        return None
    kind, options, uri, suite, components = match.groups()
    signed = re.search(r"signed-by=(\S+)", options or "")
    return Entry(
        file,
        row,
        [uri.rstrip("/")],
        [suite],
        components.split(),
        signed[1] if signed else "",
        {"types": kind},
    )


def _stanza(file: Path, text: str) -> Entry | None:
    fields: dict[str, str] = {}
    name = ""
    for row in text.splitlines():
        if row.startswith("#"):
            continue
        if row[:1].isspace():
            fields[name] = fields.get(name, "") + "\n" + row.strip()
        elif ":" in row:
            name, _, value = row.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    if "uris" not in fields:
        return None
    lists = {key: fields.pop(key, "").split() for key in ("uris", "suites", "components")}
    uris = [uri.rstrip("/") for uri in lists["uris"]]
    return Entry(
        file, text, uris, lists["suites"], lists["components"], fields.pop("signed-by", ""), fields
    )


def entries(apt: Path) -> list[Entry]:
    """Return all sources below apt's directory."""
    found: list[Entry | None] = []
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]
    for file in files:
        if file.is_file():
            found += [_one_line(file, row) for row in file.read_text().splitlines()]
    for file in sorted((apt / "sources.list.d").glob("*.sources")):
        found += [_stanza(file, text) for text in re.split(r"\n[ \t]*\n", file.read_text())]
    return [entry for entry in found if entry is not None]


def rendered(source: dict[str, Any], there: list[Entry], own: Path, key_file: Path) -> str:
    """Return the text of the repository's own file, "" where the machine's entries hold all that is wanted.

    A `source` with `uris` is a repository of its own. One with `components` alone asks for further components of
    the distribution's own repositories: each entry that has `main` is followed, its key too, since apt refuses two
    keys for one repository.
    """
    if source.get("uris"):
        rows = {
            "Types": "deb",
            "URIs": source["uris"],
            "Suites": source["suites"],
            "Components": source["components"],
            "Signed-By": str(key_file) if source.get("key_url") or source.get("key") else "",
            "Trusted": source.get("trusted", ""),
        }
        return HEADER + "".join(f"{name}: {value}\n" for name, value in rows.items() if value)
    others = [entry for entry in there if entry.binary and entry.file != own]
    stanzas = []
    for entry in others:
        if "main" not in entry.components:
            continue
        for suite in entry.suites:
            held = {
                component
                for other in others
                if suite in other.suites and set(other.uris) & set(entry.uris)
                for component in other.components
            }
            lacking = [name for name in source["components"].split() if name not in held]
            if lacking:
                signed = entry.signed_by.replace("\n", "\n ")
                stanzas.append(
                    f"Types: deb\nURIs: {' '.join(entry.uris)}\nSuites: {suite}\n"
                    f"Components: {' '.join(lacking)}\n"
                    + (f"Signed-By: {signed}\n" if signed else "")
                )
    return HEADER + "\n".join(dict.fromkeys(stanzas)) if stanzas else ""


def contradicting(
    source: dict[str, Any], there: list[Entry], own: Path, foreign: list[str]
) -> list[Entry]:
    """Return entries of others for the same repository, and NVIDIA's for another release."""
    if not source.get("uris"):
        return []
    wanted = source["uris"].rstrip("/")
    return [
        entry
        for entry in there
        if entry.file != own
        and (wanted in entry.uris or any(part in uri for uri in entry.uris for part in foreign))
    ]


def without(file: Path, gone: list[Entry]) -> str:
    """Return a file's text without some of its entries; "" when none is left."""
    text = file.read_text()
    for entry in gone:
        text = text.replace(entry.text, "", 1)
    remaining = re.sub(r"(?m)^\s*#.*$", "", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n" if remaining.strip() else ""


def fingerprint(key: bytes) -> str:
    """Return the fingerprint of the first OpenPGP key (RFC 4880, 12.2: SHA-1 over its packet), hex; "" for none."""
    data = key
    if b"-----BEGIN PGP" in key:
        body = re.search(
            rb"-----BEGIN PGP[^\n]*\n(?:[^\n]+: [^\n]*\n)*\s*\n?(.*?)\n(?:=[^\n]{4}\n)?-----END",
            key,
            re.DOTALL,
        )
        if body is None:
            return ""
        data = base64.b64decode(re.sub(rb"\s", b"", body[1]))
    if not data or not data[0] & 0x80:
        return ""
    tag = data[0] & 0x3F if data[0] & 0x40 else (data[0] >> 2) & 0x0F
    if tag != 6:
        return ""
    if data[0] & 0x40:  # new format
        if data[1] < 192:
            start, length = 2, data[1]
        elif data[1] < 224:
            start, length = 3, ((data[1] - 192) << 8) + data[2] + 192
        else:
            start, length = 6, int.from_bytes(data[2:6], "big")
    else:
        size = {0: 1, 1: 2, 2: 4}.get(data[0] & 3, 0)
        start, length = 1 + size, int.from_bytes(data[1 : 1 + size], "big")
    body_bytes = data[start : start + length]
    digest = hashlib.sha1(b"\x99" + len(body_bytes).to_bytes(2, "big") + body_bytes)  # noqa: S324 the format's own
    return digest.hexdigest().upper()


def key_of(source: dict[str, Any]) -> bytes:
    """Return the repository's key, fetched where it is not given.

    Raises:
        SourceError: It cannot be fetched, or is another one than was expected.
    """
    name = source["uris"]
    if source.get("key"):
        key = str(source["key"]).encode()
    elif source.get("key_url"):
        try:
            with urllib.request.urlopen(source["key_url"], timeout=60) as answer:  # noqa: S310 the role's variable
                key = answer.read()
        except OSError as error:
            raise SourceError(
                "unreachable",
                f"{name}: its key {source['key_url']}: {error}",
                "the key of the repository",
                "see to the way out of the node (lab_proxy_env), or set nvidia_driver_repository_key",
            ) from error
    else:
        return b""
    wanted = re.sub(r"\s", "", source.get("fingerprint", "")).upper()
    found = fingerprint(key)
    if wanted and found != wanted:
        raise SourceError(
            "key",
            f"{name}: its key is {found or 'no OpenPGP key'}",
            f"{wanted} (nvidia_driver_repository_fingerprint)",
            "ask the repository's owner whether the key was changed; if so, set the new one's fingerprint",
        )
    return key


def run(argv: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Run a program; return its status and output."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=900,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout + done.stderr


def fault_of(text: str) -> tuple[str, bool, str]:
    """Return the kind of what apt says, whether to try again, and its own words."""
    said = [row for row in text.splitlines() if row.startswith(("E:", "W:", "Err:"))]
    words = (
        " ".join(dict.fromkeys(row[2:].strip() for row in said if row[1] == ":"))
        or text[-300:].strip()
    )
    for kind, again, pattern in FAULTS:
        if re.search(pattern, text):
            return kind, again, words
    return "other", True, words


REMEDIES = {
    "key": "ask its owner whether the key was changed, then set nvidia_driver_repository_key or _fingerprint",
    "conflict": "leave one entry for that repository below /etc/apt",
    "mismatch": "wait until the mirror has settled, or set nvidia_driver_repository_uri to another mirror",
    "absent": "correct nvidia_driver_repository_uri or _suites",
    "unreachable": "see to the node's way out (lab_proxy_env), or set nvidia_driver_repository_uri to a mirror",
    "locked": "wait for the process that holds apt's lock",
    "other": "run apt-get update on the node and settle what it names",
}


def update(options: list[str], environment: dict[str, str], tries: int, delay_s: float) -> int:
    """Fetch the lists, all or none; what may pass by itself is tried again, with twice the delay each time.

    Returns:
        How often it was tried.

    Raises:
        SourceError: They cannot be fetched; the machine keeps the lists that it had.
    """
    for attempt in range(1, tries + 1):
        status, text = run(
            ["apt-get", "update", "--quiet=1", "-o", "APT::Update::Error-Mode=any", *options],
            environment,
        )
        if status == 0 and not re.search(
            r"(?m)^(W|Err|E):.*(Failed to fetch|NO_PUBKEY|signature)", text
        ):
            return attempt
        kind, again, words = fault_of(text)
        if not again or attempt == tries:
            times = f" ({attempt} times)" if attempt > 1 else ""
            raise SourceError(
                kind,
                f"{words}{times}",
                "package lists that can be fetched and that their key has signed",
                REMEDIES[kind],
            )
        time.sleep(delay_s * 2 ** (attempt - 1))
    raise AssertionError("unreachable")


def upstream(version: str) -> str:
    """Return the driver's own version of a package's: 535.261.03 of `535.261.03-1~deb12u1`."""
    match = re.match(r"(?:[0-9]+:)?([0-9]+(?:\.[0-9]+)*)", version)
    return match[1] if match else ""


def chosen_versions(
    wanted: dict[str, Any], there: dict[str, list[str]]
) -> tuple[dict[str, str], str]:
    """Return the version to install of each package ("" for the candidate), and the driver's own version.

    The packages of a driver work together in one version alone, and a repository may have a newer one of some of
    them (Debian's security archive has no open kernel modules): the newest that all have is taken.

    Args:
        wanted: What stdin said.
        there: Versions of each package that a repository has, the newest first.

    Raises:
        SourceError: A package is in no repository, or not in the branch or version, or no version is common.
    """
    pinned: dict[str, list[str]] = {}
    for package in wanted["packages"]:
        name, versions = package["name"], there[package["name"]]
        fitting = versions
        if package.get("pinned", False):
            asked, branch = wanted["version"], f"{wanted['branch']}."
            fitting = [
                each
                for each in versions
                if (each == asked if asked else upstream(each).startswith(branch))
            ]
            pinned[name] = fitting
        if not fitting:
            raise SourceError(
                "headers" if package.get("role") == "headers" else "no-package",
                f"{name}: {', '.join(dict.fromkeys(versions)) or 'in no repository of the node'}",
                package.get("expected")
                or f"{wanted['version'] or 'a version of branch ' + str(wanted['branch'])}",
                package.get("do")
                or "set another nvidia_driver_branch or _version, or nvidia_driver_source: nvidia",
            )
    common = set.intersection(
        *({upstream(each) for each in versions} for versions in pinned.values())
    )
    if not common:
        raise SourceError(
            "no-package",
            "; ".join(f"{name}: {', '.join(versions)}" for name, versions in pinned.items()),
            "one version that all of them have",
            "wait for the repository, or take another nvidia_driver_flavour or nvidia_driver_source",
        )
    best = next(
        own
        for versions in pinned.values()
        for each in versions
        if (own := upstream(each)) in common
    )
    found = {package["name"]: "" for package in wanted["packages"]}
    for name, versions in pinned.items():
        found[name] = next(each for each in versions if upstream(each) == best)
    return found, best


def versions_of(name: str, options: list[str], environment: dict[str, str]) -> list[str]:
    """Return the versions of a package that the repositories have, the newest first."""
    _, text = run(["apt-cache", *options, "madison", name], environment)
    return [row.split("|")[1].strip() for row in text.splitlines() if row.count("|") >= 2]


def pin_text(own: str) -> str:
    """Return apt's preferences that take what a driver's packages depend on in its version, downwards too."""
    return f"Package: /nvidia/ libcuda1 libcudadebugger1 cuda-drivers\nPin: version {own}*\nPin-Priority: 1001\n"


def attempt(wanted: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """Resolve the packages against copies of the machine's sources and lists."""
    own, source = Path(wanted["file"]), wanted["source"]
    folder = Path(tempfile.mkdtemp(prefix="nvidia-driver-"))
    try:
        folder.chmod(0o755)
        parts, lists = folder / "sources.list.d", folder / "lists"
        parts.mkdir()
        (folder / "cache/archives/partial").mkdir(parents=True)
        shutil.copytree(LISTS, lists, ignore=shutil.ignore_patterns("lock", "partial"))
        (lists / "partial").mkdir()
        there = entries(APT)
        gone = contradicting(source, there, own, wanted["foreign"])
        (folder / "sources.list").touch()
        for file in {entry.file for entry in there}:
            if file == own:
                continue
            target = folder / "sources.list" if file.parent == APT else parts / file.name
            target.write_text(without(file, [entry for entry in gone if entry.file == file]))
        key_file = folder / f"key{Path(wanted['key_file']).suffix}"
        if source.get("uris"):
            key_file.write_bytes(key_of(source))
        text = rendered(source, there, own, key_file)
        if text:
            (parts / own.name).write_text(text)
        options = [
            f"-oDir::Etc::sourcelist={folder}/sources.list",
            f"-oDir::Etc::sourceparts={parts}",
            f"-oDir::Etc::preferences={folder}/preferences",
            f"-oDir::Etc::preferencesparts={folder}/none",
            f"-oDir::State::lists={lists}",
            f"-oDir::Cache={folder}/cache",
        ]
        tried = update(options, environment, wanted["tries"], wanted["delay_s"])
        there_are = {
            package["name"]: versions_of(package["name"], options, environment)
            for package in wanted["packages"]
        }
        versions, own_version = chosen_versions(wanted, there_are)
        (folder / "preferences").write_text(pin_text(own_version))
        names = [f"{name}={version}" if version else name for name, version in versions.items()]
        status, said = run(
            [
                "apt-get", *options, "install", "--simulate", "--yes", "--no-install-recommends",
                "--ignore-hold", "--allow-change-held-packages", "--allow-downgrades", *names,
            ],
            environment,
        )  # fmt: skip
        if status != 0:
            _, _, words = fault_of(said)
            unmet = " ".join(row.strip() for row in said.splitlines() if "Depends:" in row)
            raise SourceError(
                "unresolved",
                f"{', '.join(names)}: {unmet or words}",
                "packages that can be installed together",
                "look at apt-get install --simulate with these names on the node",
            )
        resolved = re.findall(r"(?m)^Inst (\S+) (?:\[[^\]]*\] )?\((\S+)", said)
        return {
            "pin": pin_text(own_version),
            "names": names,
            "resolved": dict(resolved),
            "tried": tried,
        }
    finally:
        shutil.rmtree(folder)


def write(wanted: dict[str, Any], *, only_say: bool) -> list[str]:
    """Write the entry and the key, and remove contradicting entries; return what changes."""
    own, key_file, source = Path(wanted["file"]), Path(wanted["key_file"]), wanted["source"]
    there = entries(APT)
    changes: dict[Path, bytes | None] = {}
    gone = contradicting(source, there, own, wanted["foreign"])
    for file in {entry.file for entry in gone}:
        left = without(file, [entry for entry in gone if entry.file == file])
        changes[file] = left.encode() if left else None
    changes[own] = rendered(source, there, own, key_file).encode() or None
    changes[key_file] = (key_of(source) if source.get("uris") else b"") or None
    said = []
    for file, content in changes.items():
        if (file.read_bytes() if file.is_file() else None) == content:
            continue
        said.append(f"{'remove' if content is None else 'write'} {file}")
        if only_say:
            continue
        if content is None:
            file.unlink()
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        part.write_bytes(content)
        part.chmod(0o644)
        part.replace(file)
    return said


def main() -> int:
    """Do what stdin says."""
    wanted = json.load(sys.stdin)
    environment = {**os.environ, **ENVIRONMENT}
    answer: dict[str, Any] = {"problem": None}
    try:
        if wanted["verb"] == "try":
            answer |= attempt(wanted, environment)
        elif wanted["verb"] == "update":
            answer["tried"] = update([], environment, wanted["tries"], wanted["delay_s"])
        else:
            answer["changes"] = write(wanted, only_say=wanted["verb"] == "check")
    except SourceError as error:
        answer["problem"] = dict(zip(("kind", "found", "expected", "do"), error.args, strict=True))
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
