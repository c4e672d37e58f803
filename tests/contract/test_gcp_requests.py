"""The module that asks and orders, against the stand-in of Compute Engine: what it tries again, what it refuses."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
import requests

from tests.conftest import CHECKOUT
from tests.contract.test_gcp_stand_in import LABELS, PROJECT, ROOT, Client, machine
from tests.fakes.gcp.server import DropError

_SPEC = importlib.util.spec_from_file_location(
    "lab_gcp_api", CHECKOUT / "playbooks/cloud/library/lab_gcp_api.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
module = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(module)


class Clock:
    """Time that only sleeping moves on, and each request a little."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


class Session:
    """Sends requests to a stand-in of this process."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self.client = client
        self.clock = clock
        self.sent = 0

    def request(self, method: str, url: str, **more: Any) -> requests.Response:
        self.sent += 1
        self.clock.now_s += 0.1
        prepared = requests.Request(method, url, params=more["params"]).prepare()
        target = str(prepared.url).removeprefix("https://compute.googleapis.com")
        try:
            status, answer = self.client.api.call(
                method, target, "Bearer token", more["json"] or {}
            )
        except DropError as error:
            raise requests.exceptions.ConnectionError("connection reset") from error
        made = requests.Response()
        made.status_code = status
        made._content = json.dumps(answer).encode()
        return made


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    client = Client()
    client.do("POST", f"{ROOT}/global/networks", {"name": "demo", "autoCreateSubnetworks": False})
    network = f"https://www.googleapis.com{ROOT}/global/networks/demo"
    subnet = {"name": "demo", "network": network, "ipCidrRange": "10.132.0.0/24"}
    client.do("POST", f"{ROOT}/regions/us-central1/subnetworks", subnet)
    client.api.cloud.operation_s = 0
    client.api.calls.clear()
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return Session(client, clock)


@pytest.fixture
def api(session: Session) -> Any:
    return module.Api(session, PROJECT, 10.0)


def order(name: str, method: str, path: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "method": method, "path": path, **more}


def test_a_list_is_read_to_its_last_page_and_holds_no_metadata(api: Any, session: Session) -> None:
    for number in range(5):
        nic = {"subnetwork": machine()["networkInterfaces"][0]["subnetwork"]}
        body = machine(f"demo-tf{number}", networkInterfaces=[nic], guestAccelerators=[])
        body["metadata"] = {"items": [{"key": "user-data", "value": "a host key"}]}
        _, failures = module._ordered(
            api, [order(f"tf{number}", "POST", "zones/us-central1-a/instances", body=body)], 5
        )
        assert failures == []
    asked = {"path": "aggregated/instances", "list": "instances"}
    items = module._asked(api, asked)["listed"]
    assert [each["name"] for each in items] == [f"demo-tf{number}" for number in range(5)]
    assert all(each["labels"] == LABELS and "metadata" not in each for each in items)


def test_what_the_api_says_is_for_now_only_is_tried_again(api: Any, session: Session) -> None:
    script = session.client.api.script
    script.add({"kind": "error", "times": 2, "status": 403, "reason": "rateLimitExceeded"})
    script.add({"kind": "error", "times": 1, "status": 503, "reason": "backendError"})
    script.add({"kind": "drop", "times": 1})
    assert module._asked(api, {"path": ""})["answer"]["name"] == PROJECT
    assert session.sent == 5


@pytest.mark.parametrize(
    ("fault", "kind", "sent"),
    [
        ({"kind": "error", "status": 429, "reason": "rateLimitExceeded"}, "api", None),
        ({"kind": "drop"}, "transport", None),
        ({"kind": "error", "status": 403, "reason": "quotaExceeded"}, "api", 1),
        ({"kind": "error", "status": 403, "reason": "forbidden"}, "api", 1),
        ({"kind": "error", "status": 401, "reason": "authError"}, "auth", 1),
        ({"kind": "error", "status": 400, "reason": "invalid"}, "api", 1),
    ],
)
def test_what_lasts_ends_in_time_and_what_is_refused_is_asked_once(
    api: Any, session: Session, fault: dict[str, Any], kind: str, sent: int | None
) -> None:
    session.client.api.script.add({"times": None, **fault})
    began_s = session.clock.now_s
    with pytest.raises(module.ApiError) as raised:
        module._asked(api, {"path": "aggregated/instances", "list": "instances"})
    assert raised.value.kind == kind
    assert session.clock.now_s - began_s <= 10.0
    assert session.sent == sent if sent is not None else session.sent > 2


def test_a_list_with_a_part_missing_is_no_list(api: Any, session: Session) -> None:
    session.client.api.script.add({"kind": "partial", "path": "aggregated"})
    with pytest.raises(module.ApiError, match="zones/us-central1-a did not answer") as raised:
        module._asked(api, {"path": "aggregated/instances", "list": "instances"})
    assert raised.value.reason == "UNREACHABLE"


def test_an_order_whose_answer_is_lost_is_carried_out_once(api: Any, session: Session) -> None:
    session.client.api.script.add({"kind": "lost", "method": "POST"})
    orders = [order("tf0", "POST", "zones/us-central1-a/instances", body=machine())]
    answers, failures = module._ordered(api, orders, 5)
    assert failures == []
    assert answers["tf0"]["found"] is True
    posts = [status for method, _, status in session.client.api.calls if method == "POST"]
    assert posts == [200]  # the lost one never got as far as a status
    assert session.sent >= 2
    assert [key[2] for key in session.client.api.cloud.resources if key[0] == "instances"] == [
        "demo-tf0"
    ]


def test_one_order_that_fails_keeps_no_other(api: Any, session: Session) -> None:
    path = "zones/us-central1-a/instances"
    taken = machine("demo-tf2")
    orders = [
        order("tf0", "POST", path, body=machine()),
        order("tf1", "POST", path, body=machine("demo-tf1", labels={"A": "b"})),
        order("tf2", "POST", path, body=taken),
        order("gone", "DELETE", f"{path}/nobody", absent=[404]),
        order("lost", "DELETE", f"{path}/nobody"),
    ]
    answers, failures = module._ordered(api, orders, 5)
    assert {name: each["found"] for name, each in answers.items()} == {"tf0": True, "gone": False}
    assert [(each["name"], each["reason"]) for each in failures] == [
        ("tf1", "invalid"),
        ("tf2", "ipInUseByAnotherResource"),
        ("lost", "notFound"),
    ]


def test_an_operation_that_fails_or_never_ends_is_a_failure(api: Any, session: Session) -> None:
    script = session.client.api.script
    script.add({"kind": "operation", "method": "POST", "code": "QUOTA_EXCEEDED", "message": "no"})
    orders = [order("tf0", "POST", "zones/us-central1-a/instances", body=machine())]
    assert module._ordered(api, orders, 5)[1] == [
        {
            "name": "tf0",
            "kind": "operation",
            "status": 403,
            "reason": "QUOTA_EXCEEDED",
            "message": "no",
        }
    ]
    script.add({"kind": "stuck", "method": "POST"})
    began_s = session.clock.now_s
    [failure] = module._ordered(api, orders, 30)[1]
    assert failure["kind"] == "late"
    assert failure["message"].startswith("insert is still ")
    assert 30 <= session.clock.now_s - began_s <= 35


def test_what_is_not_there_is_told_from_what_is_refused(api: Any) -> None:
    gone = {"path": "global/networks/none", "absent": [404]}
    assert module._asked(api, gone) == {"found": False, "status": 404, "answer": {}, "listed": []}
    with pytest.raises(module.ApiError, match="was not found"):
        module._asked(api, {"path": "global/networks/none"})
