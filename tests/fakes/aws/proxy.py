"""Stands before a cloud server that speaks AWS's protocols, and fails as it is told.

What it is not told to do it hands through, so all state stays in the server behind it. Service Quotas, which that
server does not have for machines, it answers itself.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self
from urllib.parse import parse_qs

# vCPUs that the account may run, by quota code: on demand and spot, standard, G and VT, P.
QUOTAS = {
    "L-1216C47A": 64.0,
    "L-34B43A08": 64.0,
    "L-DB2E81BA": 16.0,
    "L-3819A6DF": 16.0,
    "L-417A185B": 0.0,
    "L-7212CCBC": 0.0,
    "L-C4BD4855": 0.0,
}
_THROTTLED = 503


@dataclass
class Fault:
    """What goes wrong.

    Attributes:
        action: The API's name of the call, e.g. `RunInstances`; `*` for each.
        kind: `error` answers with code and message; `drop` closes the connection; `hang` does so after `hold_s`.
        code: AWS's error code.
        message: Its text.
        status: HTTP status.
        times: How often, None for always.
        containing: It concerns requests whose body has this only.
        hold_s: Seconds.
    """

    action: str
    kind: Literal["error", "hang", "drop"] = "error"
    code: str = ""
    message: str = "Refused, as the test wants it."
    status: int = 400
    times: int | None = None
    containing: str = ""
    hold_s: float = 600.0

    @classmethod
    def throttled(cls, action: str, times: int | None = None) -> Self:
        """The API refuses calls as there are too many."""
        return cls(
            action,
            code="RequestLimitExceeded",
            message="Request limit exceeded.",
            status=_THROTTLED,
            times=times,
        )

    @classmethod
    def expired(cls) -> Self:
        """The session's credentials are no longer valid."""
        return cls(
            "*",
            code="ExpiredToken",
            message="The security token included in the request is expired",
            status=403,
        )


@dataclass
class FaultProxy:
    """The server; a context.

    Attributes:
        upstream_port: Where the cloud server listens on 127.0.0.1.
        faults: Looked through in order for each call; the first that fits acts.
        held: State that machines are shown in, by node: they never leave it. (state, reason of AWS).
        quotas: vCPUs by quota code; one that is not there is refused.
        calls: Names of all calls so far.
    """

    upstream_port: int
    faults: list[Fault] = field(default_factory=list)
    held: dict[str, tuple[str, str]] = field(default_factory=dict)
    quotas: dict[str, float] = field(default_factory=lambda: dict(QUOTAS))
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self})
        )
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reset(self) -> None:
        """Do no harm from now on."""
        self.faults.clear()
        self.held.clear()
        self.quotas = dict(QUOTAS)
        self.calls.clear()

    def take(self, action: str, body: str) -> Fault | None:
        """Note a call and return what shall go wrong with it."""
        with self._lock:
            self.calls.append(action)
            for fault in self.faults:
                if fault.action not in {"*", action} or fault.containing not in body:
                    continue
                if fault.times is None:
                    return fault
                if fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def hold(self, fault: Fault) -> None:
        self._closing.wait(fault.hold_s)


def _action(headers: Message, body: str) -> str:
    target: str = headers.get("X-Amz-Target", "")
    if target:
        return target.rsplit(".", 1)[-1]
    return parse_qs(body).get("Action", [""])[0]


def _service(headers: Message) -> str:
    found = re.search(r"Credential=[^/]+/\d+/[^/]+/([^/]+)/", headers.get("Authorization", ""))
    return found[1] if found else ""


def _error_body(service: str, fault: Fault) -> tuple[str, bytes]:
    """Return content type and body of an error, in the protocol of the service."""
    inner = f"<Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>"
    if service == "servicequotas":
        return "application/x-amz-json-1.1", json.dumps(
            {"__type": fault.code, "message": fault.message}
        ).encode()
    if service == "ec2":
        text = f"<Response><Errors>{inner}</Errors><RequestID>fake</RequestID></Response>"
    else:
        text = f"<ErrorResponse>{inner}<RequestId>fake</RequestId></ErrorResponse>"
    return "text/xml", text.encode()


def _hold_states(body: bytes, held: dict[str, tuple[str, str]]) -> bytes:
    """Rewrite the state of machines in an answer of DescribeInstances."""
    root = ET.fromstring(body)  # noqa: S314 our own server's
    space = re.match(r"\{.*\}", root.tag)
    prefix = space[0] if space else ""
    codes = {"pending": "0", "terminated": "48"}
    for item in root.iter(f"{prefix}item"):
        state = item.find(f"{prefix}instanceState")
        if state is None:
            continue
        tags = {
            tag.findtext(f"{prefix}key"): tag.findtext(f"{prefix}value")
            for tag in item.iterfind(f"{prefix}tagSet/{prefix}item")
        }
        node = tags.get("labctl-node") or ""
        if node not in held or state.findtext(f"{prefix}name") == "terminated":
            continue
        name, reason = held[node]
        for tag, text in (("code", codes[name]), ("name", name)):
            part = state.find(f"{prefix}{tag}")
            if part is not None:
                part.text = text
        for old in item.findall(f"{prefix}stateReason"):
            item.remove(old)
        if reason:
            made = ET.SubElement(item, f"{prefix}stateReason")
            ET.SubElement(made, f"{prefix}code").text = reason.split(":", 1)[0]
            ET.SubElement(made, f"{prefix}message").text = reason
    rewritten: bytes = ET.tostring(root, encoding="utf-8")
    return rewritten


def _with_snapshots(body: bytes) -> bytes:
    """Name the snapshot of each disk, as AWS does even where there is none; moto leaves it out."""
    root = ET.fromstring(body)  # noqa: S314 our own server's
    space = re.match(r"\{.*\}", root.tag)
    prefix = space[0] if space else ""
    for disk in root.iterfind(f"{prefix}volumeSet/{prefix}item"):
        if disk.find(f"{prefix}snapshotId") is None:
            ET.SubElement(disk, f"{prefix}snapshotId")
    rewritten: bytes = ET.tostring(root, encoding="utf-8")
    return rewritten


def _amended(action: str, body: bytes, held: dict[str, tuple[str, str]]) -> bytes:
    if action == "DescribeInstances" and held:
        return _hold_states(body, held)
    return _with_snapshots(body) if action == "DescribeVolumes" else body


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultProxy
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        text = body.decode(errors="replace")
        action, service = _action(self.headers, text), _service(self.headers)
        fault = self.proxy.take(action, text)
        if fault is not None:
            self._fail(fault, service)
        elif service == "servicequotas":
            self._answer_quota(json.loads(text))
        else:
            self._hand_through(action, body)

    def _fail(self, fault: Fault, service: str) -> None:
        if fault.kind == "error":
            self._answer(fault.status, *_error_body(service, fault))
            return
        if fault.kind == "hang":
            self.proxy.hold(fault)
        self.close_connection = True

    def _answer_quota(self, asked: dict[str, str]) -> None:
        code = asked.get("QuotaCode", "")
        if code not in self.proxy.quotas:
            refused = Fault("", code="AccessDeniedException", message="not authorised")
            self._answer(400, *_error_body("servicequotas", refused))
            return
        quota = {"QuotaCode": code, "QuotaName": f"Quota {code}", "Value": self.proxy.quotas[code]}
        self._answer(200, "application/x-amz-json-1.1", json.dumps({"Quota": quota}).encode())

    def _hand_through(self, action: str, body: bytes) -> None:
        upstream = http.client.HTTPConnection("127.0.0.1", self.proxy.upstream_port, timeout=60)
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in {"connection", "accept-encoding"}
        }
        upstream.request("POST", self.path, body, headers)
        got = upstream.getresponse()
        content = got.read()
        upstream.close()
        if got.status == 200:
            content = _amended(action, content, self.proxy.held)
        self._answer(got.status, got.headers.get("Content-Type", "text/xml"), content)

    def _answer(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 its name there
        """Keep quiet."""
