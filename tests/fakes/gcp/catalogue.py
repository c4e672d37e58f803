"""What the stand-in's Compute Engine offers: places, machine types, accelerators, images and quotas.

The figures of machine types (CPUs, memory, GPUs that they carry) are those of the public documentation of machine
families; the quotas are those of a project that was granted a few GPUs.
"""

from __future__ import annotations

from typing import Any, Final

ZONES: Final = {
    "us-central1": ("us-central1-a", "us-central1-b"),
    "europe-west4": ("europe-west4-a", "europe-west4-b"),
}

# Name: CPUs, memory in MB, (accelerator, count) that it carries.
MACHINE_TYPES: Final[dict[str, tuple[int, int, tuple[str, int] | None]]] = {
    "e2-small": (2, 2048, None),
    "e2-standard-4": (4, 16384, None),
    "n1-standard-4": (4, 15360, None),
    "n1-standard-8": (8, 30720, None),
    "g2-standard-8": (8, 32768, ("nvidia-l4", 1)),
    "a2-highgpu-1g": (12, 87040, ("nvidia-tesla-a100", 1)),
    "a3-highgpu-8g": (208, 1916928, ("nvidia-h100-80gb", 8)),
}

# Name: the most of them on one machine.
ACCELERATORS: Final = {
    "nvidia-tesla-t4": 4,
    "nvidia-l4": 8,
    "nvidia-tesla-a100": 16,
    "nvidia-h100-80gb": 8,
}

# A zone that lacks an accelerator that its region has elsewhere.
NOT_OFFERED: Final = {"europe-west4-b": frozenset({"nvidia-tesla-t4", "g2-standard-8"})}

# Project, family, name, status.
IMAGES: Final = (
    ("ubuntu-os-cloud", "ubuntu-2404-lts-amd64", "ubuntu-2404-noble-amd64-v20261028", "READY"),
    ("ubuntu-os-cloud", "ubuntu-2204-lts", "ubuntu-2204-jammy-v20261020", "READY"),
    ("debian-cloud", "debian-12", "debian-12-bookworm-v20261111", "READY"),
)

REGION_QUOTAS: Final[dict[str, float]] = {
    "CPUS": 72,
    "PREEMPTIBLE_CPUS": 72,
    "A2_CPUS": 24,
    "DISKS_TOTAL_GB": 4096,
    "SSD_TOTAL_GB": 2048,
    "IN_USE_ADDRESSES": 8,
    "INSTANCES": 100,
    "NVIDIA_T4_GPUS": 4,
    "PREEMPTIBLE_NVIDIA_T4_GPUS": 4,
    "NVIDIA_L4_GPUS": 2,
    "PREEMPTIBLE_NVIDIA_L4_GPUS": 2,
    "NVIDIA_A100_GPUS": 0,
    "PREEMPTIBLE_NVIDIA_A100_GPUS": 0,
}

PROJECT_QUOTAS: Final[dict[str, float]] = {"GPUS_ALL_REGIONS": 4, "NETWORKS": 5, "FIREWALLS": 100}

# What one accelerator or machine family counts against; others count as CPUS.
GPU_METRICS: Final = {
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
    "nvidia-l4": "NVIDIA_L4_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
}


def offered(zone: str, name: str) -> bool:
    """Say whether a zone has a machine type or accelerator."""
    known = name in MACHINE_TYPES or name in ACCELERATORS
    return known and name not in NOT_OFFERED.get(zone, frozenset())


def machine_type(base: str, zone: str, name: str) -> dict[str, Any]:
    """Return a MachineType resource."""
    cpus, memory_mb, carried = MACHINE_TYPES[name]
    made: dict[str, Any] = {
        "kind": "compute#machineType",
        "id": str(800000 + list(MACHINE_TYPES).index(name)),
        "name": name,
        "description": f"{cpus} vCPUs, {memory_mb / 1024:g} GB RAM",
        "guestCpus": cpus,
        "memoryMb": memory_mb,
        "isSharedCpu": False,
        "architecture": "X86_64",
        "zone": zone,
        "selfLink": f"{base}/zones/{zone}/machineTypes/{name}",
    }
    if carried is not None:
        made["accelerators"] = [
            {"guestAcceleratorType": carried[0], "guestAcceleratorCount": carried[1]}
        ]
    return made


def accelerator(base: str, zone: str, name: str) -> dict[str, Any]:
    """Return an AcceleratorType resource."""
    return {
        "kind": "compute#acceleratorType",
        "id": str(10000 + list(ACCELERATORS).index(name)),
        "name": name,
        "description": name.replace("-", " "),
        "maximumCardsPerInstance": ACCELERATORS[name],
        "zone": f"{base}/zones/{zone}",
        "selfLink": f"{base}/zones/{zone}/acceleratorTypes/{name}",
    }


def images(host: str) -> list[dict[str, Any]]:
    """Return the Image resources of the public projects."""
    return [
        {
            "kind": "compute#image",
            "id": str(7_000_000 + number),
            "name": name,
            "family": family,
            "description": name,
            "status": status,
            "architecture": "X86_64",
            "diskSizeGb": "10",
            "sourceType": "RAW",
            "creationTimestamp": "2026-11-11T08:00:00.000-08:00",
            "selfLink": f"{host}/projects/{project}/global/images/{name}",
        }
        for number, (project, family, name, status) in enumerate(IMAGES)
    ]
