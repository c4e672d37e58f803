#!/usr/bin/python
"""Ansible module: questions and orders to Compute Engine, bounded in time, tried again where the API says so.

google.cloud's own modules make and remove networks, subnets and firewall rules. What they lack is here:

- gcp_compute_instance knows no limit of the run time (`scheduling.maxRunDuration`), no provisioning model and no
  labels of boot disks; and where it starts or stops a machine without being told its labels, it takes them away, by
  which a lab finds what it pays for.
- Their lists see one zone, and take a 404 for a traceback.
- They read no quotas, machine types or accelerators.
- None bounds a request or an operation in time, or waits when the API says `rateLimitExceeded`.

Credentials are found as they find them: by their module_utils, from GCP_AUTH_KIND and the variables beside it.
"""

from __future__ import annotations

import re
import time
import uuid
from contextlib import suppress
from typing import Any

from ansible_collections.google.cloud.plugins.module_utils.gcp_utils import GcpModule, GcpSession

with suppress(ImportError):  # GcpSession says it
    import requests
    from google.auth import exceptions as auth_errors

DOCUMENTATION = r"""
module: lab_gcp_api
short_description: Questions and orders to Compute Engine
description: Asks any number of questions, or gives any number of orders and waits for all of them together.
author: labctl
options:
  ask:
    description:
      - By name, a path below the project (or one that begins with C(projects/)), and optionally C(list), the name
        of the collection that the path lists, and C(absent), HTTP statuses that mean "not there".
    type: dict
    default: {}
  do:
    description: Orders with C(name), C(method), C(path), and optionally C(body), C(query) and C(absent).
    type: list
    elements: dict
    default: []
  answer_s:
    description: How long one question or order may take, tries together.
    type: int
    default: 60
  wait_s:
    description: How long all orders may take to be carried out.
    type: int
    default: 300
"""

RETURN = r"""
answers:
  description: By name, C(found), and C(answer) or C(listed).
  type: dict
  returned: always
failures:
  description: Each with name, kind (auth, transport, api, operation or late), status, reason and message.
  type: list
  returned: on failure
"""

_ROOT = "https://compute.googleapis.com/compute/v1/"
_SCOPE = re.compile(r"(?:zones/[^/]+|regions/[^/]+|global)(?=/)")
_AGAIN = frozenset({429, 500, 502, 503, 504})
_AGAIN_REASONS = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "backendError"})
_READ_TIMEOUT_S = 20.0


class ApiError(Exception):
    """The API did not do it.

    Attributes:
        kind: `auth`, `transport`, `api`, `operation` or `late`.
        status: HTTP status, 0 for none.
        reason: As the API names it, "" for none.
    """

    def __init__(self, kind: str, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.reason = reason

    def failure(self, name: str) -> dict[str, Any]:
        """Return the failure of a question or order, as the module answers it."""
        return {
            "name": name,
            "kind": self.kind,
            "status": self.status,
            "reason": self.reason,
            "message": str(self),
        }


class Api:
    """Compute Engine, for one project.

    Args:
        session: Sends requests, with credentials.
        project: Its id.
        answer_s: How long one call may take, tries together.
    """

    def __init__(self, session: Any, project: str, answer_s: float) -> None:
        self._session = session
        self.project = project
        self.answer_s = answer_s

    def call(
        self, method: str, path: str, query: dict[str, Any] | None = None, body: Any = None
    ) -> Any:
        """Return the JSON that a call is answered with.

        Args:
            method: HTTP method.
            path: Below the project, or from `projects/` on.
            query: Of the URL.
            body: JSON.

        Raises:
            ApiError: It was refused, or not answered in time.
        """
        root = "" if path.startswith("projects/") else f"projects/{self.project}/"
        url = (_ROOT + root + path).rstrip("/")
        deadline = time.monotonic() + self.answer_s
        pause_s = 0.5
        while True:
            try:
                return self._once(method, url, query, body, deadline)
            except ApiError as error:
                again = (
                    error.kind == "transport"
                    or error.status in _AGAIN
                    or error.reason in _AGAIN_REASONS
                )
                if not again or time.monotonic() + pause_s >= deadline:
                    raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 8.0)

    def _once(
        self, method: str, url: str, query: dict[str, Any] | None, body: Any, deadline: float
    ) -> Any:
        left_s = max(deadline - time.monotonic(), 1.0)
        try:
            response = self._session.request(
                method,
                url,
                params=query or {},
                json=body,
                timeout=(min(10.0, left_s), min(_READ_TIMEOUT_S, left_s)),
                max_allowed_time=left_s,
            )
        except auth_errors.TransportError as error:
            raise ApiError("transport", str(error)) from error
        except auth_errors.GoogleAuthError as error:
            raise ApiError("auth", str(error.args[0] if error.args else error)) from error
        except requests.exceptions.RequestException as error:
            raise ApiError("transport", str(error)) from error
        try:
            answer = response.json() if response.content else {}
        except ValueError:
            answer = {"error": {"message": response.text[:200]}}
        error = answer.get("error") if isinstance(answer, dict) else None
        # An operation's own `error` has no code: it is no refusal of the call.
        if response.status_code >= 400:
            listed = (error or {}).get("errors") or [{}]
            raise ApiError(
                "auth" if response.status_code == 401 else "api",
                str((error or {}).get("message") or response.reason),
                response.status_code,
                str(listed[0].get("reason") or (error or {}).get("status") or ""),
            )
        return answer

    def items(self, path: str, collection: str) -> list[Any]:
        """Return all of a list, or of a list over all zones or regions.

        Raises:
            ApiError: It was refused, or a part of it could not be asked for.
        """
        found: list[Any] = []
        query: dict[str, Any] = {}
        while True:
            page = self.call("GET", path, query)
            listed = page.get("items") or []
            parts = list(listed.values()) if isinstance(listed, dict) else [{collection: listed}]
            for part in [*parts, page]:
                code = (part.get("warning") or {}).get("code", "NO_RESULTS_ON_PAGE")
                if code != "NO_RESULTS_ON_PAGE" or part.get("unreachables"):
                    text = (part.get("warning") or {}).get("message") or "a part is unreachable"
                    raise ApiError("api", f"{path}: {text}", 200, code)
            # Metadata has a machine's host key: it is left out here, and so appears in no output.
            found += [
                {key: value for key, value in each.items() if key != "metadata"}
                for part in parts
                for each in part.get(collection) or []
            ]
            if not page.get("nextPageToken"):
                return found
            query["pageToken"] = page["nextPageToken"]

    def finish(self, operation: dict[str, Any], path: str, deadline: float) -> None:
        """Wait until an operation is done.

        Args:
            operation: As the API accepted it.
            path: Of the order, which says where the operation is asked for.
            deadline: Monotonic, seconds.

        Raises:
            ApiError: It failed, or is not done in time.
        """
        scope = _SCOPE.search(path)
        at = f"{scope.group() if scope else 'global'}/operations/{operation['name']}"
        while operation.get("status") != "DONE":
            if time.monotonic() >= deadline:
                kind = operation.get("operationType", "order")
                raise ApiError("late", f"{kind} is still {operation.get('status')}")
            time.sleep(1.0)
            operation = self.call("GET", at)
        failed = (operation.get("error") or {}).get("errors") or []
        if failed:
            raise ApiError(
                "operation",
                "; ".join(str(each.get("message") or each.get("code")) for each in failed),
                int(operation.get("httpErrorStatusCode") or 0),
                str(failed[0].get("code") or ""),
            )


def _session(module: GcpModule) -> Any:
    try:
        return GcpSession(module, "compute").session()
    except (auth_errors.GoogleAuthError, OSError, ValueError) as error:
        raise ApiError("auth", str(error)) from error


def _asked(api: Api, question: dict[str, Any]) -> dict[str, Any]:
    try:
        if question.get("list"):
            listed = api.items(question["path"], question["list"])
            return {"found": True, "listed": listed}
        return {"found": True, "answer": api.call("GET", question["path"])}
    except ApiError as error:
        if error.status not in question.get("absent", []):
            raise
        return {"found": False, "status": error.status, "answer": {}, "listed": []}


def _ordered(
    api: Api, orders: list[dict[str, Any]], wait_s: float
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Give all orders, then wait for all; return answers and failures."""
    answers: dict[str, Any] = {}
    failures, accepted = [], []
    for order in orders:
        # With an id of its own, an order that is given twice is carried out once.
        query = {**(order.get("query") or {}), "requestId": str(uuid.uuid4())}
        try:
            answer = api.call(order["method"], order["path"], query, order.get("body"))
            answers[order["name"]] = {"found": True, "answer": answer}
            accepted.append((order, answer))
        except ApiError as error:
            if error.status in order.get("absent", []):
                answers[order["name"]] = {"found": False, "answer": {}}
            else:
                failures.append(error.failure(order["name"]))
    deadline = time.monotonic() + wait_s
    for order, operation in accepted:
        try:
            api.finish(operation, order["path"], deadline)
        except ApiError as error:
            if error.status not in order.get("absent", []):
                failures.append(error.failure(order["name"]))
    return answers, failures


def main() -> None:
    module = GcpModule(
        argument_spec={
            "ask": {"type": "dict", "default": {}},
            "do": {"type": "list", "elements": "dict", "default": []},
            "answer_s": {"type": "int", "default": 60},
            "wait_s": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    if not module.params["scopes"]:
        module.params["scopes"] = ["https://www.googleapis.com/auth/compute"]
    answers: dict[str, Any] = {}
    failures: list[dict[str, Any]] = []
    orders = module.params["do"]
    name = next(iter(module.params["ask"]), "do")
    try:
        api = Api(_session(module), module.params["project"], float(module.params["answer_s"]))
        for name, question in module.params["ask"].items():
            answers[name] = _asked(api, question)
        if orders and not module.check_mode:
            given, failures = _ordered(api, orders, float(module.params["wait_s"]))
            answers.update(given)
    except ApiError as error:
        failures = [error.failure(name)]
    changed = bool(orders) and (
        module.check_mode or any(answers.get(each["name"], {}).get("found") for each in orders)
    )
    if failures:
        text = "; ".join(f"{each['name']}: {each['message']}" for each in failures)
        module.fail_json(msg=text, failures=failures, answers=answers, changed=changed)
    module.exit_json(changed=changed, answers=answers)


if __name__ == "__main__":
    main()
