# ruff: noqa: INP001 a single file beside the playbooks, loaded by Ansible
"""What AWS answered, turned into the words of `playbooks/cloud/README.md`.

Runs inside `ansible-playbook` on the control machine; standard library only.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

_STOPPED_AT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
# (first word, codes or texts, expected, do), the first that fits counts.
_FAILURES = (
    (
        "packages",
        r"required Python library",
        "boto3 and botocore beside Ansible",
        "pip install 'labctl[aws]', or make setup in a checkout",
    ),
    (
        "credentials",
        (
            r"AuthFailure|InvalidClientTokenId|InvalidAccessKeyId|ExpiredToken|RequestExpired|UnrecognizedClient"
            r"|SignatureDoesNotMatch|InvalidSignature|NoCredentials|locate credentials|Partial credentials"
            r"|config profile|SSO|sso session|OptInRequired"
        ),
        "credentials that AWS accepts in this region: environment, profile or SSO session",
        "renew them (aws sso login, or export AWS_PROFILE), then run it again",
    ),
    (
        "throttled",
        r"RequestLimitExceeded|Throttling|Throttled|TooManyRequests|SlowDown|EC2ThrottledException",
        "AWS to take the request after some tries",
        "wait a few minutes, then run it again: what is made has its labels and is found",
    ),
    (
        "quota",
        r"[A-Za-z]*LimitExceeded|MaxSpotInstanceCountExceeded|QuotaExceeded",
        "a quota of this account in this region that has room for the lab",
        "ask for more in the console's Service Quotas, or use fewer or smaller machines",
    ),
    (
        "capacity",
        r"Insufficient[A-Za-z]*Capacity|InsufficientFreeAddresses|SpotMaxPriceTooLow|capacity-not-available",
        "a zone that has such machines now",
        "another lab_cloud_zone or machine type, or try later",
    ),
    (
        "rights",
        r"UnauthorizedOperation|AccessDenied|OperationNotPermitted",
        "the right to do this in the account",
        "ask for a policy with it, or use another profile",
    ),
    (
        "image",
        r"InvalidAMI|InvalidImage",
        "an image that exists in this region",
        "correct lab_cloud_image and lab_cloud_image_owner",
    ),
    (
        "network",
        (
            r"InvalidIPAddress|InvalidVpc|InvalidSubnet|InvalidGroup|VpcRange|CidrConflict|DependencyViolation"
            r"|\bin use\b"
        ),
        "a network and addresses that are free for the lab",
        "correct lab_cloud_network, lab_cloud_subnet_cidr or lab_cloud_tasks",
    ),
    (
        "machine-type",
        r"\bUnsupported|InvalidInstanceType|InvalidParameterCombination",
        "a machine type that this zone and image allow",
        "correct lab_cloud_machine_type, lab_cloud_zone or lab_cloud_image",
    ),
    (
        "unreachable",
        (
            r"connect to the endpoint|[Tt]imeout|[Tt]imed out|Connection (was closed|aborted|reset)"
            r"|Name or service|resolve|expected time frame|ServiceUnavailable|InternalError|InternalFailure"
            r"|\bUnavailable"
        ),
        "an answer of AWS",
        "try again; if it stays, look at the network, a proxy, lab_cloud_region and https://health.aws.amazon.com",
    ),
    ("aws", "", "AWS to do it", "see the message; what is made stays and has its labels"),
)


def _tags(thing: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in (thing.get("tags") or {}).items()}


def _unix_s(stamp: Any) -> float | None:
    try:
        parsed = datetime.fromisoformat(str(stamp))
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _resource(
    kind: str, thing: Mapping[str, Any], identity: str, *, name: str = "", **more: Any
) -> dict[str, Any]:
    tags = _tags(thing)
    return {
        "kind": kind,
        "id": identity,
        "name": tags.get("Name", name),
        "node": tags.get("labctl-node", ""),
        "state": "",
        "billable": False,
        "zone": "",
        "machine_type": "",
        "private_address": "",
        "public_address": "",
        "created_unix_s": None,
        "stopped_unix_s": None,
        **more,
    }


def _machine(each: Mapping[str, Any]) -> dict[str, Any]:
    state = str(each["state"]["name"])
    stopped = _STOPPED_AT.search(str(each.get("state_transition_reason") or ""))
    return _resource(
        "machine",
        each,
        each["instance_id"],
        state=state,
        billable=state in {"pending", "running"},
        zone=(each.get("placement") or {}).get("availability_zone") or "",
        machine_type=each.get("instance_type") or "",
        private_address=each.get("private_ip_address") or "",
        public_address=each.get("public_ip_address") or "",
        created_unix_s=_unix_s(each.get("launch_time")),
        stopped_unix_s=_unix_s(f"{stopped[1]}+00:00")
        if stopped and state in {"stopping", "stopped"}
        else None,
    )


def lab_aws_resources(found: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return all that AWS has of a lab, in the words of an answer.

    Args:
        found: What lab_aws_found returned: instances, volumes, addresses, vpcs, subnets, gateways, groups, keys.
    """
    resources = [
        _machine(each) for each in found["instances"] if each["state"]["name"] != "terminated"
    ]
    resources += [
        _resource(
            "disk",
            each,
            each["volume_id"],
            state=each["state"],
            billable=each["state"] not in {"deleting", "deleted"},
            zone=each.get("availability_zone") or "",
            created_unix_s=_unix_s(each.get("create_time")),
        )
        for each in found["volumes"]
    ]
    resources += [
        _resource(
            "address",
            each,
            each.get("allocation_id") or each["public_ip"],
            state="in-use" if each.get("association_id") else "available",
            billable=True,
            public_address=each["public_ip"],
        )
        for each in found["addresses"]
    ]
    resources += [
        _resource("network", each, each["vpc_id"], state=each.get("state") or "")
        for each in found["vpcs"]
    ]
    resources += [
        _resource(
            "subnet",
            each,
            each["subnet_id"],
            state=each.get("state") or "",
            zone=each.get("availability_zone") or "",
        )
        for each in found["subnets"]
    ]
    resources += [
        _resource("gateway", each, each["internet_gateway_id"]) for each in found["gateways"]
    ]
    resources += [
        _resource("firewall", each, each["group_id"], name=each.get("group_name") or "")
        for each in found["groups"]
    ]
    resources += [
        _resource("key", each, each["key_name"], name=each["key_name"]) for each in found["keys"]
    ]
    return resources


def lab_aws_rules(
    admin_cidrs: Iterable[str], ports: Sequence[int], group: str
) -> list[dict[str, Any]]:
    """Return the rules of the lab's firewall: SSH for those who run it, the rest inside the group only.

    Args:
        admin_cidrs: Networks that SSH is open to.
        ports: TCP ports that the machines open to each other.
        group: The group's own name.
    """
    networks = [ipaddress.ip_network(str(each), strict=False) for each in admin_cidrs]
    ssh = [
        {
            "proto": "tcp",
            "ports": [22],
            "cidr_ip" if each.version == 4 else "cidr_ipv6": str(each),
            "rule_desc": "SSH, from where the lab is run",
        }
        for each in networks
    ]
    inside = {"group_name": group, "rule_desc": "the lab's machines among themselves"}
    return [
        *ssh,
        {"proto": "tcp", "ports": list(ports), **inside},
        {"proto": "icmp", "from_port": -1, "to_port": -1, **inside},
    ]


def lab_aws_unfit(instances: Iterable[Mapping[str, Any]], waited_s: Any) -> str:
    """Return which new machines do not run, with AWS's reason; "" when all do.

    Args:
        instances: As ec2_instance_info returns them, ended ones too.
        waited_s: How long they were waited for, s.
    """
    unfit = []
    for each in instances:
        state = each["state"]["name"]
        if state == "running":
            continue
        reason = (each.get("state_reason") or {}).get("message") or each.get(
            "state_transition_reason"
        )
        unfit.append(
            f"{_tags(each).get('labctl-node')} ({each['instance_id']}) is {state}: "
            f"{reason or 'AWS gives no reason'}"
        )
    if not unfit:
        return ""
    return _parts(
        f"machine: {'; '.join(unfit)}",
        f"it to run within {waited_s} s",
        "labctl up again, or another zone or machine type; labctl down removes what is there",
    )


def lab_aws_refused(problems: Iterable[Mapping[str, str]]) -> str:
    """Return the text of a play that ends as AWS would refuse the lab."""
    return "\n".join(
        _parts(f"{each['subject']}: {each['found']}", each["expected"], each["do"])
        for each in problems
    )


def lab_aws_left(
    resources: Iterable[Mapping[str, Any]], results: Iterable[Mapping[str, Any]]
) -> str:
    """Return the text of a removal after which AWS still has something.

    Args:
        resources: What it has, as in an answer.
        results: Of the tasks that were to remove it.
    """
    things = [
        f"{each['kind']} {each['id']}{' (' + each['state'] + ')' if each['state'] else ''}"
        + (", billed" if each["billable"] else "")
        for each in resources
    ]
    reasons = dict.fromkeys(
        text for result in results if result.get("failed") for text in _texts(result)
    )
    why = f": {'; '.join(reasons)}" if reasons else ""
    return _parts(
        f"left: {', '.join(things)}{why}",
        "nothing with the lab's labels",
        "labctl down again; what AWS keeps refusing, remove in its console",
    )


def _parts(found: str, expected: str, do: str) -> str:
    return f"{found}\n  expected  {expected}\n  do        {do}"


def _texts(result: Mapping[str, Any]) -> list[str]:
    """Return the messages of a failed task or loop, each once, on one line each."""
    texts = []
    for part in [each for each in result.get("results") or () if each.get("failed")] or [result]:
        error = part.get("error") or {}
        text = str(part.get("msg") or "no message")
        if error.get("code"):
            text = f"{error['code']}: {error.get('message') or ''}"
        # A refused right comes with kilobytes of encoded policy, a refused key with its id.
        text = re.split(r"[Ee]ncoded authorization", " ".join(text.split()))[0][:300].strip()
        texts.append(re.sub(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b", "(key id)", text))
    return list(dict.fromkeys(texts))


def lab_aws_failure(result: Mapping[str, Any], doing: str) -> str:
    """Return labctl's three parts for a failed task: what was found, what was expected, what to do.

    Args:
        result: Of the task, or of a loop; `error.code` and `error.message` as amazon.aws gives them.
        doing: The task's name, or what it was to do.
    """
    if "\n  expected  " in str(result.get("msg")):
        return str(result["msg"])
    whole = "; ".join(_texts(result))
    word, _, expected, do = next(each for each in _FAILURES if re.search(each[1], whole))
    return _parts(f"{word}: {doing.rsplit(' | ', 1)[-1]}: {whole}", expected, do)


def lab_aws_refusal(result: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the problem of `validate` that a failed look at credentials or region is; None for another failure."""
    lines = lab_aws_failure(result, "asking AWS who we are").split("\n")
    subject, found = lines[0].split(": ", 1)
    if subject != "credentials":
        return None
    expected, do = (line.split(maxsplit=1)[1] for line in lines[1:])
    return {"subject": subject, "found": found, "expected": expected, "do": do}


class FilterModule:
    """Names the filters for Ansible."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "lab_aws_failure": lab_aws_failure,
            "lab_aws_left": lab_aws_left,
            "lab_aws_refusal": lab_aws_refusal,
            "lab_aws_refused": lab_aws_refused,
            "lab_aws_resources": lab_aws_resources,
            "lab_aws_rules": lab_aws_rules,
            "lab_aws_unfit": lab_aws_unfit,
        }
