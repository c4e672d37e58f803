"""What the commands on machines decide before and after a provider does the work."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from labctl.errors import ConfigError, RefusedError, UsageError
from labctl.lab.home import Home, check_lab_name
from labctl.lab.model import LOOPBACK
from labctl.providers import inventory
from labctl.providers.base import MachineOptions, Provider, Receipt
from labctl.providers.cloud import books
from labctl.providers.cloud.model import CLOUDS, CloudOptions
from labctl.providers.image import parse_release
from labctl.providers.rehearsal import RehearsalProvider
from labctl.providers.state import MAX_NODES

if TYPE_CHECKING:
    from labctl.providers.cloud.provider import CloudProvider

DEFAULT_LAB = "rehearsal"
PROVIDERS = (RehearsalProvider.name, *CLOUDS)
REHEARSAL_OPTIONS = frozenset({"--release", "--memory", "--cpus-per-node"})
CLOUD_OPTIONS = frozenset(
    {
        "--project",
        "--region",
        "--zone",
        "--machine-type",
        "--gpu",
        "--image",
        "--disk",
        "--spot/--no-spot",
        "--network",
        "--ssh-by",
        "--owner",
        "--admin-cidr",
        "--max-hours",
        "--idle-minutes",
        "--yes",
        "--dry-run",
        "--reuse",
    }
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_MIN_MEMORY = 256 * 2**20


def owner_of(home: Home, lab: str) -> str | None:
    """Return the name of the provider that has made, or may have made, something of a lab; None for none."""
    cloud = books.cloud_of(home, lab)
    if cloud is not None:
        return cloud
    return RehearsalProvider.name if RehearsalProvider(home).owns(lab) else None


def provider_to_make(home: Home, lab: str, name: str | None) -> str:
    """Return the provider that `up` means: the named one, the lab's own, else rehearsal.

    Raises:
        ConfigError: There is none of that name, or the lab is another's.
    """
    owner = owner_of(home, lab)
    if name is None:
        return owner or RehearsalProvider.name
    if name not in PROVIDERS:
        raise ConfigError(
            f"--provider {name}: unknown",
            expected=f"one of {', '.join(PROVIDERS)}",
            do="choose one, or make the machines yourself and copy inventory/example",
        )
    if owner is not None and owner != name:
        raise ConfigError(
            f"lab {lab} has machines of {owner}, --provider says {name}",
            expected="one provider for the life of a lab",
            do=f"labctl up --provider {name} --lab NAME with another name",
        )
    return name


def rehearsal(home: Home) -> RehearsalProvider:
    """Return the provider of machines on this host."""
    return RehearsalProvider(home)


def in_cloud(options: MachineOptions, asked: CloudOptions, *, reuse: bool) -> MachineOptions:
    """Return the options of `up` for a cloud."""
    return replace(options, cloud=asked, reuse=reuse)


def cloud_to_ask(home: Home, lab: str, provider: str | None, where: CloudOptions) -> str | None:
    """Return the cloud that `down` goes to: the lab's own, or the named one for a lab that is not known here.

    Raises:
        ConfigError: The lab is another provider's.
        UsageError: There is no cloud of that name, or none to which a region or project belongs.
    """
    own = owner_of(home, lab)
    if provider is None:
        if where != CloudOptions() and own not in CLOUDS:
            raise UsageError(
                "--region and --project go with --provider", do="--provider aws or --provider gcp"
            )
        return own if own in CLOUDS else None
    if provider not in CLOUDS:
        raise UsageError(f"--provider {provider}", expected=" or ".join(CLOUDS))
    provider_to_make(home, lab, provider)
    return provider


def cloud(home: Home, name: str) -> CloudProvider:
    """Return the provider of a cloud, `aws` or `gcp`."""
    from labctl.providers.cloud.provider import CloudProvider

    return CloudProvider(home, name)


def cloud_provider(home: Home, lab: str, command: str) -> CloudProvider:
    """Return the provider of a lab in a cloud, for a command that only these have.

    Raises:
        ConfigError: It is no lab in a cloud.
    """
    name = books.cloud_of(home, lab)
    if name is None:
        raise ConfigError(
            f"lab {lab} is in no cloud: labctl {command} has nothing to do there",
            expected=f"a lab of labctl up --provider {' or '.join(CLOUDS)}",
            do="labctl labs lists the labs; labctl up and down are for rehearsal machines",
        )
    return cloud(home, name)


def lab_to_make(home: Home, lab: str | None, provider: str | None = None) -> str:
    """Return the lab that `up` means: the named one, `LABCTL_LAB`, the active one, else one named as the provider.

    An active lab of another provider than the one asked for is not meant.

    Raises:
        ConfigError: It is not a lab that can have machines.
    """
    active = home.active()
    if active is not None and provider in CLOUDS and owner_of(home, active) != provider:
        active = None
    default = provider if provider in CLOUDS else DEFAULT_LAB
    name = check_lab_name(lab or os.environ.get("LABCTL_LAB") or active or str(default))
    if name == LOOPBACK:
        raise ConfigError(
            f"lab {LOOPBACK} is two processes on this machine and has no machines to make",
            expected="another name",
            do=f"labctl run --lab {LOOPBACK} right away, or labctl up --lab {DEFAULT_LAB}",
        )
    return name


def lab_to_remove(home: Home, lab: str | None) -> str:
    """Return the lab that `down` means: the named one, `LABCTL_LAB`, the active one, the only half-made one.

    Any other complete lab but `rehearsal` is taken only by its name: a second `labctl down` takes no other lab.

    Raises:
        ConfigError: It could be one of several.
    """
    name = lab or os.environ.get("LABCTL_LAB") or home.active()
    if name is not None:
        return check_lab_name(name)
    local = RehearsalProvider(home)
    found = {*local.half_made(), *(set(books.labs_of(home)) - set(home.labs()))}
    if local.owns(DEFAULT_LAB):
        found.add(DEFAULT_LAB)
    if len(found) > 1:
        raise ConfigError(
            f"no lab is active, and labctl down could mean {' or '.join(sorted(found))}",
            expected="the lab's name",
            do="labctl down --lab NAME",
        )
    return found.pop() if found else DEFAULT_LAB


def provider_of(home: Home, lab: str) -> Provider:
    """Return the provider that may remove a lab; one that never was is the rehearsal provider's to find absent.

    Raises:
        ConfigError: Its machines were not made by labctl.
    """
    name = books.cloud_of(home, lab)
    if name is not None:
        return cloud(home, name)
    local = RehearsalProvider(home)
    folder = home.inventory(lab)
    if not local.owns(lab) and inventory.foreign(folder):
        raise ConfigError(
            f"lab {lab}: labctl did not make its machines and does not remove them",
            expected="a lab of labctl up",
            do=f"ansible-playbook -i {folder} teardown.yml takes from them what provision.yml put there",
        )
    return local


def refuse_open_runs(home: Home, lab: str) -> None:
    """Check that no run of a lab may still go on.

    Raises:
        RefusedError: One may.
    """
    from labctl.runs.store import RunStore

    entries = RunStore(home.local_dir(lab)).entries()
    going = [each.run_id for each in entries if each.record is not None and each.record.open]
    if going:
        raise RefusedError(
            f"run {', '.join(going)} may still go on",
            expected="runs that have ended and are collected",
            do=f"labctl attach {going[0]}, or labctl cancel {going[0]}; --force ends it with the machines",
        )


def note_extension(home: Home, lab: str, deadlines: Sequence[float | None]) -> tuple[str, ...]:
    """Keep the latest deadline that nodes told after `extend`, where their lab is in a cloud.

    Returns:
        What the user should know.
    """
    name = books.cloud_of(home, lab)
    told = [each for each in deadlines if each is not None]
    return cloud(home, name).extended(lab, max(told)) if name is not None and told else ()


def refuse_others(provider: str, given: Mapping[str, object]) -> None:
    """Check that options fit the provider; each of the others' is named.

    Args:
        provider: The provider.
        given: Every option that only some providers have, with its value; None or False where it was not given.

    Raises:
        UsageError: One does not fit.
    """
    fitting = REHEARSAL_OPTIONS if provider == RehearsalProvider.name else CLOUD_OPTIONS
    wrong = [
        option
        for option, value in given.items()
        if value is not None and value is not False and value != [] and option not in fitting
    ]
    if provider == "aws" and given.get("--project"):
        wrong.append("--project")
    if wrong:
        raise UsageError(
            f"{', '.join(wrong)}: not of provider {provider}",
            expected=f"of its own: {', '.join(sorted(fitting - ({'--project'} if provider == 'aws' else set())))}",
            do="leave it out, or choose another --provider",
        )


def machine_options(
    nodes: int | None, release: str | None, memory: str | None, cpus_per_node: int | None
) -> MachineOptions:
    """Return the options of `up`, checked.

    Raises:
        ConfigError: No such release.
        UsageError: A figure is out of its range.
    """
    if nodes is not None and not 1 <= nodes <= MAX_NODES:
        raise UsageError(f"--nodes {nodes}", expected=f"1 to {MAX_NODES}", do="labctl up --nodes 2")
    if cpus_per_node is not None and cpus_per_node < 1:
        raise UsageError(f"--cpus-per-node {cpus_per_node}", expected="1 or more")
    return MachineOptions(
        nodes=nodes,
        release=None if release is None else parse_release(release),
        memory_bytes=None if memory is None else parse_size(memory),
        cpus_per_node=cpus_per_node,
    )


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `4G` or `1500M`.

    Raises:
        UsageError: It is not a size, or too small for a machine.
    """
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if size < _MIN_MEMORY:
        raise UsageError(
            f"--memory {text}", expected="a size of 256M or more", do="labctl up --memory 4G"
        )
    return size


def receipt_lines(lab: str, receipt: Receipt, records: str = "") -> list[str]:
    """Return the receipt as text.

    Args:
        lab: The lab.
        receipt: What was done.
        records: What became of its runs' files, "" where it had none.
    """
    head = [f"records    {records}"] if records else []
    if not (receipt.removed or receipt.left or receipt.forgotten or receipt.machines):
        where = f" (asked {receipt.asked})" if receipt.asked else ""
        lines = [*head, f"lab {lab}: nothing is there, nothing was removed{where}"]
        if not receipt.asked:
            lines.append(
                "no cloud was asked: if it was in one and its files are lost, "
                f"labctl down --lab {lab} --provider aws --region REGION (gcp: and --project)"
            )
        return lines
    lines = head + [f"removed    {each}" for each in receipt.removed]
    lines += [f"left       {each}" for each in receipt.left]
    lines += [f"forgotten  {each}" for each in receipt.forgotten]
    if not (receipt.left or receipt.forgotten):
        label = f" with label labctl-lab={lab} (asked {receipt.asked})" if receipt.asked else ""
        lines.append(f"left       nothing{label}")
    for each in receipt.machines:
        off = f", was off {each.stopped_h:.2f} h" if each.stopped_h else ""
        lines.append(
            f"machine    {each.node} {each.machine_type} ran {each.running_h:.2f} h{off}: {_usd(each.usd)}"
        )
    return [*lines, f"cost       {_cost_text(receipt)}"]


def _cost_text(receipt: Receipt) -> str:
    if receipt.hours is None:
        return _usd(receipt.cost)
    text = f"{receipt.hours:.2f} h, {_usd(receipt.cost)}"
    if receipt.first_step_h is not None:
        return f"{text}, of which {receipt.first_step_h:.2f} h before the first step"
    return f"{text}; no run came to its first step"


def _usd(value: float | None) -> str:
    return "price unknown" if value is None else f"{value:.2f} USD"
