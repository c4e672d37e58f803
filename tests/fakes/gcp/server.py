"""Answers HTTPS as Compute Engine does, from a `Cloud`, and takes orders of tests below `/stand-in/`."""

from __future__ import annotations

import json
import re
import ssl
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from tests.fakes.gcp import catalogue
from tests.fakes.gcp.cloud import Cloud, Operation
from tests.fakes.gcp.faults import Fault, Script
from tests.fakes.gcp.filters import matches
from tests.fakes.gcp.words import HOST, ApiError, Json, not_found

_ROOT: Final = "/compute/v1/projects/"
_SCOPED = re.compile(
    r"(?P<scope>zones/[^/]+|regions/[^/]+|global)(?:/(?P<collection>[A-Za-z]+)(?:/(?P<name>[^/]+)(?:/(?P<verb>[A-Za-z]+))?)?)?"
)
_COLLECTIONS: Final = {
    "zones": {"instances", "disks"},
    "regions": {"subnetworks", "addresses"},
    "global": {"networks", "firewalls"},
}
_KINDS: Final = {
    "instances": "compute#instance",
    "disks": "compute#disk",
    "addresses": "compute#address",
    "networks": "compute#network",
    "subnetworks": "compute#subnetwork",
    "firewalls": "compute#firewall",
}


class DropError(Exception):
    """The connection is to be closed without an answer."""


class StandIn:
    """The API: what it holds, whom it lets in, what goes wrong.

    Attributes:
        cloud: Resources and operations.
        token: The access token that is accepted.
        script: Scripted faults.
        calls: (method, path, status) of all calls.
        page_size: Resources of one page of a list.
    """

    def __init__(self, cloud: Cloud, token: str, page_size: int = 2) -> None:
        self.cloud = cloud
        self.token = self._first_token = token
        self.page_size = page_size
        self.script = Script()
        self.calls: list[tuple[str, str, int]] = []
        self._requests: dict[str, Operation] = {}
        self.closing = threading.Event()

    def call(self, method: str, target: str, authorization: str, body: Json) -> tuple[int, Json]:
        """Return status and JSON of one call to the API."""
        parsed = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(parsed.query, keep_blank_values=True))
        path = urllib.parse.unquote(parsed.path)
        status, answer = 200, {}
        try:
            if authorization != f"Bearer {self.token}":
                status, answer = 401, _UNAUTHENTICATED
            else:
                fault = self.script.due(method, path)
                self._break(fault)
                answer = self._route(method, path.removeprefix(_ROOT), query, body, fault)
                if fault is not None and fault.kind == "lost":
                    raise DropError
        except ApiError as error:
            status, answer = error.status, error.body()
        self.calls.append((method, path, status))
        return status, answer

    def order(self, method: str, path: str, body: Json) -> tuple[int, Json]:
        """Return status and JSON of an order of a test."""
        with self.cloud.lock:
            if (method, path) == ("POST", "/stand-in/faults"):
                self.script.add(body)
            elif (method, path) == ("DELETE", "/stand-in/faults"):
                self.script.clear()
            elif (method, path) == ("POST", "/stand-in/power-off"):
                self.cloud.power_off(str(body["name"]))
            elif (method, path) == ("POST", "/stand-in/remove"):
                self._remove(str(body["name"]), keep_disk=bool(body.get("keep_disk")))
            elif (method, path) == ("POST", "/stand-in/reset"):
                self._reset()
                self.cloud.operation_s = float(body.get("operation_s", self.cloud.operation_s))
            elif (method, path) == ("POST", "/stand-in/pace"):
                self.cloud.operation_s = float(body["operation_s"])
            elif (method, path) == ("POST", "/stand-in/token"):
                self.token = str(body["token"])
            elif (method, path) == ("GET", "/stand-in/state"):
                self.cloud.settle()
                return 200, {
                    "resources": [
                        {"collection": key[0], "scope": key[1], "resource": each}
                        for key, each in sorted(self.cloud.resources.items())
                    ],
                    "calls": self.calls,
                }
            else:
                return 404, {"error": f"no order {method} {path}"}
        return 200, {}

    def _reset(self) -> None:
        """Begin anew: nothing there, nothing wrong, nothing called."""
        self.cloud = Cloud(self.cloud.project, operation_s=self.cloud.operation_s)
        self.token = self._first_token
        self.script.clear()
        self.calls.clear()

    def _remove(self, name: str, *, keep_disk: bool) -> None:
        """Delete an instance as somebody else would, at once."""
        for collection, scope, each in list(self.cloud.resources):
            if collection == "instances" and each == name:
                if keep_disk:
                    self.cloud.get(collection, scope, each)["disks"][0]["autoDelete"] = False
                operation = self.cloud.delete(collection, scope, each)
                operation.duration_s = 0
                self.cloud.settle()

    def _break(self, fault: Fault | None) -> None:
        if fault is None:
            return
        if fault.kind == "hang":
            self.closing.wait(600)
            raise DropError
        if fault.kind == "drop":
            raise DropError
        if fault.kind == "error":
            raise ApiError(fault.status, fault.reason, fault.message)

    def _route(
        self, method: str, path: str, query: dict[str, str], body: Json, fault: Fault | None
    ) -> Json:
        project, _, rest = path.partition("/")
        if project != self.cloud.project:
            return self._public(project, rest)
        with self.cloud.lock:
            if not rest:
                return self.cloud.about()
            aggregated = re.fullmatch(r"aggregated/([A-Za-z]+)", rest)
            if aggregated is not None and method == "GET":
                return self._aggregated(aggregated[1], query, fault)
            scoped = _SCOPED.fullmatch(rest)
            if scoped is None:
                raise not_found(path)
            return self._scoped(method, scoped.groupdict(""), query, body, fault)

    def _public(self, project: str, rest: str) -> Json:
        asked = re.fullmatch(r"global/images(?:/(family)/([^/]+)|/([^/]+))?", rest)
        own = [
            each
            for each in catalogue.images(HOST)
            if each["selfLink"].startswith(f"{HOST}/projects/{project}/")
        ]
        if not own or asked is None:
            raise ApiError(
                403,
                "forbidden",
                f"Required 'compute.images.get' permission for 'projects/{project}'",
            )
        for each in own:
            if asked[1] and each["family"] == asked[2]:
                return each
            if asked[3] == each["name"]:
                return each
        raise not_found(f"projects/{project}/{rest}")

    def _scoped(
        self,
        method: str,
        at: dict[str, str],
        query: dict[str, str],
        body: Json,
        fault: Fault | None,
    ) -> Json:
        scope, collection, name = at["scope"], at["collection"], at["name"]
        if not collection:
            return self._place(scope)
        if collection == "operations":
            return self._operation(scope, name)
        offered = self._offered(scope, collection, name)
        if offered is not None:
            return offered
        if collection not in _COLLECTIONS[scope.partition("/")[0]]:
            raise not_found(f"projects/{self.cloud.project}/{scope}/{collection}")
        self._place(scope)
        if method == "GET":
            return (
                self.cloud.get(collection, scope, name)
                if name
                else self._list(collection, scope, query)
            )
        # An order given twice under one id is carried out once.
        request = query.get("requestId", "")
        accepted = self._requests.get(request) or self._accepted(method, at, body)
        if request:
            self._requests[request] = accepted
        if fault is not None and fault.kind == "stuck":
            accepted.duration_s = None
        if fault is not None and fault.kind == "operation":
            accepted.failure = (fault.code, fault.message)
        return self.cloud.describe(accepted)

    def _accepted(self, method: str, at: dict[str, str], body: Json) -> Operation:
        scope, collection, name, verb = at["scope"], at["collection"], at["name"], at["verb"]
        if method == "POST" and not name:
            return self.cloud.insert(collection, scope, body)
        if method == "DELETE":
            return self.cloud.delete(collection, scope, name)
        if method == "PATCH":
            return self.cloud.patch(collection, scope, name, body)
        if method == "POST" and verb and collection == "instances":
            return self.cloud.verb(scope, name, verb, body)
        raise ApiError(405, "methodNotAllowed", f"{method} is not offered here")

    def _place(self, scope: str) -> Json:
        kind, _, name = scope.partition("/")
        if kind == "regions":
            return self.cloud.region(name)
        if kind == "zones":
            for region, zones in catalogue.ZONES.items():
                if name in zones:
                    return {
                        "kind": "compute#zone",
                        "id": str(2000 + zones.index(name)),
                        "name": name,
                        "status": "UP",
                        "region": f"{self.cloud.base}/regions/{region}",
                        "selfLink": f"{self.cloud.base}/zones/{name}",
                    }
            raise not_found(f"projects/{self.cloud.project}/zones/{name}")
        return {}

    def _offered(self, scope: str, collection: str, name: str) -> Json | None:
        make: Any = {
            "machineTypes": catalogue.machine_type,
            "acceleratorTypes": catalogue.accelerator,
        }.get(collection)
        if make is None:
            return None
        zone = scope.partition("/")[2]
        self._place(scope)
        known = catalogue.MACHINE_TYPES if collection == "machineTypes" else catalogue.ACCELERATORS
        if name:
            if name not in known or not catalogue.offered(zone, name):
                raise not_found(f"projects/{self.cloud.project}/{scope}/{collection}/{name}")
            found: Json = make(self.cloud.base, zone, name)
            return found
        return {
            "kind": f"compute#{collection[:-1]}List",
            "items": [
                make(self.cloud.base, zone, each) for each in known if catalogue.offered(zone, each)
            ],
        }

    def _operation(self, scope: str, name: str) -> Json:
        found: Operation | None = self.cloud.operations.get(name)
        if found is None or found.scope != scope:
            raise not_found(f"projects/{self.cloud.project}/{scope}/operations/{name}")
        return self.cloud.describe(found)

    def _page(self, found: list[Any], query: dict[str, str]) -> tuple[list[Any], Json]:
        start = int(query.get("pageToken") or 0)
        size = min(self.page_size, int(query.get("maxResults") or 500))
        more = {"nextPageToken": str(start + size)} if start + size < len(found) else {}
        return found[start : start + size], more

    def _matching(self, collection: str, query: dict[str, str]) -> list[tuple[str, Json]]:
        text = query.get("filter", "")
        try:
            return [
                each for each in self.cloud.listed(collection) if not text or matches(text, each[1])
            ]
        except ValueError as error:
            raise ApiError(
                400, "invalid", f"Invalid value for field 'filter': '{text}'. {error}."
            ) from error

    def _list(self, collection: str, scope: str, query: dict[str, str]) -> Json:
        found = [each for place, each in self._matching(collection, query) if place == scope]
        page, more = self._page(found, query)
        answer: Json = {
            "kind": f"{_KINDS[collection]}List",
            "id": f"projects/{self.cloud.project}/{scope}/{collection}",
        }
        return {**answer, **({"items": page} if page else {}), **more}

    def _aggregated(self, collection: str, query: dict[str, str], fault: Fault | None) -> Json:
        if collection not in _KINDS or collection in _COLLECTIONS["global"]:
            raise not_found(f"projects/{self.cloud.project}/aggregated/{collection}")
        page, more = self._page(self._matching(collection, query), query)
        nothing = {
            "code": "NO_RESULTS_ON_PAGE",
            "message": "There are no results for scope on this page.",
        }
        items: dict[str, Json] = {
            f"zones/{zone}": {"warning": nothing}
            for zones in catalogue.ZONES.values()
            for zone in zones
        }
        if collection not in _COLLECTIONS["zones"]:
            items = {f"regions/{region}": {"warning": nothing} for region in catalogue.ZONES}
        for scope, each in page:
            items[scope].pop("warning", None)
            items[scope].setdefault(collection, []).append(each)
        if fault is not None and fault.kind == "partial":
            gone = next(iter(items))
            items[gone] = {"warning": {"code": "UNREACHABLE", "message": f"{gone} did not answer."}}
        return {"kind": f"{_KINDS[collection]}AggregatedList", "items": items, **more}


_UNAUTHENTICATED: Final[Json] = {
    "error": {
        "code": 401,
        "message": "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or"
        " other valid authentication credential.",
        "errors": [
            {
                "message": "Invalid Credentials",
                "domain": "global",
                "reason": "authError",
                "location": "Authorization",
                "locationType": "header",
            }
        ],
        "status": "UNAUTHENTICATED",
    }
}


def serve(
    stand_in: StandIn, address: str, port: int, certificate: Path, key: Path
) -> ThreadingHTTPServer:
    """Return a server, bound and ready; the caller runs `serve_forever` and `shutdown`.

    Args:
        stand_in: What answers.
        address: Address of this machine.
        port: Port, 0 for any.
        certificate: PEM file.
        key: PEM file of its key.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base's name
            pass

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length) if length else b""
            body = json.loads(raw) if raw.strip() else {}
            try:
                if self.path.startswith("/stand-in/"):
                    status, answer = stand_in.order(self.command, self.path, body)
                else:
                    authorization = self.headers.get("Authorization", "")
                    status, answer = stand_in.call(
                        self.command, self.path, authorization, body or {}
                    )
            except DropError:
                self.close_connection = True
                return
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=UTF-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 names of the base

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def finish_request(self, request: Any, client_address: Any) -> None:
            # The handshake belongs to the connection's own thread: a client that is slow at it holds up no other.
            with context.wrap_socket(request, server_side=True) as wrapped:
                super().finish_request(wrapped, client_address)

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing of a client that went away."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return Server((address, port), Handler)
