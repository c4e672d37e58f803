"""A cloud in memory that answers as the playbooks do: a Runner for tests, with no process and no socket.

It passes the same contract as the real playbooks: variables in by the inventory, an answer out by a file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from labctl.errors import LabctlError
from labctl.playbook import PlaybookOutcome, TaskFailure
from labctl.providers.base import Report
from labctl.providers.cloud.model import Kind, Problem, Resource

_SHARED: tuple[Kind, ...] = ("network", "subnet", "gateway", "firewall", "key")
_FAKE_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAI"


@dataclass(slots=True)
class Fault:
    """What the next play of a verb does instead of its work.

    Attributes:
        message: Of the task that fails; "" for none.
        raises: What is raised.
        after: Machines that `create` makes first; None for all of its work.
        times: How often.
        answer: Text that is left as the answer of a play that ends well, None for the true one.
        timed_out: The play was ended at its deadline.
    """

    message: str = ""
    raises: LabctlError | None = None
    after: int | None = 0
    times: int = 1
    answer: str | None = None
    timed_out: bool = False


@dataclass(slots=True)
class FakeCloud:
    """One account.

    Attributes:
        provider: `aws` or `gcp`.
        unix_s: Its clock.
        resources: All that it has, with the id of the lab that each belongs to.
        problems: What `validate` finds.
        calls: Every playbook run so far.
        faults: By verb, what the next plays do instead.
        slow_to_leave: Questions after `destroy` to which machines still answer as leaving.
        sticky: Kinds that `destroy` cannot remove.
    """

    provider: str
    unix_s: Callable[[], float]
    resources: list[tuple[str, Resource]] = field(default_factory=list)
    problems: tuple[Problem, ...] = ()
    calls: list[str] = field(default_factory=list)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    slow_to_leave: int = 0
    sticky: frozenset[str] = frozenset()
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def fail(self, verb: str, fault: Fault) -> None:
        """Have the next play of a verb end otherwise."""
        self.faults.setdefault(verb, []).append(fault)

    def machine(self, node: str) -> Resource:
        """Return the machine of a node.

        Raises:
            StopIteration: There is none.
        """
        return next(
            each for _, each in self.resources if each.kind == "machine" and each.node == node
        )

    def change(self, node: str, **values: Any) -> None:
        """Change a machine by hand."""
        old = self.machine(node)
        self.resources = [
            (lab, replace(each, **values) if each is old else each) for lab, each in self.resources
        ]

    def delete(self, node: str) -> None:
        """Remove a machine and its disk by hand."""
        self.resources = [
            (lab, each)
            for lab, each in self.resources
            if each.node != node or each.kind not in {"machine", "disk"}
        ]

    def run(
        self, lab: str, playbook: str, inventory: Path, report: Report, timeout_s: float
    ) -> PlaybookOutcome:
        import yaml

        verb = playbook.removeprefix(f"{self.provider}_").removesuffix(".yml")
        self.calls.append(verb)
        values = yaml.safe_load(inventory.read_text())["all"]["vars"]
        assert values["lab_name"] == lab and timeout_s > 0  # noqa: S101 PT018 the contract
        folder = Path(values["lab_local_dir"])
        fault = self._fault(verb)
        if fault is not None and fault.raises is not None and fault.after == 0:
            raise fault.raises
        report(f"{verb} {lab}")
        if fault is None or fault.after != 0 or fault.answer is not None:
            self._act(verb, values, None if fault is None else fault.after)
        if fault is not None and fault.raises is not None:
            raise fault.raises
        if fault is not None and (fault.message or fault.timed_out):
            failure = TaskFailure("localhost", f"{verb} it", fault.message, unreachable=False)
            return self._outcome(playbook, folder, 2, (failure,), timed_out=fault.timed_out)
        name = "find" if verb in {"stop", "start"} else verb
        text = json.dumps(self._answer(verb, values))
        self._write(
            folder / "cloud" / f"{name}.json",
            text if fault is None or fault.answer is None else fault.answer,
        )
        return self._outcome(playbook, folder, 0, ())

    def _fault(self, verb: str) -> Fault | None:
        waiting = self.faults.get(verb, [])
        if not waiting:
            return None
        waiting[0].times -= 1
        return waiting[0] if waiting[0].times else waiting.pop(0)

    def _answer(self, verb: str, values: dict[str, Any]) -> dict[str, Any]:
        head = {"format": 1, "provider": self.provider}
        if verb == "validate":
            machines = [
                [
                    f"tf{index}",
                    values["lab_cloud_machine_type"],
                    f"img-1 {values['lab_cloud_image']}",
                    values["lab_cloud_zone"],
                ]
                for index in range(values["lab_cloud_nodes"])
            ]
            problems = [asdict(each) for each in self.problems]
            return {
                **head,
                "account": "123456789012",
                "machines": machines,
                "problems": problems,
                "unchecked": ["spot quota"],
            }
        mine = [asdict(each) for lab_id, each in self.resources if lab_id == values["lab_id"]]
        return {**head, "asked_unix_s": self.unix_s(), "resources": mine}

    def _act(self, verb: str, values: dict[str, Any], after: int | None) -> None:
        if verb == "create":
            self._create(values, after)
        elif verb == "find":
            self._find()
        elif verb != "validate":
            {"stop": self._stop, "start": self._start, "destroy": self._destroy}[verb](values)

    def _find(self) -> None:
        if self.slow_to_leave > 0:
            self.slow_to_leave -= 1
        elif any(each.state == "shutting-down" for _, each in self.resources):
            self.resources = [
                (lab, each) for lab, each in self.resources if each.state != "shutting-down"
            ]

    def _create(self, values: dict[str, Any], after: int | None) -> None:
        lab_id, local = values["lab_id"], Path(values["lab_local_dir"])
        there = {(each.kind, each.node) for lab, each in self.resources if lab == lab_id}
        for kind in _SHARED:
            if (kind, "") not in there and not (kind == "network" and values["lab_cloud_network"]):
                self._add(lab_id, kind, "", "available", billable=False)
        self._write(local / "id_ed25519", "private\n")
        self._write(local / "id_ed25519.pub", f"ssh-ed25519 {_FAKE_KEY} lab\n")
        made = 0
        for index in range(values["lab_cloud_nodes"]):
            node = f"tf{index}"
            if ("machine", node) in there:
                continue
            if after is not None and made >= after:
                return
            made += 1
            self._write(
                local / "host_keys" / f"{node}_ed25519.pub",
                f"ssh-ed25519 {_FAKE_KEY}{index} {node}\n",
            )
            self._add(
                lab_id, "machine", node, "running", billable=True,
                machine_type=values["lab_cloud_machine_type"], zone=values["lab_cloud_zone"],
                private_address=f"10.132.0.{10 + index}", public_address=f"198.51.100.{next(self._numbers) % 250}",
                created_unix_s=self.unix_s(),
            )  # fmt: skip
            self._add(lab_id, "disk", node, "in-use", billable=True)

    def _stop(self, values: dict[str, Any]) -> None:
        word = "TERMINATED" if self.provider == "gcp" else "stopped"
        for each in self._machines(values):
            if each.state == "running":
                self.change(
                    each.node,
                    state=word,
                    public_address="",
                    billable=False,
                    stopped_unix_s=self.unix_s(),
                )

    def _start(self, values: dict[str, Any]) -> None:
        for each in self._machines(values):
            if each.state != "running":
                self.change(
                    each.node, state="running", billable=True, stopped_unix_s=None,
                    public_address=f"203.0.113.{next(self._numbers) % 250}", created_unix_s=self.unix_s(),
                )  # fmt: skip

    def _destroy(self, values: dict[str, Any]) -> None:
        kept = []
        for lab, each in self.resources:
            if lab != values["lab_id"] or each.kind in self.sticky:
                kept.append((lab, each))
            elif self.slow_to_leave and each.kind == "machine":
                kept.append((lab, replace(each, state="shutting-down")))
        self.resources = kept

    def _machines(self, values: dict[str, Any]) -> list[Resource]:
        return [
            each
            for lab, each in self.resources
            if lab == values["lab_id"] and each.kind == "machine"
        ]

    def _add(self, lab_id: str, kind: Kind, node: str, state: str, **values: Any) -> None:
        number = next(self._numbers)
        resource = Resource(
            kind, f"{kind}-{number:04x}", f"labctl-{node or kind}", node, state, **values
        )
        self.resources.append((lab_id, resource))

    def _outcome(
        self,
        playbook: str,
        folder: Path,
        rc: int,
        failures: tuple[TaskFailure, ...],
        *,
        timed_out: bool = False,
    ) -> PlaybookOutcome:
        log = folder / "logs" / f"{playbook}.log"
        return PlaybookOutcome(playbook, rc, 0.1, (), (), {}, failures, log, timed_out)

    def _write(self, file: Path, text: str) -> None:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o600)
