"""The stand-in of Compute Engine against the excerpt of the API's published description."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.fakes.gcp import schema
from tests.fakes.gcp.cloud import Cloud
from tests.fakes.gcp.server import StandIn

PROJECT = "labctl-test"
ROOT = f"/compute/v1/projects/{PROJECT}"
ZONE = f"{ROOT}/zones/us-central1-a"
NETWORK = f"https://www.googleapis.com{ROOT}/global/networks/demo"
SUBNET = f"https://www.googleapis.com{ROOT}/regions/us-central1/subnetworks/demo"
LABELS = {"labctl-id": "1a2b3c4d", "labctl-lab": "demo"}


class Client:
    """Calls the stand-in without a socket."""

    def __init__(self) -> None:
        self.api = StandIn(Cloud(PROJECT, operation_s=0.02), "token")

    def call(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        got, answer = self.api.call(method, path, "Bearer token", body or {})
        assert got == status, answer
        return answer

    def do(self, method: str, path: str, body: Any = None) -> Any:
        """Give an order and wait for it; returns the operation at its end."""
        operation = self.call(method, path, body)
        assert not schema.faults("Operation", operation)
        at = operation["selfLink"].removeprefix("https://www.googleapis.com")
        seen = [operation["status"]]
        while seen[-1] != "DONE":
            time.sleep(0.005)
            operation = self.call("GET", at)
            assert not schema.faults("Operation", operation)
            seen.append(operation["status"])
        assert list(dict.fromkeys(seen)) in (
            ["PENDING", "RUNNING", "DONE"],
            ["PENDING", "DONE"],
        )
        return operation


def machine(name: str = "demo-tf0", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "machineType": "zones/us-central1-a/machineTypes/n1-standard-4",
        "labels": LABELS,
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64",
                    "diskSizeGb": "50",
                    "labels": LABELS,
                },
            }
        ],
        "networkInterfaces": [{"subnetwork": SUBNET, "networkIP": "10.132.0.10"}],
        "scheduling": {"onHostMaintenance": "TERMINATE", "automaticRestart": False},
        "guestAccelerators": [
            {
                "acceleratorType": "zones/us-central1-a/acceleratorTypes/nvidia-tesla-t4",
                "acceleratorCount": 1,
            }
        ],
        **more,
    }


@pytest.fixture
def client() -> Client:
    made = Client()
    made.do("POST", f"{ROOT}/global/networks", {"name": "demo", "autoCreateSubnetworks": False})
    made.do(
        "POST",
        f"{ROOT}/regions/us-central1/subnetworks",
        {"name": "demo", "network": NETWORK, "ipCidrRange": "10.132.0.0/24"},
    )
    return made


def test_every_resource_conforms_to_the_published_description(client: Client) -> None:
    rule = {"name": "demo-ssh", "network": NETWORK, "allowed": [{"IPProtocol": "tcp"}]}
    client.do("POST", f"{ROOT}/global/firewalls", rule)
    client.do("POST", f"{ROOT}/regions/us-central1/addresses", {"name": "demo", "labels": LABELS})
    access = {"subnetwork": SUBNET, "accessConfigs": [{"name": "nat", "type": "ONE_TO_ONE_NAT"}]}
    client.do("POST", f"{ZONE}/instances", machine(networkInterfaces=[access]))
    looked_at = {
        "Instance": f"{ZONE}/instances/demo-tf0",
        "Disk": f"{ZONE}/disks/demo-tf0",
        "Address": f"{ROOT}/regions/us-central1/addresses/demo",
        "Network": f"{ROOT}/global/networks/demo",
        "Subnetwork": f"{ROOT}/regions/us-central1/subnetworks/demo",
        "Firewall": f"{ROOT}/global/firewalls/demo-ssh",
        "MachineType": f"{ZONE}/machineTypes/a2-highgpu-1g",
        "AcceleratorType": f"{ZONE}/acceleratorTypes/nvidia-tesla-t4",
        "Image": "/compute/v1/projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64",
        "Zone": ZONE,
        "Region": f"{ROOT}/regions/us-central1",
        "Project": ROOT,
    }
    for name, path in looked_at.items():
        answer = client.call("GET", path)
        assert schema.faults(name, answer) == []
        assert answer["selfLink"].startswith("https://www.googleapis.com/compute/v1/")
    stopped = client.do("POST", f"{ZONE}/instances/demo-tf0/stop")
    assert stopped["operationType"] == "stop"
    instance = client.call("GET", f"{ZONE}/instances/demo-tf0")
    assert instance["status"] == "TERMINATED"
    assert schema.faults("Instance", instance) == []


def test_the_check_finds_what_does_not_conform() -> None:
    wrong = {
        "name": 1,
        "status": "ALIVE",
        "sizeGb": "x",
        "colour": "red",
        "tags": {"items": ["a", 2]},
    }
    assert sorted(schema.faults("Instance", wrong)) == [
        "Instance has no field colour",
        "Instance has no field sizeGb",
        "Instance.name is 1, not string",
        "Instance.status is 'ALIVE', not " + schema.excerpt()["schemas"]["Instance"]["status"],
        "Instance.tags.items[1] is 2, not string",
    ]
    assert schema.faults("Disk", {"sizeGb": "x"}) == ["Disk.sizeGb is 'x', not string:int64"]
    assert schema.faults("Disk", {"labels": {"a": 1}}) == ["Disk.labels is no map of strings"]


@pytest.mark.parametrize(
    ("change", "status", "reason", "text"),
    [
        ({"colour": "red"}, 400, "badRequest", "no field colour"),
        ({"name": "Demo"}, 400, "invalid", "Must be a match of regex"),
        ({"labels": {"owner": "Ann"}}, 400, "invalid", "lower case"),
        ({"machineType": "zones/us-central1-a/machineTypes/x9"}, 400, "invalid", "does not exist"),
        ({"scheduling": {}}, 400, "invalid", "do not support live migration"),
        (
            {
                "scheduling": {
                    "onHostMaintenance": "TERMINATE",
                    "maxRunDuration": {"seconds": "29"},
                }
            },
            400,
            "invalid",
            "between 30 seconds and 120 days",
        ),
        (
            {
                "scheduling": {
                    "onHostMaintenance": "TERMINATE",
                    "instanceTerminationAction": "DELETE",
                }
            },
            400,
            "invalid",
            "Only for Spot",
        ),
        (
            {"networkInterfaces": [{"subnetwork": SUBNET, "networkIP": "10.9.9.9"}]},
            400,
            "invalid",
            "Not within 10.132.0.0/24",
        ),
        (
            {
                "guestAccelerators": [
                    {"acceleratorType": "nvidia-tesla-a100", "acceleratorCount": 1}
                ]
            },
            403,
            "quotaExceeded",
            "Quota 'NVIDIA_A100_GPUS' exceeded.  Limit: 0 in region us-central1.",
        ),
    ],
)
def test_it_refuses_what_the_api_refuses(
    client: Client, change: dict[str, Any], status: int, reason: str, text: str
) -> None:
    answer = client.call("POST", f"{ZONE}/instances", machine(**change), status=status)
    assert answer["error"]["code"] == status
    assert answer["error"]["errors"][0]["reason"] == reason
    assert text in answer["error"]["message"]
    assert [key for key in client.api.cloud.resources if key[0] in {"instances", "disks"}] == []


def test_what_is_in_use_is_not_removed_and_a_machine_takes_its_disk_along(client: Client) -> None:
    client.do("POST", f"{ZONE}/instances", machine())
    for path in (f"{ROOT}/global/networks/demo", f"{ROOT}/regions/us-central1/subnetworks/demo"):
        answer = client.call("DELETE", path, status=400)
        assert answer["error"]["errors"][0]["reason"] == "resourceInUseByAnotherResource"
    client.call("POST", f"{ZONE}/instances", machine(), status=409)
    client.do("DELETE", f"{ZONE}/instances/demo-tf0")
    assert [key for key in client.api.cloud.resources if key[0] in {"instances", "disks"}] == []
    client.do("DELETE", f"{ROOT}/regions/us-central1/subnetworks/demo")
    client.do("DELETE", f"{ROOT}/global/networks/demo")
    assert client.api.cloud.resources == {}
    client.call("GET", f"{ZONE}/instances/demo-tf0", status=404)


def test_lists_have_pages_and_filters_and_aggregated_ones_name_every_zone(client: Client) -> None:
    for number in range(3):
        nic = {"subnetwork": SUBNET, "networkIP": f"10.132.0.{20 + number}"}
        body = machine(f"demo-tf{number}", networkInterfaces=[nic])
        if number == 2:
            body["labels"] = {"labctl-id": "ffffffff"}
        client.do("POST", f"{ZONE}/instances", body)
    query = '?filter=(labels.labctl-id+%3D+"1a2b3c4d")+(labels.labctl-lab+%3D+"demo")'
    page = client.call("GET", f"{ROOT}/aggregated/instances")
    assert page["nextPageToken"] == "2"
    assert [each["name"] for each in page["items"]["zones/us-central1-a"]["instances"]] == [
        "demo-tf0",
        "demo-tf1",
    ]
    assert page["items"]["zones/us-central1-b"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    mine = client.call("GET", f"{ROOT}/aggregated/instances{query}")
    assert "nextPageToken" not in mine
    second = client.call("GET", f"{ROOT}/aggregated/instances?pageToken=2")
    assert [each["name"] for each in second["items"]["zones/us-central1-a"]["instances"]] == [
        "demo-tf2"
    ]
    assert len(client.call("GET", f"{ROOT}/global/networks?filter=name+eq+dem.*")["items"]) == 1
    assert "items" not in client.call("GET", f"{ROOT}/global/networks?filter=name+eq+dem")
    client.call("GET", f"{ROOT}/global/networks?filter=name+like+x", status=400)


def test_an_operation_that_fails_leaves_nothing_and_says_why(client: Client) -> None:
    client.api.script.add(
        {"kind": "operation", "method": "POST", "path": "instances", "code": "QUOTA_EXCEEDED"}
    )
    ended = client.do("POST", f"{ZONE}/instances", machine())
    assert ended["error"]["errors"] == [{"code": "QUOTA_EXCEEDED", "message": "scripted fault"}]
    assert [key for key in client.api.cloud.resources if key[0] in {"instances", "disks"}] == []


def test_an_order_given_twice_under_one_id_is_carried_out_once(client: Client) -> None:
    path = f"{ZONE}/instances?requestId=0b5e0c1e-0000-4000-8000-000000000001"
    assert (
        client.call("POST", path, machine())["name"] == client.call("POST", path, machine())["name"]
    )


def test_only_the_right_token_is_let_in(client: Client) -> None:
    status, answer = client.api.call("GET", ROOT, "Bearer another", {})
    assert status == answer["error"]["code"] == 401
    assert answer["error"]["errors"][0]["reason"] == "authError"
