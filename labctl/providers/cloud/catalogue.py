"""In what clouds differ, as data: defaults, their modules, which machines carry which GPUs, their words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from labctl.errors import ConfigError, UsageError
from labctl.providers.cloud.model import CLOUDS

DEFAULT_GPU = ("T4", 1)
DEFAULT_NODES = 2
DEFAULT_SUBNET = "10.132.0.0/24"
DEFAULT_MAX_HOURS = 8.0
DEFAULT_IDLE_MINUTES = 60.0
GPU_DISK_GB = (
    60  # the system 3, TensorFlow with its CUDA libraries 8, the driver 2, and room for records
)
CPU_DISK_GB = 20


@dataclass(frozen=True, slots=True)
class Hint:
    """What an error of a cloud means.

    Attributes:
        words: Regular expression for the cloud's own words.
        expected: What is expected.
        do: What helps.
        local: It is about this machine's set-up, not the cloud's answer.
    """

    words: str
    expected: str
    do: str
    local: bool = False


@dataclass(frozen=True, slots=True)
class Cloud:
    """One cloud.

    Attributes:
        name: `aws` or `gcp`.
        modules: Python modules that its Ansible modules import.
        extra: labctl's extra that installs them.
        secrets: Environment variables whose values are never shown.
        sign_in: How a user gets credentials.
        region: Used where neither options nor environment name one.
        region_variables: Environment variables that name the region, in order.
        zones: Last part of a region's zone that is taken by default, where it is not `a`.
        image: Image by default.
        image_owner: Whose it is.
        users: (Part of an image's name, its login user); the first that fits counts.
        machines: Machine type to (GPU type, count); ("", 0) for none. The first that fits is taken.
        attaches: Prefix of machine types that GPUs are attached to and billed beside; "" for none.
        hints: What its errors mean.
    """

    name: str
    modules: tuple[str, ...]
    extra: str
    secrets: tuple[str, ...]
    sign_in: str
    region: str
    region_variables: tuple[str, ...]
    zones: Mapping[str, str]
    image: str
    image_owner: str
    users: tuple[tuple[str, str], ...]
    machines: Mapping[str, tuple[str, int]]
    attaches: str
    hints: tuple[Hint, ...]

    def default_zone(self, region: str) -> str:
        """Return the zone of a region that is taken where none is named."""
        dash = "-" if self.name == "gcp" else ""
        return f"{region}{dash}{self.zones.get(region, 'a')}"

    def region_of(self, zone: str) -> str:
        """Return the region of a zone: its name without the last letter."""
        return zone[:-1].removesuffix("-") if self.name == "gcp" else zone.rstrip("abcdefghi")

    def user_of(self, image: str) -> str:
        """Return the login user of an image."""
        return next((user for part, user in self.users if part in image.lower()), self.users[-1][1])

    def gpu_of(self, machine_type: str) -> tuple[str, int] | None:
        """Return the GPUs that a machine type has of itself, None for a type that is not listed."""
        return self.machines.get(machine_type)

    def machine_for(self, gpu_type: str, gpu_count: int) -> str:
        """Return the machine type for a number of GPUs.

        Raises:
            ConfigError: None is listed.
        """
        for name, gpu in self.machines.items():
            if gpu == (gpu_type, gpu_count):
                return name
        offered = sorted({f"{kind}:{count}" for kind, count in self.machines.values() if kind})
        raise ConfigError(
            f"labctl knows no machine type of {self.name} with {gpu_count} x {gpu_type}",
            expected=f"one of {', '.join(offered)}",
            do="--gpu TYPE:N of these, or name the machine type with --machine-type",
        )


_AWS = Cloud(
    name="aws",
    modules=("boto3", "botocore"),
    extra="aws",
    secrets=("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECRET_KEY", "EC2_SECRET_KEY"),
    sign_in="aws configure, aws sso login, or set AWS_PROFILE",
    region="us-east-1",
    region_variables=("AWS_REGION", "AWS_DEFAULT_REGION"),
    zones={},
    image="debian-12-amd64-*",
    image_owner="136693071363",
    users=(
        ("ubuntu", "ubuntu"),
        ("debian", "admin"),
        ("amzn", "ec2-user"),
        ("", "admin"),
    ),
    machines={
        "m6i.large": ("", 0),
        "g4dn.xlarge": ("T4", 1),
        "g4dn.2xlarge": ("T4", 1),
        "g4dn.12xlarge": ("T4", 4),
        "g4dn.metal": ("T4", 8),
        "g5.xlarge": ("A10G", 1),
        "g5.2xlarge": ("A10G", 1),
        "g5.12xlarge": ("A10G", 4),
        "g5.48xlarge": ("A10G", 8),
        "g6.xlarge": ("L4", 1),
        "g6.2xlarge": ("L4", 1),
        "g6.12xlarge": ("L4", 4),
        "g6.48xlarge": ("L4", 8),
        "g6e.xlarge": ("L40S", 1),
        "g6e.12xlarge": ("L40S", 4),
        "p3.2xlarge": ("V100", 1),
        "p3.8xlarge": ("V100", 4),
        "p3.16xlarge": ("V100", 8),
        "p4d.24xlarge": ("A100", 8),
        "p5.4xlarge": ("H100", 1),
        "p5.48xlarge": ("H100", 8),
    },
    attaches="",
    hints=(
        Hint(
            r"ExpiredToken|RequestExpired|token.*expired",
            "credentials that are still valid",
            "aws sso login, or renew the session, then the same command again",
            local=True,
        ),
        Hint(
            r"InvalidClientTokenId|AuthFailure|SignatureDoesNotMatch|Unable to locate credentials|NoCredentials",
            "credentials of an AWS account",
            "aws configure, aws sso login, or set AWS_PROFILE",
            local=True,
        ),
        Hint(
            r"UnauthorizedOperation|AccessDenied",
            "rights of EC2 for this user",
            "let an administrator grant them: docs/cloud.md has the list",
            local=True,
        ),
        Hint(
            r"VcpuLimitExceeded|MaxSpotInstanceCountExceeded|InstanceLimitExceeded|LimitExceeded",
            "a quota of vCPUs of this family that holds the lab",
            "ask for more under Service Quotas, EC2; or another --region, fewer --nodes",
        ),
        Hint(
            r"InsufficientInstanceCapacity|SpotMaxPriceTooLow|capacity-not-available",
            "machines of this type that are free in the zone",
            "labctl up --zone with another zone, another --machine-type, or later",
        ),
        Hint(
            r"RequestLimitExceeded|Throttling",
            "an API that answers",
            "wait a minute, then the same command again: it goes on where it stopped",
        ),
    ),
)

_GCP = Cloud(
    name="gcp",
    modules=("google.auth", "requests"),
    extra="gcp",
    secrets=("GCP_ACCESS_TOKEN", "GCP_SERVICE_ACCOUNT_CONTENTS"),
    sign_in="gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
    region="us-central1",
    region_variables=("GCP_REGION", "CLOUDSDK_COMPUTE_REGION"),
    zones={"us-east1": "b", "europe-west1": "b"},
    image="ubuntu-2404-lts-amd64",
    image_owner="ubuntu-os-cloud",
    users=(("debian", "debian"), ("", "ubuntu")),
    machines={
        "e2-standard-2": ("", 0),
        "n1-standard-4": ("T4", 1),
        "n1-standard-8": ("T4", 2),
        "n1-standard-16": ("T4", 4),
        "g2-standard-4": ("L4", 1),
        "g2-standard-8": ("L4", 1),
        "g2-standard-24": ("L4", 2),
        "g2-standard-48": ("L4", 4),
        "g2-standard-96": ("L4", 8),
        "a2-highgpu-1g": ("A100", 1),
        "a2-highgpu-2g": ("A100", 2),
        "a2-highgpu-4g": ("A100", 4),
        "a2-highgpu-8g": ("A100", 8),
        "a3-highgpu-1g": ("H100", 1),
        "a3-highgpu-2g": ("H100", 2),
        "a3-highgpu-4g": ("H100", 4),
        "a3-highgpu-8g": ("H100", 8),
    },
    attaches="n1-",
    hints=(
        Hint(
            r"invalid_grant|Reauthentication|invalid authentication credentials|\b401\b|token.*expired",
            "credentials that are still valid",
            "gcloud auth application-default login, then the same command again",
            local=True,
        ),
        Hint(
            r"DefaultCredentialsError|default credentials were not found",
            "application default credentials",
            "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
            local=True,
        ),
        Hint(
            r"PERMISSION_DENIED|Required '[\w.]+' permission|accessNotConfigured|has not been used in project",
            "the Compute Engine API enabled, and the role Compute Admin in the project",
            "gcloud services enable compute.googleapis.com, or ask the project's owner",
            local=True,
        ),
        Hint(
            r"QUOTA_EXCEEDED|quotaExceeded|Quota '\w+' exceeded",
            "a quota that holds the lab",
            "ask for more under IAM & Admin, Quotas (GPUS_ALL_REGIONS too); or another --region, fewer --nodes",
        ),
        Hint(
            r"ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources|STOCKOUT",
            "machines of this type that are free in the zone",
            "labctl up --zone with another zone, another --machine-type, or later",
        ),
        Hint(
            r"rateLimitExceeded|RATE_LIMIT_EXCEEDED",
            "an API that answers",
            "wait a minute, then the same command again: it goes on where it stopped",
        ),
    ),
)

_CLOUDS = {"aws": _AWS, "gcp": _GCP}


def cloud(name: str) -> Cloud:
    """Return a cloud by its name, one of `CLOUDS`."""
    assert name in CLOUDS  # noqa: S101 the caller has looked
    return _CLOUDS[name]


def parse_gpu(text: str) -> tuple[str, int]:
    """Return (GPU type, count) of `T4`, `T4:2` or `none`.

    Raises:
        UsageError: It is none of these.
    """
    if text.lower() == "none":
        return "", 0
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9-]{0,30})(?::([0-9]{1,2}))?", text)
    count = int(match[2] or 1) if match else 0
    if match is None or not 1 <= count <= 16:
        raise UsageError(
            f"--gpu {text}", expected="TYPE, TYPE:N with N from 1 to 16, or none", do="--gpu T4:1"
        )
    return match[1].upper(), count
