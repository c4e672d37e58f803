"""The file system that all machines of a release are cloned from: built once, kept, never changed."""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import ConfigError, LabctlError
from labctl.providers import host, mounts
from labctl.providers.base import Report
from labctl.providers.lock import hold

RELEASES = {"12": "bookworm", "13": "trixie"}
DEFAULT_RELEASE = "bookworm"
ADMIN = "admin"

# A bare host of a cloud: what boots, resolves, takes SSH logins and lets Ansible work. What the roles need is
# theirs to install.
PACKAGES = (
    "ca-certificates",
    "dbus",
    "iproute2",
    "openssh-server",
    "python3",
    "python3-apt",
    "sudo",
    "systemd",
    "systemd-sysv",
)
# Fetched into the image's package cache, not installed: N machines do not download them N times.
PREFETCHED = ("acl", "iperf3", "nftables", "python3-venv")
# They would hold apt's lock, wait for hardware, or draw a login prompt on the console log.
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "console-getty.service",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "systemd-firstboot.service",
    "systemd-pstore.service",
)
BUILD_TIMEOUT_S = 1800

_NAME = re.compile(r"(?:bookworm|trixie)-[0-9a-f]{12}\Z")
_SSHD = """\
# Written by labctl: keys only, and never root.
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin no
UseDNS no
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an image is made.

    Attributes:
        suite: Debian codename.
        sources: apt sources in deb822 form, "" for mmdebstrap's own choice of mirror.
        options: apt options of the host that hold for the image too (proxies).
    """

    suite: str
    sources: str
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the image's directory: the same recipe has the same name."""
        text = "\0".join((self.sources, *self.options, *hooks(), *PACKAGES))
        return f"{self.suite}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def parse_release(text: str) -> str:
    """Return the codename of a release given as codename or number.

    Raises:
        ConfigError: It is not one that machines can run.
    """
    name = RELEASES.get(text, text)
    if name not in RELEASES.values():
        raise ConfigError(
            f"--release {text}: not a release that machines can run",
            expected="bookworm (12) or trixie (13)",
            do="labctl up --release bookworm",
        )
    return name


def is_image_name(text: str) -> bool:
    return _NAME.match(text) is not None


def hooks() -> tuple[str, ...]:
    """Return the shell lines that finish the file system; `$1` is its root."""
    apt = 'APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get'
    fetch = f"{apt} --yes --quiet=2 --no-install-recommends --download-only install"
    return (
        f'chroot "$1" useradd --create-home --shell /bin/bash --groups sudo {ADMIN}',
        f'echo "{ADMIN} ALL=(ALL) NOPASSWD: ALL" > "$1/etc/sudoers.d/{ADMIN}"',
        f'chmod 0440 "$1/etc/sudoers.d/{ADMIN}"',
        f"printf '%s' '{_SSHD}' > \"$1/etc/ssh/sshd_config.d/10-labctl.conf\"",
        'rm -f "$1"/etc/ssh/ssh_host_*',
        'chroot "$1" systemctl --quiet enable systemd-networkd.service ssh.service',
        'chroot "$1" systemctl --quiet mask ' + " ".join(MASKED),
        f"{apt} clean",
        f"{fetch} {' '.join(PREFETCHED)}",
    )


def build_argv(recipe: Recipe, target: Path, sources_file: Path | None) -> list[str]:
    """Return the mmdebstrap command that builds an image."""
    return [
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
        "--skip=cleanup/apt",
        f"--include={','.join(PACKAGES)}",
        *(f"--aptopt={option}" for option in recipe.options),
        *(f"--customize-hook={hook}" for hook in hooks()),
        recipe.suite,
        str(target),
        *([str(sources_file)] if sources_file else []),
    ]


def host_recipe(suite: str) -> Recipe:
    """Return the recipe for a release on this host: with its mirror, keyring and proxies."""
    folder = Path("/etc/apt")
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    texts = [
        (file.suffix, file.read_text(errors="replace"))
        for file in files
        if file.suffix in {".list", ".sources"} and file.is_file()
    ]
    codename = re.search(
        r'^VERSION_CODENAME="?([a-z]+)', Path("/etc/os-release").read_text(), re.MULTILINE
    )
    dumped = host.try_run(["apt-config", "dump"]).text
    proxies = [
        line for line in dumped.splitlines() if re.match(r'Acquire::https?::Proxy "\S+";', line)
    ]
    return Recipe(
        suite,
        debian_sources(texts, codename[1] if codename else "", suite),
        tuple(proxies),
    )


def debian_sources(texts: list[tuple[str, str]], codename: str, suite: str) -> str:
    """Return deb822 sources of one Debian release, taken from a host's own sources.

    Args:
        texts: (`.list` | `.sources`, content) of each of the host's files.
        codename: The host's release.
        suite: The release wanted.

    Returns:
        "" when the host has no source of the Debian archive (Ubuntu, or none at all).
    """
    stanzas = []
    for kind, text in texts:
        entries = _one_line_entries(text) if kind == ".list" else _deb822_entries(text)
        for entry in entries:
            stanza = _debian_stanza(entry, codename, suite)
            if stanza and stanza not in stanzas:
                stanzas.append(stanza)
    has_release = any(f"Suites: {suite}\n" in s or f"Suites: {suite} " in s for s in stanzas)
    return "\n".join(stanzas) if has_release else ""


def _one_line_entries(text: str) -> list[dict[str, str]]:
    found = []
    for line in text.splitlines():
        match = re.match(
            r"deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(\S+)\s+(\S+)\s+(.+?)\s*(?:#.*)?\Z", line.strip()
        )
        if match:
            options = dict(
                pair.split("=", 1) for pair in (match["options"] or "").split() if "=" in pair
            )
            found.append(
                {
                    "types": "deb",
                    "uris": match[2],
                    "suites": match[3],
                    "components": match[4],
                    "signed-by": options.get("signed-by", ""),
                }
            )
    return found


def _deb822_entries(text: str) -> list[dict[str, str]]:
    found = []
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for block in re.split(r"\n\s*\n", "\n".join(lines)):
        entry: dict[str, str] = {}
        key = ""
        for line in block.splitlines():
            if line[:1].isspace() and key:
                entry[key] += "\n" + line.strip()
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                entry[key] = value.strip()
        if entry.get("enabled", "yes").lower() not in {"no", "false", "0"}:
            found.append(entry)
    return found


def _debian_stanza(entry: dict[str, str], codename: str, suite: str) -> str | None:
    """Return an entry's stanza for the wanted release, None if it is not of the Debian archive."""
    uris = [
        uri
        for uri in entry.get("uris", "").split()
        if {"debian", "debian-security"} & set(uri.rstrip("/").split("/"))
    ]
    wanted = {
        f"{base}{pocket}": f"{suite}{pocket}"
        for base in (codename, "stable")
        for pocket in ("", "-updates", "-security")
        if base
    }
    suites = [wanted[each] for each in entry.get("suites", "").split() if each in wanted]
    signed_by = entry.get("signed-by", "")
    is_debian = (
        "deb" in entry.get("types", "").split() and "main" in entry.get("components", "").split()
    )
    if not uris or not suites or not is_debian or (signed_by and "debian-archive" not in signed_by):
        return None
    lines = [
        "Types: deb",
        f"URIs: {' '.join(uris)}",
        f"Suites: {' '.join(dict.fromkeys(suites))}",
        "Components: main",
    ]
    if signed_by:
        lines.append("Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg")
    return "\n".join(lines) + "\n"


def ensure_image(images: Path, recipe: Recipe, report: Report) -> Path:
    """Return the image of a recipe, built if it is not there; two callers at once build it once.

    Raises:
        DeadlineError: The build did not end in time.
        RemoteCommandError: It failed.
    """
    image = images / recipe.name
    if image.is_dir():
        return image
    images.mkdir(mode=0o755, parents=True, exist_ok=True)
    with hold(images / "build.lock", f"building {recipe.name}", wait=report):
        if image.is_dir():
            return image
        for old in images.glob("building-*"):
            mounts.unmount_below(old)
            mounts.remove_tree(old, within=images)
        report(f"image {recipe.suite}: building it, once; this takes about a minute")
        started = time.monotonic()
        work = images / f"building-{os.getpid()}"
        work.mkdir(mode=0o700)
        try:
            sources_file = work / "debian.sources" if recipe.sources else None
            if sources_file:
                sources_file.write_text(recipe.sources)
            root = work / "root"
            host.run(
                build_argv(recipe, root, sources_file),
                f"building the image {recipe.name}",
                timeout_s=BUILD_TIMEOUT_S,
            )
            root.chmod(0o755)
            root.rename(image)
        except LabctlError as error:
            error.do = (
                error.do
                or "look at apt's sources and the network of this host, then labctl up again"
            )
            raise
        finally:
            mounts.unmount_below(work)
            mounts.remove_tree(work, within=images)
        report(f"image {recipe.suite}: built in {time.monotonic() - started:.0f} s")
        _prune(images, keep=recipe)
    return image


def _prune(images: Path, *, keep: Recipe) -> None:
    """Remove images of older recipes for the same release, those apart that a lab's machines are cloned from."""
    named = {
        text
        for file in (images.parent / "labs").glob("*/state.json")
        for text in re.findall(r"[a-z]+-[0-9a-f]{12}", file.read_text(errors="replace"))
    }
    mounted = ",".join(mount.options for mount in mounts.mounts() if mount.fstype == "overlay")
    for image in images.glob(f"{keep.suite}-*"):
        used = image.name == keep.name or image.name in named or str(image) in mounted
        if is_image_name(image.name) and not used:
            mounts.remove_tree(image, within=images)
