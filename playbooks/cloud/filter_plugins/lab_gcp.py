# ruff: noqa: INP001 a single file beside the playbooks, loaded by Ansible
"""What Compute Engine answered, turned into the words of `playbooks/cloud/README.md`.

Runs inside `ansible-playbook` on the control machine; standard library only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

# The words of an answer; the cloud's TERMINATED is a machine that is stopped and stays.
_STATES = {
    "PENDING": "pending",
    "PROVISIONING": "pending",
    "STAGING": "pending",
    "RUNNING": "running",
    "REPAIRING": "repairing",
    "PENDING_STOP": "stopping",
    "STOPPING": "stopping",
    "DEPROVISIONING": "stopping",
    "STOPPED": "stopped",
    "TERMINATED": "stopped",
    "SUSPENDING": "suspending",
    "SUSPENDED": "suspended",
}
_UNLABELLED = frozenset({"networks", "subnetworks", "firewalls"})

# (first word, pattern of reason and text, expected, do), the first that fits counts.
_FAILURES = (
    (
        "packages",
        r"install the (?:requests|google-auth) library|No module named",
        "google-auth and requests beside Ansible",
        "pip install 'labctl[gcp]', or make setup in a checkout",
    ),
    (
        "credentials",
        (
            r"authError|UNAUTHENTICATED|RefreshError|DefaultCredentialsError|invalid_grant|Reauthentication"
            r"|necessary fields need to refresh|default credentials were not found|access token must be supplied"
            r"|service_account_(?:file|contents)|Service Account|Unable to load PEM|Invalid Credentials|\bauth\b"
        ),
        "credentials that Google Cloud accepts for lab_cloud_project",
        (
            "gcloud auth application-default login, or point GCP_SERVICE_ACCOUNT_FILE at a key (0600), "
            "then run it again"
        ),
    ),
    (
        "throttled",
        r"rateLimitExceeded|userRateLimitExceeded|RATE_LIMIT|RESOURCE_EXHAUSTED|\b429\b",
        "Google Cloud to take the request after some tries",
        "wait a few minutes, then run it again: what is made has its labels and is found",
    ),
    (
        "quota",
        r"quotaExceeded|QUOTA_EXCEEDED|[Qq]uota '",
        "a quota of this project in this region that has room for the lab",
        "ask for more in the console's Quotas page, or use fewer or smaller machines",
    ),
    (
        "capacity",
        r"ZONE_RESOURCE_POOL_EXHAUSTED|RESOURCE_POOL_EXHAUSTED|stockout|does not have enough resources",
        "a zone that has such machines now",
        "another lab_cloud_zone or machine type, or try later",
    ),
    (
        "rights",
        r"accessNotConfigured|SERVICE_DISABLED|PERMISSION_DENIED|forbidden|Required '",
        "the Compute Engine API enabled in the project, and the right to do this (roles/compute.admin has it)",
        "gcloud services enable compute.googleapis.com, ask the project's owner, or use another account",
    ),
    (
        "image",
        r"images?/[^']*' was not found|sourceImage",
        "an image that exists and may be used",
        "correct lab_cloud_image and lab_cloud_image_owner",
    ),
    (
        "network",
        (
            r"networkIP|ipInUse|IP_IN_USE|ipCidrRange|IP range|resource\.(?:sub)?network|resourceInUse"
            r"|RESOURCE_IN_USE|already being used by"
        ),
        "a network and addresses that are free for the lab",
        "correct lab_cloud_network, lab_cloud_subnet_cidr or lab_cloud_tasks, or remove what else uses it",
    ),
    (
        "machine-type",
        r"machineType|guestAccelerators|acceleratorType|scheduling\.",
        "a machine type and GPUs that this zone offers together",
        "correct lab_cloud_machine_type, lab_cloud_gpu_type, lab_cloud_gpu_count or lab_cloud_zone",
    ),
    (
        "unreachable",
        (
            r"\btransport\b|[Tt]imed out|expected time frame|Max retries|Connection|has no attribute 'message'"
            r"|backendError|UNREACHABLE|\b50[0234]\b|\blate\b"
        ),
        "an answer of Google Cloud",
        "try again; if it stays, look at the network, a proxy and https://status.cloud.google.com",
    ),
    (
        "gcp",
        "",
        "Google Cloud to do it",
        "see the message; what is made stays and has its labels or name",
    ),
)


def lab_gcp_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels as the API takes them: small letters, digits, `_` and `-`, 63 characters at most."""
    return {
        str(key): re.sub(r"[^a-z0-9_-]", "-", str(value).lower())[:63]
        for key, value in labels.items()
    }


def _last(link: Any) -> str:
    return str(link or "").rsplit("/", 1)[-1]


def _unix_s(stamp: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(stamp)).timestamp()
    except ValueError:
        return None


def _resource(kind: str, thing: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        # A name may be another thing's tomorrow, and a thing's in another zone today.
        "id": str(thing.get("id") or thing["name"]),
        "name": str(thing["name"]),
        "node": str((thing.get("labels") or {}).get("labctl-node", "")),
        "state": str(thing.get("status") or "").lower(),
        "billable": False,
        "zone": _last(thing.get("zone")),
        "machine_type": "",
        "private_address": "",
        "public_address": "",
        "created_unix_s": _unix_s(thing.get("creationTimestamp")),
        "stopped_unix_s": None,
        **more,
    }


def _machine(each: Mapping[str, Any]) -> dict[str, Any]:
    state = _STATES.get(str(each.get("status")), str(each.get("status")).lower())
    interface = (each.get("networkInterfaces") or [{}])[0]
    access = (interface.get("accessConfigs") or [{}])[0]
    stopped = state in {"stopping", "stopped", "suspended"}
    return _resource(
        "machine",
        each,
        state=state,
        billable=state != "stopped",
        machine_type=_last(each.get("machineType")),
        private_address=str(interface.get("networkIP") or ""),
        public_address=str(access.get("natIP") or ""),
        stopped_unix_s=_unix_s(each.get("lastStopTimestamp")) if stopped else None,
    )


def lab_gcp_own(
    answers: Mapping[str, Mapping[str, Any]], labels: Mapping[str, str], name: str
) -> dict[str, list[Mapping[str, Any]]]:
    """Return what of some lists is a lab's: by its labels, or by its name where the cloud knows no label.

    The cloud is asked for everything, and what is the lab's is chosen here: a filter that the API takes in another
    way than meant would make a list empty, and an empty list is what a receipt rests on.

    Args:
        answers: Of lab_gcp_api, lists by the name of their collection.
        labels: The lab's, as the API has them.
        name: What the names of its networks, subnets and rules begin with.
    """
    wanted = {key: labels[key] for key in ("labctl-id", "labctl-lab")}

    def is_own(collection: str, thing: Mapping[str, Any]) -> bool:
        if collection in _UNLABELLED:
            return str(thing["name"]).startswith(f"{name}-")
        given = thing.get("labels") or {}
        return all(given.get(key) == value for key, value in wanted.items())

    return {
        collection: [each for each in answer["listed"] if is_own(collection, each)]
        for collection, answer in answers.items()
    }


def lab_gcp_resources(own: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return all that Compute Engine has of a lab, in the words of an answer.

    Args:
        own: Of lab_gcp_own: instances, disks, addresses, networks, subnetworks and firewalls.
    """
    resources = [_machine(each) for each in own["instances"]]
    resources += [_resource("disk", each, billable=True) for each in own["disks"]]
    resources += [
        _resource("address", each, billable=True, public_address=str(each.get("address") or ""))
        for each in own["addresses"]
    ]
    resources += [_resource("network", each) for each in own["networks"]]
    resources += [
        _resource("subnet", each, zone=_last(each.get("region"))) for each in own["subnetworks"]
    ]
    resources += [_resource("firewall", each) for each in own["firewalls"]]
    return resources


def lab_gcp_unfit(machines: Iterable[Mapping[str, Any]], nodes: Sequence[str]) -> list[str]:
    """Return which of some nodes have no machine that runs, each with what there is instead.

    Args:
        machines: Resources of an answer.
        nodes: The nodes that were to be made.
    """
    states = {each["node"]: each["state"] for each in machines if each["kind"] == "machine"}
    return [
        f"{node} is {states[node]}" if node in states else f"{node} is not there"
        for node in nodes
        if states.get(node) != "running"
    ]


def _part_texts(part: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (reason, text) of each thing that a failed task says went wrong."""
    if part.get("failures"):
        return [
            (
                f"{each['kind']} {each['status'] or ''} {each['reason']}",
                f"{each['name']}: {each['message']}",
            )
            for each in part["failures"]
        ]
    message = part.get("msg") or "no message"
    if isinstance(message, list):  # errors of an operation, as google.cloud passes them on
        return [(str(each.get("code")), str(each.get("message"))) for each in message]
    text = str(message)
    if text.startswith("GCP returned error: "):
        try:
            error = ast.literal_eval(text.removeprefix("GCP returned error: "))["error"]
        except (ValueError, SyntaxError, KeyError, TypeError):
            return [("", text)]
        reason = (error.get("errors") or [{}])[0].get("reason") or error.get("status") or ""
        return [(f"{error.get('code')} {reason}", str(error.get("message")))]
    trace = str(part.get("exception") or part.get("module_stderr") or "").strip().splitlines()
    # google.cloud's modules end in a traceback where a connection or the credentials fail.
    return [("", trace[-1] if trace and "MODULE FAILURE" in text else text)]


def lab_gcp_failure(result: Mapping[str, Any], doing: str) -> str:
    """Return labctl's three parts for a failed task: what was found, what was expected, what to do.

    Args:
        result: Of the task, or of a loop.
        doing: What the task was to do, e.g. `making the machines`.
    """
    said = _said(result)
    if len(said) == 1 and "\n  expected  " in said[0][1]:
        return said[0][1]
    judged = "; ".join(f"{reason} {text}" for reason, text in said)
    word, _, expected, do = next(each for each in _FAILURES if re.search(each[1], judged))
    return _parts(f"{word}: {doing}: {'; '.join(_texts(result))}", expected, do)


def _said(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    parts = [each for each in result.get("results") or () if each.get("failed")] or [result]
    return [each for part in parts for each in _part_texts(part)]


def _texts(result: Mapping[str, Any]) -> list[str]:
    """Return what a failed task says, each thing once and in one line."""
    texts = [" ".join(text.split())[:300].strip() for _, text in _said(result)]
    return list(dict.fromkeys(texts))


def _parts(found: str, expected: str, do: str) -> str:
    return f"{found}\n  expected  {expected}\n  do        {do}"


def lab_gcp_chosen(
    machines: Iterable[Mapping[str, Any]], images: Mapping[str, Mapping[str, Any] | None], zone: str
) -> list[list[str]]:
    """Return (node, machine type, image, zone) of each machine, as the answer of `validate` has them."""
    return [
        [
            each["node"],
            each["machine_type"],
            str((images.get(each["node"]) or {}).get("name", "")),
            zone,
        ]
        for each in machines
    ]


def lab_gcp_refused(problems: Iterable[Mapping[str, str]]) -> str:
    """Return the text of a play that ends as Google Cloud would refuse the lab."""
    return "\n".join(
        _parts(f"{each['subject']}: {each['found']}", each["expected"], each["do"])
        for each in problems
    )


def lab_gcp_left(
    resources: Iterable[Mapping[str, Any]], results: Iterable[Mapping[str, Any]]
) -> str:
    """Return the text of a removal after which Google Cloud still has something.

    Args:
        resources: What it has, as in an answer.
        results: Of the tasks that were to remove it.
    """
    things = [
        f"{each['kind']} {each['name']}{' (' + each['state'] + ')' if each['state'] else ''}"
        + (", billed" if each["billable"] else "")
        for each in resources
    ]
    reasons = dict.fromkeys(
        text for result in results if result.get("failed") for text in _texts(result)
    )
    why = f": {'; '.join(reasons)}" if reasons else ""
    return _parts(
        f"left: {', '.join(things)}{why}",
        "nothing with the lab's labels or name",
        "labctl down again; what Google Cloud keeps refusing, remove in its console",
    )


def lab_gcp_refusal(result: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the problem of `validate` that a failed look is; None where nothing is known of the lab's wish."""
    lines = lab_gcp_failure(result, "asking Google Cloud").split("\n")
    subject, found = lines[0].split(": ", 1)
    if subject not in {"credentials", "rights"}:
        return None
    expected, do = (line.split(maxsplit=1)[1] for line in lines[1:])
    return {"subject": "credentials", "found": found, "expected": expected, "do": do}


def lab_gcp_transient(result: Mapping[str, Any]) -> bool:
    """Say whether a failed task of google.cloud may go through a little later."""
    if not result.get("failed"):
        return False
    return lab_gcp_failure(result, "").split(":", 1)[0] in {"throttled", "unreachable"}


class FilterModule:
    """Names the filters for Ansible."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "lab_gcp_chosen": lab_gcp_chosen,
            "lab_gcp_failure": lab_gcp_failure,
            "lab_gcp_labels": lab_gcp_labels,
            "lab_gcp_left": lab_gcp_left,
            "lab_gcp_own": lab_gcp_own,
            "lab_gcp_refusal": lab_gcp_refusal,
            "lab_gcp_refused": lab_gcp_refused,
            "lab_gcp_resources": lab_gcp_resources,
            "lab_gcp_transient": lab_gcp_transient,
            "lab_gcp_unfit": lab_gcp_unfit,
        }
