"""The stand-in's state: resources, and operations that take a while."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fakes.gcp import catalogue, rules, schema
from tests.fakes.gcp.words import (
    HOST,
    SCHEMAS,
    ApiError,
    Json,
    Key,
    invalid,
    is_spot,
    last_part,
    links_of,
    needed_quota,
    not_found,
    path_of,
    place_of,
    quota_list,
    stamp,
)

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")


@dataclass
class Operation:
    """Work that the API accepted.

    Attributes:
        answer: The Operation resource, its status apart.
        scope: Where it is asked for.
        begun_s: When it was accepted, monotonic.
        duration_s: How long it takes; None for ever.
        finish: What happens at its end.
        failure: (code, message) to end with instead.
    """

    answer: Json
    scope: str
    begun_s: float
    duration_s: float | None
    finish: Callable[[], None]
    failure: tuple[str, str] | None = None
    finished: bool = False


@dataclass
class Cloud:
    """One project of Compute Engine.

    Attributes:
        project: Its id.
        operation_s: How long an operation takes.
        region_quotas: Limits of each region, by metric.
        project_quotas: Limits of the project, by metric.
        resources: What is there.
        operations: By name.
    """

    project: str
    operation_s: float = 0.2
    region_quotas: dict[str, float] = field(default_factory=lambda: dict(catalogue.REGION_QUOTAS))
    project_quotas: dict[str, float] = field(default_factory=lambda: dict(catalogue.PROJECT_QUOTAS))
    resources: dict[Key, Json] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    counter: int = 0

    @property
    def base(self) -> str:
        """The project's link."""
        return f"{HOST}/projects/{self.project}"

    def get(self, collection: str, scope: str, name: str) -> Json:
        """Return one resource.

        Raises:
            ApiError: It is not there.
        """
        self.settle()
        made = self.resources.get((collection, scope, name))
        if made is None:
            raise not_found(f"projects/{self.project}/{scope}/{collection}/{name}")
        return made

    def listed(self, collection: str) -> list[tuple[str, Json]]:
        """Return (scope, resource) of all resources of a collection."""
        self.settle()
        return [
            (key[1], each) for key, each in sorted(self.resources.items()) if key[0] == collection
        ]

    def insert(self, collection: str, scope: str, body: Json) -> Operation:
        """Begin to make a resource.

        Raises:
            ApiError: The API would refuse it.
        """
        self.settle()
        faults = schema.faults(SCHEMAS[collection], body)
        if faults:
            raise ApiError(400, "badRequest", f"Invalid JSON payload received. {faults[0]}")
        name = str(body.get("name", ""))
        if not _NAME.fullmatch(name):
            raise invalid("name", name, f"Must be a match of regex '{_NAME.pattern}'")
        for key, value in (body.get("labels") or {}).items():
            if not (_LABEL.fullmatch(key) and _LABEL.fullmatch(value)):
                raise invalid("labels", f"{key}={value}", "Label keys and values are lower case")
        if (collection, scope, name) in self.resources:
            path = f"projects/{self.project}/{scope}/{collection}/{name}"
            raise ApiError(409, "alreadyExists", f"The resource '{path}' already exists")
        build = {
            "instances": rules.instance,
            "networks": rules.network,
            "subnetworks": rules.subnetwork,
            "firewalls": rules.firewall,
        }.get(collection, rules.plain)
        key = (collection, scope, name)
        self.put(key, build(self, key, body))
        started = collection == "instances"
        return self.begin("insert", key, (lambda: self._running(key)) if started else _nothing)

    def put(self, key: Key, made: Json) -> None:
        """Note a resource, with what the API itself adds to it."""
        self.resources[key] = self._stamped(key, made)

    def delete(self, collection: str, scope: str, name: str) -> Operation:
        """Begin to remove a resource.

        Raises:
            ApiError: It is not there, or something needs it.
        """
        made = self.get(collection, scope, name)
        link = made["selfLink"]
        for (other, _, _), each in self.resources.items():
            if other != "instances" and collection == "disks":
                continue
            if link != each["selfLink"] and link in links_of(each):
                raise ApiError(
                    400,
                    "resourceInUseByAnotherResource",
                    f"The {collection[:-1]} resource '{path_of(link)}' is already being used by"
                    f" '{path_of(each['selfLink'])}'",
                )
        key = (collection, scope, name)
        if collection == "instances":
            made["status"] = "STOPPING"
        return self.begin("delete", key, lambda: self._remove(key))

    def verb(self, scope: str, name: str, verb: str, body: Json) -> Operation:
        """Begin to start or stop an instance, or to change its labels.

        Raises:
            ApiError: It is not there, or cannot be started as it is.
        """
        made = self.get("instances", scope, name)
        key = ("instances", scope, name)
        if verb == "stop":
            made["status"] = "STOPPING"
            return self.begin("stop", key, lambda: self._stopped(key))
        if verb == "start":
            if made["status"] not in {"TERMINATED", "RUNNING"}:
                raise ApiError(
                    400,
                    "resourceNotReady",
                    f"The resource '{path_of(made['selfLink'])}' is not ready",
                )
            made["status"] = "STAGING"
            return self.begin("start", key, lambda: self._running(key))
        if verb == "setLabels":
            if body.get("labelFingerprint") != made["labelFingerprint"]:
                raise ApiError(
                    412,
                    "conditionNotMet",
                    "Labels fingerprint either invalid or resource labels have changed",
                )
            return self.begin(
                "setLabels", key, lambda: made.update(labels=body.get("labels") or {})
            )
        raise not_found(f"{path_of(made['selfLink'])}/{verb}")

    def patch(self, collection: str, scope: str, name: str, body: Json) -> Operation:
        """Begin to change a resource's fields.

        Raises:
            ApiError: It is not there, or the fields are not its.
        """
        made = self.get(collection, scope, name)
        faults = schema.faults(SCHEMAS[collection], body)
        if faults:
            raise ApiError(400, "badRequest", f"Invalid JSON payload received. {faults[0]}")
        return self.begin("patch", (collection, scope, name), lambda: made.update(body))

    def power_off(self, name: str) -> None:
        """Let an instance's own system power it off."""
        for key in list(self.resources):
            if key[0] == "instances" and key[2] == name:
                self._stopped(key)

    def begin(self, kind: str, key: Key, finish: Callable[[], None]) -> Operation:
        """Accept work on a resource."""
        _, scope, name = key
        target = self.resources[key]
        self.counter += 1
        title = f"operation-{self.counter:06d}-{kind}-{name}"[:63].rstrip("-")
        made = Operation(
            {
                "kind": "compute#operation",
                "id": str(9_000_000_000 + self.counter),
                "name": title,
                "operationType": kind,
                "targetLink": target["selfLink"],
                "targetId": target["id"],
                "user": "labctl@example.com",
                "insertTime": stamp(),
                "selfLink": f"{self.base}/{scope}/operations/{title}",
                **place_of(self.base, scope),
            },
            scope,
            time.monotonic(),
            self.operation_s,
            finish,
        )
        self.operations[title] = made
        return made

    def settle(self) -> None:
        """Finish the operations whose time has come."""
        for each in list(self.operations.values()):
            due = each.duration_s is not None and time.monotonic() - each.begun_s >= each.duration_s
            if due and not each.finished:
                each.finished = True
                if each.failure is None:
                    each.finish()
                elif each.answer["operationType"] == "insert":
                    self._forget(each.answer["targetLink"])

    def describe(self, operation: Operation) -> Json:
        """Return the Operation resource as it stands."""
        self.settle()
        if not operation.finished:
            running = time.monotonic() - operation.begun_s > self.operation_s / 4
            return {
                **operation.answer,
                "status": "RUNNING" if running else "PENDING",
                "progress": 0,
            }
        ended: Json = {**operation.answer, "status": "DONE", "progress": 100, "endTime": stamp()}
        if operation.failure is not None:
            code, message = operation.failure
            ended["error"] = {"errors": [{"code": code, "message": message}]}
            ended["httpErrorStatusCode"] = 403 if code == "QUOTA_EXCEEDED" else 503
            ended["httpErrorMessage"] = (
                "FORBIDDEN" if code == "QUOTA_EXCEEDED" else "SERVICE UNAVAILABLE"
            )
        return ended

    def region(self, name: str) -> Json:
        """Return a Region resource with its quotas and what is used of them."""
        if name not in catalogue.ZONES:
            raise not_found(f"projects/{self.project}/regions/{name}")
        used = self.used(name)
        return {
            "kind": "compute#region",
            "id": str(1000 + list(catalogue.ZONES).index(name)),
            "name": name,
            "status": "UP",
            "zones": [f"{self.base}/zones/{each}" for each in catalogue.ZONES[name]],
            "quotas": quota_list(self.region_quotas, used),
            "selfLink": f"{self.base}/regions/{name}",
        }

    def about(self) -> Json:
        """Return the Project resource."""
        used: dict[str, float] = {}
        for region in catalogue.ZONES:
            for metric, value in self.used(region).items():
                if metric.endswith("_GPUS"):
                    used["GPUS_ALL_REGIONS"] = used.get("GPUS_ALL_REGIONS", 0) + value
        for collection in ("networks", "firewalls"):
            used[collection.upper()] = len(self.listed(collection))
        return {
            "kind": "compute#project",
            "id": "123456789012",
            "name": self.project,
            "quotas": quota_list(self.project_quotas, used),
            "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": "cHJvamVjdA=="},
            "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
            "selfLink": self.base,
        }

    def _stamped(self, key: Key, made: Json) -> Json:
        collection, scope, name = key
        self.counter += 1
        common: Json = {
            "kind": f"compute#{collection[:-1] if collection != 'addresses' else 'address'}",
            "id": str(5_000_000_000 + self.counter),
            "creationTimestamp": stamp(),
            "selfLink": f"{self.base}/{scope}/{collection}/{name}",
            **place_of(self.base, scope),
        }
        if collection in {"instances", "disks", "addresses"}:
            common["labelFingerprint"] = f"bGFiZWw{self.counter:04d}="
        return {**made, **common}

    def used(self, region: str) -> dict[str, float]:
        """Return what is used of a region's quotas, by metric."""
        used: dict[str, float] = {}
        for scope, each in self.listed("instances"):
            if (
                scope.partition("/")[2].rsplit("-", 1)[0] != region
                or each["status"] == "TERMINATED"
            ):
                continue
            gpus = [
                (last_part(one["acceleratorType"]), int(one["acceleratorCount"]))
                for one in each.get("guestAccelerators", ())
            ]
            for metric, amount in needed_quota(
                last_part(each["machineType"]), gpus, preemptible=is_spot(each)
            ).items():
                used[metric] = used.get(metric, 0) + amount
        return used

    def _running(self, key: Key) -> None:
        made = self.resources.get(key)
        if made is not None:
            made.update(status="RUNNING", cpuPlatform="Intel Broadwell", lastStartTimestamp=stamp())
            self.counter += 1
            for each in made["networkInterfaces"][0].get("accessConfigs", ()):
                each["natIP"] = f"198.51.100.{self.counter % 250 + 1}"

    def _stopped(self, key: Key) -> None:
        made = self.resources.get(key)
        if made is not None:
            made.update(status="TERMINATED", lastStopTimestamp=stamp())
            for each in made["networkInterfaces"][0].get("accessConfigs", ()):
                each.pop("natIP", None)

    def _remove(self, key: Key) -> None:
        gone = self.resources.pop(key, None)
        if gone is None:
            return
        if key[0] == "instances":
            for each in gone["disks"]:
                disk = ("disks", key[1], last_part(each["source"]))
                if each["autoDelete"]:
                    self.resources.pop(disk, None)
                elif disk in self.resources:
                    self.resources[disk].pop("users", None)
        if key[0] == "subnetworks":
            network = self.resources.get(("networks", "global", last_part(gone["network"])))
            if network is not None:
                network["subnetworks"].remove(gone["selfLink"])

    def _forget(self, link: str) -> None:
        for key, each in list(self.resources.items()):
            if each["selfLink"] == link:
                self._remove(key)


def _nothing() -> None:
    """Do nothing at an operation's end."""
