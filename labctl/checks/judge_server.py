"""Judges of the join server: its unit, its cluster spec and its environment."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence

from labctl.checks.collect import SERVER_UNIT, SPEC_FILE, bare
from labctl.checks.facts import NodeFacts, Observed, UnitFacts
from labctl.checks.model import Verdict, ago, fail, ok, on, skipped, span
from labctl.errors import ConfigError, PeerUnreachableError
from labctl.lab.cluster import cluster_addresses
from labctl.lab.model import Node
from labctl.node.wire import JOB_NAME, spec_hash, spec_text

RESTART = "sudo systemctl restart tf-join-server"
STALE_AFTER_S = 0.5
CATCHING = ("grpc_proxy", "https_proxy", "http_proxy")
SPARING = ("no_grpc_proxy", "no_proxy")


def judge_unit(seen: Observed, node: Node) -> Verdict:
    """The join server is active on a worker, and not on task 0."""
    facts = seen.facts[node.name]
    unit = facts.units.get(SERVER_UNIT)
    if node.task_index == 0:
        if unit is not None and unit.running:
            return fail(
                "tf-join-server runs on task 0's node",
                "no join server there: the client's own server takes the port",
                on(node, "sudo systemctl disable --now tf-join-server"),
            )
        return ok("no join server, as it should be on task 0")
    trouble = server_trouble(facts, node)
    if trouble is None:
        assert unit is not None  # noqa: S101 no trouble means that there is one
        since = "" if unit.since_s is None else f" since {span(unit.since_s)}"
        again = f", restarted {unit.restarts} times" if unit.restarts else ""
        return ok(f"active{since}, pid {unit.main_pid}{again}")
    do = server_remedy(facts, node)
    return fail(
        trouble,
        "tf-join-server active",
        do,
        PeerUnreachableError(
            f"task:{node.task_index} has no join server: on {node.name} it is {trouble}",
            expected=f"tf-join-server active on {node.name}",
            do=do,
        ),
    )


def server_trouble(facts: NodeFacts, node: Node) -> str | None:
    """Return what is wrong with a worker's join server in some words, None if it is active."""
    unit = facts.units.get(SERVER_UNIT)
    if unit is None:
        return "not known to systemd"
    if unit.active == "active":
        return None
    if unit.load in {"not-found", "masked", "bad-setting", "error"}:
        return {"not-found": "not installed", "masked": "masked"}.get(unit.load, "not loadable")
    words = last_words(facts.journal)
    quote = f': "{words}"' if words and _fell(unit) else ""
    holders = [each for each in facts.holders if each.unit != SERVER_UNIT]
    held = f" (port {node.tf_port} held by {holders[0]})" if holders else ""
    return f"{_state(unit)}{quote}{held}"


def _fell(unit: UnitFacts) -> bool:
    return unit.active == "failed" or unit.sub == "auto-restart" or unit.restarts > 0


def _state(unit: UnitFacts) -> str:
    if unit.sub == "auto-restart":
        return f"restarting, {unit.restarts} times so far"
    if unit.active == "inactive":
        return f"inactive, stopped {ago(unit.since_s)}"
    if unit.active == "activating":
        return f"not ready yet, started {ago(unit.since_s)}"
    return f"{unit.active} {ago(unit.since_s)}"


def last_words(journal: Sequence[str]) -> str:
    """Return the line of a server's log that says best why it ended, "" if there is none.

    The join server's own `error` event comes first, then TensorFlow's last complaint, then the last line.
    """
    complaint = ""
    for line in reversed(journal):
        if line.startswith("{"):
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and event.get("event") == "error":
                return _short(str(event.get("message", "")))
        elif not complaint and ("rror" in line or "Could not" in line or line.startswith("E0000")):
            complaint = line
    plain = [line for line in journal if line.strip() and not line.startswith("{")]
    return _short(complaint or (plain[-1] if plain else ""))


def _short(text: str) -> str:
    text = text.strip().splitlines()[0] if text.strip() else ""
    return text if len(text) <= 160 else text[:159] + "…"


def server_remedy(facts: NodeFacts, node: Node) -> str:
    """Return what brings a worker's join server back."""
    unit = facts.units.get(SERVER_UNIT)
    if unit is None or unit.load in {"not-found", "bad-setting", "error"}:
        return "labctl provision"
    if unit.load == "masked":
        return f"{on(node, 'sudo systemctl unmask tf-join-server')}, then labctl provision"
    pids = [str(each.pid) for each in facts.holders if each.unit != SERVER_UNIT and each.pid]
    if pids:
        return on(node, f"sudo kill {' '.join(pids)}; {RESTART}")
    return f"{on(node, RESTART)}, or labctl provision"


def judge_spec(seen: Observed, node: Node) -> Verdict:
    """The node's cluster spec is the lab's."""
    spec, addresses = seen.facts[node.name].spec, cluster_addresses(seen.lab)
    wanted = spec_hash(addresses)
    if spec.text is None:
        found = f"{SPEC_FILE} on {node.name}: {spec.error or 'cannot be read'}"
    elif spec.text == spec_text(addresses):
        return ok(f"sha256 {wanted[:12]}, {len(addresses)} tasks")
    else:
        found = f"{SPEC_FILE} on {node.name} {spec_difference(spec.text, addresses)}"
    expected = f"the lab's own spec, sha256 {wanted[:12]}: {', '.join(addresses)}"
    do = "labctl provision"
    return fail(found, expected, do, ConfigError(found, expected=expected, do=do))


def spec_difference(text: str, addresses: Sequence[str]) -> str:
    """Say in what a node's spec differs from the lab's addresses."""
    try:
        tasks = json.loads(text)["cluster"][JOB_NAME]
        if not isinstance(tasks, list):
            return "has no list of tasks"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "is no cluster spec of labctl"
    if len(tasks) != len(addresses):
        return f"has {len(tasks)} tasks, the inventory {len(addresses)}"
    for index, (theirs, ours) in enumerate(zip(tasks, addresses, strict=True)):
        if theirs != ours:
            return f"has task:{index} at {theirs}, the inventory at {ours}"
    return "differs from the lab's spec in more than its addresses"


def judge_running_spec(seen: Observed, node: Node) -> Verdict:
    """The server that runs was started with the spec that is there now."""
    facts = seen.facts[node.name]
    unit, server = facts.units.get(SERVER_UNIT), facts.server
    if node.task_index == 0:
        return skipped("task 0 has no join server")
    if unit is None or not unit.running or server is None:
        return skipped("no join server runs")
    task = server.option("--task")
    if task is not None and task != str(node.task_index):
        found = f"the join server on {node.name} runs as task {task}"
        expected = f"task {node.task_index}, its tf_task_index"
        do = f"labctl provision, then {on(node, RESTART)}"
    elif server.ports and node.tf_port not in server.ports:
        ports = ", ".join(str(port) for port in server.ports)
        found = f"the join server on {node.name} listens on {ports}"
        expected = f"its tf_port {node.tf_port}"
        do = on(node, RESTART)
    elif (
        unit.started_at_s is not None
        and facts.spec.mtime_s is not None
        and facts.spec.mtime_s > unit.started_at_s + STALE_AFTER_S
    ):
        late = span(facts.spec.mtime_s - unit.started_at_s)
        found = f"the join server on {node.name} started {late} before its cluster spec changed"
        expected = "a server started with the spec of now"
        do = on(node, RESTART)
    else:
        return ok(f"task {node.task_index}, started with the spec of now")
    return fail(found, expected, do, ConfigError(found, expected=expected, do=do))


def judge_proxies(seen: Observed, node: Node) -> Verdict:
    """No proxy would catch TensorFlow's connections between the nodes."""
    facts = seen.facts[node.name]
    elsewhere = []
    if set(facts.manager_proxies) & set(CATCHING):
        elsewhere.append("systemd's environment, unset for TensorFlow's units")
    if set(facts.login_proxies) & set(CATCHING):
        elsewhere.append("/etc/environment, for logins only")
    note = f" (one in {' and in '.join(elsewhere)})" if elsewhere else ""
    if facts.server is None:
        return ok(f"none for TensorFlow{note}")
    if facts.server.proxies is None:
        return skipped("the join server's environment may not be read without sudo")
    peers = [bare(each.data_address) for each in seen.lab.nodes if each is not node]
    caught = catching(facts.server.proxies, peers)
    if caught is None:
        return ok(f"none for TensorFlow{note}")
    found = f"{caught} in the environment of tf-join-server on {node.name}"
    expected = "no proxy for gRPC between the nodes: it makes the peers unreachable silently"
    do = on(node, f"see systemctl cat tf-join-server, remove the variable; {RESTART}")
    return fail(found, expected, do, ConfigError(found, expected=expected, do=do))


def catching(variables: Mapping[str, str], peers: Sequence[str]) -> str | None:
    """Return the first `name=value` that gRPC would use for one of the peers, None if there is none.

    gRPC reads the lower-case names only; of `no_proxy`, literal addresses, name suffixes and CIDR help.
    """
    name = next((each for each in CATCHING if variables.get(each)), None)
    if name is None:
        return None
    spared = next((variables[each] for each in SPARING if variables.get(each)), "")
    entries = [entry.strip() for entry in spared.split(",") if entry.strip()]
    if all(any(_spares(entry, peer) for entry in entries) for peer in peers):
        return None
    return f"{name}={variables[name]}"


def _spares(entry: str, peer: str) -> bool:
    if "/" in entry:
        try:
            return ipaddress.ip_address(peer) in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    return peer.endswith(entry)
