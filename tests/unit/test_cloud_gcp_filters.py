"""What the playbooks of `gcp` make of the cloud's answers, and what they ask for: pure functions."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILTERS = Path(__file__).resolve().parents[2] / "playbooks/cloud/filter_plugins"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FILTERS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gcp = load("lab_gcp")
orders = load("lab_gcp_orders")
refusals = load("lab_gcp_refusals")

LABELS = {"labctl-id": "1a2b3c4d", "labctl-lab": "demo", "labctl-owner": "ann"}
VARIABLES: dict[str, Any] = {
    "lab_name": "demo",
    "lab_id": "1a2b3c4d",
    "lab_cloud_project": "p",
    "lab_cloud_region": "us-central1",
    "lab_cloud_zone": "us-central1-a",
    "lab_cloud_network": "",
    "lab_cloud_subnet_cidr": "10.132.0.0/24",
    "lab_cloud_ssh_by": "public",
    "lab_admin_cidrs": ["198.51.100.7/32"],
    "lab_max_hours": 4,
}
MACHINE: dict[str, Any] = {
    "node": "tf0",
    "task": 0,
    "machine_type": "n1-standard-8",
    "gpu_type": "T4",
    "gpu_count": 1,
    "image": "ubuntu-2404-lts-amd64",
    "image_owner": "ubuntu-os-cloud",
    "disk_gb": 50,
    "spot": False,
    "private_address": "10.132.0.10",
}
MADE: dict[str, Any] = {
    "name": "labctl-demo-1a2b3c4d",
    "image": "projects/ubuntu-os-cloud/global/images/x",
    "subnet": "https://example.invalid/subnet",
    "labels": LABELS,
    "accelerator": "nvidia-tesla-t4",
    "has_gpu": True,
    "user_data": "#cloud-config\n",
}


def instance(status: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "5000000006",
        "name": "labctl-demo-1a2b3c4d-tf0",
        "status": status,
        "labels": {**LABELS, "labctl-node": "tf0"},
        "zone": "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a",
        "machineType": "https://x/machineTypes/n1-standard-8",
        "creationTimestamp": "2026-11-30T10:00:00.000-08:00",
        "lastStopTimestamp": "2026-11-30T11:00:00.000-08:00",
        "networkInterfaces": [
            {"networkIP": "10.132.0.10", "accessConfigs": [{"natIP": "198.51.100.9"}]}
        ],
        **more,
    }


def found(**more: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    names = ("instances", "disks", "addresses", "networks", "subnetworks", "firewalls")
    return {name: {"listed": more.get(name, [])} for name in names}


@pytest.mark.parametrize(
    ("status", "state", "billable", "stopped"),
    [
        ("PROVISIONING", "pending", True, False),
        ("STAGING", "pending", True, False),
        ("RUNNING", "running", True, False),
        ("STOPPING", "stopping", True, True),
        ("SUSPENDED", "suspended", True, True),
        ("TERMINATED", "stopped", False, True),
        ("DREAMING", "dreaming", True, False),
    ],
)
def test_a_machine_has_the_words_of_an_answer(
    status: str, state: str, billable: bool, stopped: bool
) -> None:
    own = gcp.lab_gcp_own(found(instances=[instance(status)]), LABELS, "labctl-demo-1a2b3c4d")
    [one] = gcp.lab_gcp_resources(own)
    assert one == {
        "kind": "machine",
        "id": "5000000006",
        "name": "labctl-demo-1a2b3c4d-tf0",
        "node": "tf0",
        "state": state,
        "billable": billable,
        "zone": "us-central1-a",
        "machine_type": "n1-standard-8",
        "private_address": "10.132.0.10",
        "public_address": "198.51.100.9",
        "created_unix_s": 1796061600.0,
        "stopped_unix_s": 1796065200.0 if stopped else None,
    }


def test_only_what_is_the_labs_counts_whatever_the_cloud_lists() -> None:
    other = instance("RUNNING", labels={**LABELS, "labctl-id": "ffffffff"})
    bare = {"name": "d", "status": "READY"}
    everything = found(
        instances=[other],
        disks=[bare, {"name": "mine", "status": "READY", "labels": LABELS}],
        addresses=[{"name": "a", "status": "RESERVED", "labels": LABELS, "address": "203.0.113.1"}],
        networks=[{"name": "labctl-demo-1a2b3c4d-net"}, {"name": "labctl-demo-1a2b3c4dx-net"}],
        firewalls=[{"name": "default-allow-ssh"}],
    )
    own = gcp.lab_gcp_own(everything, LABELS, "labctl-demo-1a2b3c4d")
    resources = gcp.lab_gcp_resources(own)
    assert [(each["kind"], each["name"], each["billable"]) for each in resources] == [
        ("disk", "mine", True),
        ("address", "a", True),
        ("network", "labctl-demo-1a2b3c4d-net", False),
    ]
    assert resources[1]["public_address"] == "203.0.113.1"


def test_labels_are_what_the_api_takes() -> None:
    given = {"labctl-owner": "Ann.Öther@example.com", "labctl-lab": "x" * 70}
    assert gcp.lab_gcp_labels(given) == {
        "labctl-owner": "ann--ther-example-com",
        "labctl-lab": "x" * 63,
    }


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"lab_max_hours": 4}, 8 * 3600),
        ({"lab_max_hours": 0}, None),
        ({}, None),
        ({"lab_max_hours": 4, "lab_cloud_limit_hours": 5}, 5 * 3600),
        ({"lab_max_hours": 4, "lab_cloud_limit_hours": 0}, None),
        ({"lab_max_hours": 0.001}, 30),
        ({"lab_max_hours": 10_000}, 120 * 86_400),
    ],
)
def test_the_cloud_removes_a_machine_some_time_after_its_own_timer(
    variables: dict[str, Any], seconds: int | None
) -> None:
    assert orders.lab_gcp_limit_s(variables) == seconds


def test_a_machine_is_asked_for_with_nothing_that_outlives_or_opens_it() -> None:
    body = orders.lab_gcp_instance(MACHINE, VARIABLES, MADE)
    assert body["scheduling"] == {
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
        "provisioningModel": "STANDARD",
        "maxRunDuration": {"seconds": "28800"},
        "instanceTerminationAction": "DELETE",
    }
    assert body["disks"][0]["autoDelete"] is True
    assert body["disks"][0]["initializeParams"]["labels"] == LABELS
    assert body["networkInterfaces"] == [
        {
            "subnetwork": MADE["subnet"],
            "networkIP": "10.132.0.10",
            "accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}],
        }
    ]
    assert "serviceAccounts" not in body


@pytest.mark.parametrize(
    ("machine", "variables", "made", "expected"),
    [
        ({}, {"lab_max_hours": 0}, {"has_gpu": False}, ("MIGRATE", "STANDARD", None)),
        ({"spot": True}, {"lab_max_hours": 0}, {"has_gpu": False}, ("TERMINATE", "SPOT", "DELETE")),
    ],
)
def test_how_a_machine_is_scheduled_follows_from_what_it_is(
    machine: dict[str, Any],
    variables: dict[str, Any],
    made: dict[str, Any],
    expected: tuple[str, str, str | None],
) -> None:
    body = orders.lab_gcp_instance(
        {**MACHINE, **machine}, {**VARIABLES, **variables}, {**MADE, **made}
    )
    scheduling = body["scheduling"]
    assert "maxRunDuration" not in scheduling
    assert (
        scheduling["onHostMaintenance"],
        scheduling["provisioningModel"],
        scheduling.get("instanceTerminationAction"),
    ) == expected


def test_a_machine_in_a_named_network_has_no_public_address_unless_ssh_needs_one() -> None:
    named = {**VARIABLES, "lab_cloud_network": "office"}
    private = orders.lab_gcp_instance(
        {**MACHINE, "private_address": ""}, {**named, "lab_cloud_ssh_by": "private"}, MADE
    )
    assert private["networkInterfaces"] == [{"subnetwork": MADE["subnet"]}]
    public = orders.lab_gcp_instance(MACHINE, named, MADE)
    assert "accessConfigs" in public["networkInterfaces"][0]
    account = orders.lab_gcp_instance(MACHINE, {**named, "lab_cloud_service_account": "a@b"}, MADE)
    assert account["serviceAccounts"][0]["email"] == "a@b"


def test_gpus_that_the_machine_type_carries_are_not_asked_for_again() -> None:
    carried = {"accelerators": [{"guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": 1}]}
    answers = {"type/n1-standard-8": {"answer": {}}, "type/g2-standard-8": {"answer": carried}}
    assert refusals.lab_gcp_gpus(MACHINE, answers) == {
        "accelerator": "nvidia-tesla-t4",
        "has_gpu": True,
    }
    l4 = {**MACHINE, "machine_type": "g2-standard-8", "gpu_type": "L4"}
    assert refusals.lab_gcp_gpus(l4, answers) == {"accelerator": "", "has_gpu": True}
    without = {**MACHINE, "gpu_type": "", "gpu_count": 0}
    assert refusals.lab_gcp_gpus(without, answers) == {"accelerator": "", "has_gpu": False}
    assert (
        orders.lab_gcp_instance(l4, VARIABLES, {**MADE, "accelerator": ""}).get("guestAccelerators")
        is None
    )


FAILURES = [
    (
        {
            "failures": [
                {
                    "name": "tf1",
                    "kind": "api",
                    "status": 403,
                    "reason": "quotaExceeded",
                    "message": "Quota 'CPUS' exceeded.",
                }
            ]
        },
        "quota: doing: tf1: Quota 'CPUS' exceeded.",
    ),
    (
        {
            "failures": [
                {
                    "name": "tf1",
                    "kind": "operation",
                    "status": 503,
                    "reason": "ZONE_RESOURCE_POOL_EXHAUSTED",
                    "message": "The zone is full.",
                }
            ]
        },
        "capacity: doing: tf1: The zone is full.",
    ),
    (
        {
            "failures": [
                {
                    "name": "do",
                    "kind": "auth",
                    "status": 0,
                    "reason": "",
                    "message": "Token expired",
                }
            ]
        },
        "credentials: doing: do: Token expired",
    ),
    (
        {
            "failures": [
                {
                    "name": "x",
                    "kind": "transport",
                    "status": 0,
                    "reason": "",
                    "message": "Read timed out",
                }
            ]
        },
        "unreachable: doing: x: Read timed out",
    ),
    (
        {
            "msg": "GCP returned error: {'error': {'code': 403, 'message': 'Slow down', 'errors': "
            "[{'message': 'Slow down', 'domain': 'global', 'reason': 'rateLimitExceeded'}]}}"
        },
        "throttled: doing: Slow down",
    ),
    (
        {"msg": [{"code": "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "message": "in use"}]},
        "network: doing: in use",
    ),
    (
        {
            "msg": "MODULE FAILURE: see stdout",
            "module_stderr": "Traceback\n  File x\ngoogle.auth.exceptions."
            "DefaultCredentialsError: none were found.",
        },
        "credentials: doing: google.auth.exceptions.DefaultCredentialsError: none were found.",
    ),
    (
        {"msg": "The action failed to execute in the expected time frame (90) and was terminated"},
        "unreachable: doing: The action failed to execute in the expected time frame (90) and was terminated",
    ),
    (
        {"msg": "Please install the google-auth library"},
        "packages: doing: Please install the google-auth library",
    ),
    ({"msg": "Something new"}, "gcp: doing: Something new"),
    (
        {
            "msg": "Several",
            "results": [{"failed": False, "msg": "ok"}, {"failed": True, "msg": "bad one"}],
        },
        "gcp: doing: bad one",
    ),
]


@pytest.mark.parametrize(
    ("result", "first"), FAILURES, ids=[first.split(":")[0] for _, first in FAILURES]
)
def test_a_failure_says_what_was_found_what_was_expected_and_what_to_do(
    result: dict[str, Any], first: str
) -> None:
    lines = gcp.lab_gcp_failure({"failed": True, **result}, "doing").split("\n")
    assert lines[0] == first
    assert [line.split()[0] for line in lines[1:]] == ["expected", "do"]


def test_a_message_that_has_three_parts_already_stays_as_it_is() -> None:
    said = "zone: none\n  expected  one\n  do        that"
    assert gcp.lab_gcp_failure({"failed": True, "msg": said}, "doing") == said


def test_only_what_may_go_through_later_is_tried_again() -> None:
    later = {
        "failed": True,
        "msg": "GCP returned error: {'error': {'code': 503, 'message': 'x', 'errors': []}}",
    }
    assert gcp.lab_gcp_transient(later) is True
    assert gcp.lab_gcp_transient({**later, "failed": False}) is False
    assert (
        gcp.lab_gcp_transient(
            {
                "failed": True,
                "msg": "GCP returned error: {'error': {'code': 403, "
                "'message': \"Quota 'CPUS' exceeded\", 'errors': []}}",
            }
        )
        is False
    )


def test_what_is_left_names_what_is_billed_and_why_it_stays() -> None:
    disk = {"kind": "disk", "id": "50", "name": "d", "state": "ready", "billable": True}
    failed = {
        "failed": True,
        "msg": "GCP returned error: {'error': {'code': 400, 'message': 'in use'}}",
    }
    said = gcp.lab_gcp_left([disk], [failed, {"changed": True}, {"skipped": True}])
    assert said.splitlines()[0] == "left: disk d (ready), billed: in use"


def test_power_is_asked_for_only_where_it_differs() -> None:
    machines = [
        {"kind": "machine", "node": f"tf{n}", "name": f"m{n}", "zone": "z", "state": state}
        for n, state in enumerate(("running", "stopped", "stopping", "pending"))
    ]
    assert [each["name"] for each in orders.lab_gcp_power(machines, "stop")] == ["tf0", "tf3"]
    assert [each["name"] for each in orders.lab_gcp_power(machines, "start")] == ["tf1", "tf2"]
    assert orders.lab_gcp_power(machines, "stop")[0]["path"] == "zones/z/instances/m0/stop"


def answers(**more: Any) -> dict[str, dict[str, Any]]:
    there: dict[str, dict[str, Any]] = {
        "project": {"found": True, "answer": {"quotas": [quota("GPUS_ALL_REGIONS", 2)]}},
        "region": {
            "found": True,
            "answer": {
                "zones": ["https://x/zones/us-central1-a"],
                "quotas": [quota("CPUS", 16), quota("NVIDIA_T4_GPUS", 2)],
            },
        },
        "zone": {"found": True, "answer": {"status": "UP"}},
        "accelerators": {
            "found": True,
            "listed": [{"name": "nvidia-tesla-t4", "maximumCardsPerInstance": 4}],
        },
        "standing": {"found": True, "listed": []},
        "type/n1-standard-8": {"found": True, "answer": {"guestCpus": 8, "architecture": "X86_64"}},
        "family/ubuntu-os-cloud/ubuntu-2404-lts-amd64": {
            "found": True,
            "answer": {
                "name": "u",
                "architecture": "X86_64",
                "diskSizeGb": "10",
                "status": "READY",
            },
        },
        "image/ubuntu-os-cloud/ubuntu-2404-lts-amd64": {"found": False, "answer": {}},
    }
    return {**there, **more}


def quota(metric: str, limit: float, usage: float = 0) -> dict[str, Any]:
    return {"metric": metric, "limit": limit, "usage": usage}


def said(machines: list[dict[str, Any]], given: dict[str, Any], **variables: Any) -> list[str]:
    problems = refusals.lab_gcp_problems(machines, given, {**VARIABLES, **variables})
    return [f"{each['subject']}: {each['found']}" for each in problems]


def test_a_lab_that_fits_has_no_problem() -> None:
    two = [MACHINE, {**MACHINE, "node": "tf1"}]
    assert said(two, answers()) == []
    assert refusals.lab_gcp_unchecked(two, answers()) == [
        "whether the zone has such machines free now: only making them shows it"
    ]


def test_every_question_that_is_judged_is_asked() -> None:
    asked = refusals.lab_gcp_questions([MACHINE], VARIABLES)
    assert set(asked) == set(answers())
    assert set(
        refusals.lab_gcp_questions([MACHINE], {**VARIABLES, "lab_cloud_network": "n/s"})
    ) == {
        *answers(),
        "network",
        "subnets",
    }


def test_quotas_count_what_is_used_and_not_twice_what_stands() -> None:
    two = [MACHINE, {**MACHINE, "node": "tf1"}]
    tight = answers(
        project={"found": True, "answer": {"quotas": [quota("GPUS_ALL_REGIONS", 2, 1)]}}
    )
    assert said(two, tight) == ["quota: GPUS_ALL_REGIONS of the project: 2, 1 in use"]
    tight["standing"] = {"found": True, "listed": [{"labels": {**LABELS, "labctl-node": "tf0"}}]}
    assert said(two, tight) == []


def test_spot_machines_count_against_their_own_quota_where_there_is_one() -> None:
    spot = [{**MACHINE, "spot": True}]
    region = answers()["region"]["answer"]
    own = [*region["quotas"], quota("PREEMPTIBLE_NVIDIA_T4_GPUS", 1, 1)]
    given = answers(region={"found": True, "answer": {**region, "quotas": own}})
    assert said(spot, given) == ["quota: PREEMPTIBLE_NVIDIA_T4_GPUS of us-central1: 1, 1 in use"]
    assert said([MACHINE], given) == []
    none = [*region["quotas"], quota("PREEMPTIBLE_NVIDIA_T4_GPUS", 0)]
    assert said(spot, answers(region={"found": True, "answer": {**region, "quotas": none}})) == []


@pytest.mark.parametrize(
    ("machine", "given", "variables", "problem"),
    [
        (
            {"machine_type": "e2-small"},
            {"type/e2-small": {"found": True, "answer": {"guestCpus": 2}}},
            {},
            "machine-type: tf0: e2-small takes no GPU",
        ),
        ({"gpu_type": "V100"}, {}, {}, "zone: tf0: us-central1-a does not offer nvidia-tesla-v100"),
        ({"gpu_count": 8}, {}, {}, "machine-type: tf0: 8 x nvidia-tesla-t4"),
        ({"disk_gb": 8}, {}, {}, "image: tf0: u is 10 GB, its disk 8 GB"),
        (
            {},
            {"zone": {"found": True, "answer": {"status": "DOWN"}}},
            {},
            "zone: us-central1-a is down",
        ),
        (
            {},
            {"region": {"found": False, "answer": {}}},
            {},
            "region: Google Cloud has no region us-central1",
        ),
        (
            {},
            {},
            {"lab_cloud_zone": "us-central1-q"},
            "zone: us-central1 has no zone us-central1-q",
        ),
        (
            {},
            {},
            {"lab_admin_cidrs": ["2001:db8::/64"]},
            "network: lab_admin_cidrs has IPv6 networks only: 2001:db8::/64",
        ),
        (
            {},
            {"network": {"found": False, "answer": {}}},
            {"lab_cloud_network": "office"},
            "network: the project has no network office",
        ),
    ],
)
def test_what_the_cloud_would_refuse_is_said(
    machine: dict[str, Any], given: dict[str, Any], variables: dict[str, Any], problem: str
) -> None:
    assert problem in said([{**MACHINE, **machine}], answers(**given), **variables)


def test_an_image_without_cloud_init_is_refused() -> None:
    debian = {**MACHINE, "image": "debian-12", "image_owner": "debian-cloud"}
    image = {"name": "debian-12-x", "architecture": "X86_64", "diskSizeGb": "10", "status": "READY"}
    given = answers(
        **{
            "family/debian-cloud/debian-12": {"found": True, "answer": image},
            "image/debian-cloud/debian-12": {"found": False, "answer": {}},
        }
    )
    assert said([debian], given) == ["image: tf0: debian-12-x of debian-cloud has no cloud-init"]


@pytest.mark.parametrize(
    ("name", "cidr", "problem"),
    [
        ("office", "", "network: office has a, b in us-central1"),
        ("office/a", "10.0.0.0/24", ""),
        ("office/a", "", ""),
        (
            "office/a",
            "10.9.0.0/24",
            "network: a has 10.0.0.0/24, lab_cloud_subnet_cidr is 10.9.0.0/24",
        ),
        ("office/c", "", "network: office/c has no such subnet in us-central1"),
    ],
)
def test_a_named_network_needs_one_subnet_of_the_right_range(
    name: str, cidr: str, problem: str
) -> None:
    subnets = [
        {"name": each, "network": "link", "selfLink": each, "ipCidrRange": "10.0.0.0/24"}
        for each in ("a", "b")
    ]
    given = {
        "network": {"found": True, "answer": {"selfLink": "link"}},
        "subnets": {"listed": subnets},
    }
    wish = {**VARIABLES, "lab_cloud_network": name, "lab_cloud_subnet_cidr": cidr}
    looked = refusals.lab_gcp_subnet(wish, given)
    assert [f"{each['subject']}: {each['found']}" for each in looked["problems"]] == (
        [problem] if problem else []
    )
    if not problem:
        assert looked["subnet"] == "a"
