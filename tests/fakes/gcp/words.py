"""Words that all of the stand-in shares: links, errors, and what a machine counts against a quota."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from tests.fakes.gcp import catalogue

HOST: Final = "https://www.googleapis.com/compute/v1"  # what the real API's own links begin with
SCHEMAS: Final = {
    "instances": "Instance",
    "disks": "Disk",
    "addresses": "Address",
    "networks": "Network",
    "subnetworks": "Subnetwork",
    "firewalls": "Firewall",
}

Key = tuple[str, str, str]  # collection, scope such as `zones/us-central1-a`, name
Json = dict[str, Any]


class ApiError(Exception):
    """An answer of the API that is an error.

    Attributes:
        status: HTTP status.
        reason: E.g. `notFound`.
        message: As the API says it.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message

    def body(self) -> Json:
        """Return the answer's JSON."""
        one = {"message": self.message, "domain": "global", "reason": self.reason}
        return {"error": {"code": self.status, "message": self.message, "errors": [one]}}


def not_found(path: str) -> ApiError:
    """Return the error for something that is not there."""
    return ApiError(404, "notFound", f"The resource '{path}' was not found")


def invalid(where: str, value: object, why: str) -> ApiError:
    """Return the error for a value that cannot be."""
    return ApiError(
        400, "invalid", f"Invalid value for field 'resource.{where}': '{value}'. {why}."
    )


def needed_quota(
    machine_type: str, gpus: list[tuple[str, int]], *, preemptible: bool
) -> dict[str, float]:
    """Return what a machine counts against its region's quotas, by metric."""
    cpus, _, carried = catalogue.MACHINE_TYPES[machine_type]
    metric = "A2_CPUS" if machine_type.startswith("a2-") else "CPUS"
    needed: dict[str, float] = {metric: cpus, "INSTANCES": 1}
    for gpu, count in [carried] if carried is not None else gpus:
        name = catalogue.GPU_METRICS.get(gpu)
        if name is not None:
            name = f"PREEMPTIBLE_{name}" if preemptible else name
            needed[name] = needed.get(name, 0) + count
    return needed


def is_spot(body: Json) -> bool:
    """Say whether an instance is one that the cloud may take away."""
    scheduling = body.get("scheduling") or {}
    return bool(scheduling.get("preemptible")) or scheduling.get("provisioningModel") == "SPOT"


def quota_list(limits: dict[str, float], used: dict[str, float]) -> list[Json]:
    """Return Quota resources of limits and what is used."""
    return [
        {"metric": each, "limit": limit, "usage": used.get(each, 0)}
        for each, limit in limits.items()
    ]


def place_of(base: str, scope: str) -> Json:
    """Return the field that says where a resource is: `zone` or `region`."""
    kind, _, name = scope.partition("/")
    return {kind[:-1]: f"{base}/{kind}/{name}"} if name else {}


def links_of(value: object) -> set[str]:
    """Return the links that a resource holds to what it needs."""
    if isinstance(value, dict):
        wanted = {k: v for k, v in value.items() if k not in {"subnetworks", "users", "selfLink"}}
        return {link for each in wanted.values() for link in links_of(each)}
    if isinstance(value, list):
        return {link for each in value for link in links_of(each)}
    return {value} if isinstance(value, str) and value.startswith(HOST) else set()


def path_of(link: str) -> str:
    """Return a link without its host."""
    return link.removeprefix(HOST + "/")


def last_part(link: object) -> str:
    """Return the name at the end of a link."""
    return str(link or "").rsplit("/", 1)[-1]


def stamp() -> str:
    """Return a time stamp as the API writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
