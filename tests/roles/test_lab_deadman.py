"""When a node powers itself off: the clocks, idleness and warnings of `roles/lab_deadman/files/deadman.py`."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = CHECKOUT / "roles/lab_deadman/files/deadman.py"
T0 = 1_796_000_000.0
HOUR = 3600.0
UNITS = ("lab-deadman.service", "lab-deadman-backstop.service", "lab-deadman-backstop.timer")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deadman", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["deadman"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


deadman: Any = load()


class FakeNode(deadman.Node):  # type: ignore[misc]
    """A machine whose clocks and units the test holds; its files are real."""

    def __init__(self, root: Path, max_hours: float = 4, idle_minutes: float = 0) -> None:
        super().__init__(
            deadman.Places(
                config=root / "config.json",
                state=root / "state.json",
                runs=root / "runs",
                motd=root / "motd",
                scheduled=root / "scheduled",
                boot=root / "boot/id",
            )
        )
        self.places.runs.mkdir()
        self.configure(max_hours, idle_minutes)
        self.unix_s, self.boot_s, self.boot = T0, 50.0, "first"
        self.running: set[str] = {deadman.UNIT}
        self.told: list[str] = []
        self.off_at: list[float] = []

    def configure(self, max_hours: float, idle_minutes: float) -> None:
        self.places.config.write_text(
            json.dumps({"max_hours": max_hours, "idle_minutes": idle_minutes})
        )

    def now(self) -> Any:
        return deadman.Instant(self.unix_s, self.boot_s, self.boot)

    def active(self, unit: str) -> bool:
        return unit in self.running

    def tell(self, text: str) -> None:
        self.told.append(text)

    def power_off(self) -> None:
        self.off_at.append(self.boot_s)

    def passes(self, seconds: float) -> None:
        self.unix_s += seconds
        self.boot_s += seconds

    def write_run(self, at_unix_s: float) -> None:
        run = self.places.runs / "20261130T141502Z-3fa9c1"
        run.mkdir(exist_ok=True)
        (run / "events.jsonl").write_text("{}\n")
        for path in (run / "events.jsonl", run):
            os.utime(path, (at_unix_s, at_unix_s))


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look once a minute, and leave writing to the disk to the kernel: hours pass in these tests."""
    monkeypatch.setattr(deadman, "TICK_S", 60.0)
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def watched(node: FakeNode, seconds: float, watch: Any = None) -> float | None:
    """Let time pass under the watch; return the seconds until the machine was powered off, None if it was not."""
    watch = watch or deadman.Watch(node)
    began = node.boot_s
    while node.boot_s - began < seconds:
        wait_s = max(0.2, watch.look())
        if node.off_at:
            return node.off_at[0] - began
        node.passes(min(wait_s, began + seconds - node.boot_s + 0.001))
    return None


def deadline(node: FakeNode) -> float:
    return float(node.load().deadline_unix_s)


class TestDeadline:
    def test_powers_off_after_the_hours_and_not_before(self, node: FakeNode) -> None:
        off_s = watched(node, 5 * HOUR)
        assert off_s is not None
        assert 0 <= off_s - 4 * HOUR < 1

    def test_warns_twice_and_says_how_to_put_it_off(self, node: FakeNode) -> None:
        watched(node, 5 * HOUR)
        told = [text.partition(", at ")[0] for text in node.told]
        assert told[:2] == [
            "This machine powers itself off in 10 minutes",
            "This machine powers itself off in 2 minutes",
        ]
        assert all("labctl extend" in text for text in node.told[:2])
        assert told[2].startswith("This machine powers itself off now: its deadline")
        assert len(told) == 3

    def test_login_is_told_when(self, node: FakeNode) -> None:
        deadman.Watch(node).look()
        assert "2026-" in node.places.motd.read_text()

    def test_another_provision_does_not_put_it_off(self, node: FakeNode) -> None:
        watched(node, HOUR)
        assert deadman.arm(node) is False
        assert deadline(node) == pytest.approx(T0 + 4 * HOUR)

    @pytest.mark.parametrize(
        ("hours", "expected_s"), [(8, 4 * HOUR), (3, 3 * HOUR), (0.5, HOUR + deadman.GRACE_S)]
    )
    def test_other_hours_only_bring_it_forward(
        self, node: FakeNode, hours: float, expected_s: float
    ) -> None:
        watched(node, HOUR)
        node.configure(hours, 0)
        deadman.arm(node)
        assert deadline(node) == pytest.approx(T0 + expected_s, abs=1)

    def test_deadline_that_is_asked_for_later_counts_from_then(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, max_hours=0, idle_minutes=60)
        deadman.arm(node)
        node.passes(HOUR)
        node.configure(2, 60)
        deadman.arm(node)
        assert deadline(node) == pytest.approx(T0 + 3 * HOUR)

    def test_hours_that_are_no_longer_asked_for_end_it(self, node: FakeNode) -> None:
        deadman.arm(node)
        node.configure(0, 60)
        deadman.arm(node)
        assert node.load().deadline_unix_s is None

    def test_scheduled_shutdown_is_taken_over(
        self, node: FakeNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[tuple[str, ...]] = []
        monkeypatch.setattr(deadman, "_output", lambda *argv: ran.append(argv))
        for hours, expected in ((2, 2), (3, 2)):
            usec = int((T0 + hours * HOUR) * 1e6)
            node.places.scheduled.write_text(f"USEC={usec}\nWARN_WALL=1\nMODE=poweroff\n")
            assert deadman.arm(node)
            assert deadline(node) == T0 + expected * HOUR
        assert ran == [("shutdown", "-c")] * 2

    @pytest.mark.parametrize("text", ["USEC=5\nMODE=reboot\n", "MODE=poweroff\n", "", "\x00"])
    def test_what_is_no_scheduled_power_off_is_left(
        self, node: FakeNode, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        monkeypatch.setattr(deadman, "_output", lambda *argv: pytest.fail(str(argv)))
        node.places.scheduled.write_text(text)
        deadman.arm(node)
        assert deadline(node) == T0 + 4 * HOUR


class TestExtending:
    def extend(self, node: FakeNode, hours: float, *, shorten: bool = False) -> float:
        deadman._change(node, hours, shorten=shorten)
        return (deadline(node) - node.unix_s) / HOUR

    def test_counts_from_now_and_never_brings_forward(self, node: FakeNode) -> None:
        watched(node, HOUR)
        assert self.extend(node, 6) == pytest.approx(6)
        assert self.extend(node, 1) == pytest.approx(6)
        assert self.extend(node, 1, shorten=True) == pytest.approx(1)

    def test_after_the_last_warning_warns_anew(self, node: FakeNode) -> None:
        watch = deadman.Watch(node)
        watched(node, 4 * HOUR - 60, watch)
        assert len(node.told) == 2
        self.extend(node, 1)
        assert watched(node, 2 * HOUR, watch) == pytest.approx(HOUR, abs=1)
        assert len(node.told) == 5

    def test_to_less_than_the_first_warning_still_gives_the_second(self, node: FakeNode) -> None:
        watch = deadman.Watch(node)
        watched(node, 4 * HOUR - 60, watch)
        self.extend(node, 5 / 60)
        watched(node, 0.2, watch)
        watched(node, HOUR, watch)
        assert [text.partition(", at ")[0].rpartition(" in ")[2] for text in node.told[:3]] == [
            "10 minutes",
            "2 minutes",
            "2 minutes",
        ]

    @pytest.mark.parametrize("hours", ["0", "-1", "nan", "inf", "1e9", "two", ""])
    def test_what_is_no_number_of_hours_is_refused(
        self, hours: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            deadman.main(["extend", "--", hours])
        assert ended.value.code == 2
        assert "no number of hours" in capsys.readouterr().err

    def test_unarmed_machine_says_so(
        self, node: FakeNode, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            self.extend(node, 1)
        assert ended.value.code == 1
        said = capsys.readouterr().err
        assert "no timer is armed here\n  expected  " in said
        assert "\n  do        " in said


class TestClock:
    @pytest.mark.parametrize("by_s", [-40 * HOUR, -90.0, 90.0, 40 * HOUR])
    def test_set_while_up_changes_nothing_in_the_time_left(
        self, node: FakeNode, by_s: float
    ) -> None:
        watch = deadman.Watch(node)
        watched(node, HOUR, watch)
        node.unix_s += by_s
        assert watched(node, 5 * HOUR, watch) == pytest.approx(3 * HOUR, abs=1)

    def test_time_off_counts(self, node: FakeNode) -> None:
        watched(node, HOUR)
        node.unix_s, node.boot_s, node.boot = node.unix_s + HOUR, 5.0, "second"
        assert watched(node, 5 * HOUR) == pytest.approx(2 * HOUR, abs=1)

    def test_gone_back_over_a_reboot_does_not_put_it_off(self, node: FakeNode) -> None:
        watched(node, HOUR)
        node.unix_s, node.boot_s, node.boot = 0.0, 5.0, "second"
        assert watched(node, 9 * HOUR) == pytest.approx(3 * HOUR, abs=deadman.TICK_S)

    def test_started_after_its_deadline_leaves_time_to_extend(self, node: FakeNode) -> None:
        watched(node, HOUR)
        node.unix_s, node.boot_s, node.boot = node.unix_s + 50 * HOUR, 5.0, "second"
        assert watched(node, HOUR) == pytest.approx(deadman.GRACE_S, abs=1)
        assert "in 10 minutes" in node.told[0]

    @settings(max_examples=30)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["set", "reboot", "provision", "restart"]),
                st.floats(-100 * HOUR, 100 * HOUR),
            ),
            max_size=6,
        )
    )
    def test_nothing_but_extending_keeps_it_up_for_longer(
        self, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, float]]
    ) -> None:
        node = FakeNode(tmp_path_factory.mktemp("node"))
        watch = deadman.Watch(node)
        up_s, boots = 0.0, itertools.count()
        for kind, by_s in [*steps, ("", 0.0)]:
            off_s = watched(node, 0.4 * HOUR if kind else 9 * HOUR, watch)
            up_s += 0.4 * HOUR if off_s is None else off_s
            if off_s is not None:
                break
            if kind == "set":
                node.unix_s += by_s
            elif kind == "reboot":
                node.unix_s, node.boot_s, node.boot = node.unix_s + by_s, 1.0, str(next(boots))
            elif kind == "provision":
                deadman.arm(node)
            if kind in {"reboot", "restart"}:
                watch = deadman.Watch(node)
        assert node.off_at
        # Each boot after the deadline gives its grace, and no more than that.
        reboots = sum(kind == "reboot" for kind, _ in steps)
        assert up_s <= 4 * HOUR + 1 + reboots * (deadman.GRACE_S + deadman.TICK_S)


class TestIdleness:
    @pytest.fixture
    def node(self, tmp_path: Path) -> FakeNode:
        return FakeNode(tmp_path, max_hours=0, idle_minutes=30)

    def test_powers_off_after_the_minutes_and_says_why(self, node: FakeNode) -> None:
        assert watched(node, 2 * HOUR) == pytest.approx(1800, abs=1)
        assert "30 minutes without a run" in node.told[-1]

    def test_active_run_keeps_it_up(self, node: FakeNode) -> None:
        node.running.add(deadman.RUN_UNIT)
        watch = deadman.Watch(node)
        assert watched(node, 2 * HOUR, watch) is None
        node.running.remove(deadman.RUN_UNIT)
        off_s = watched(node, 2 * HOUR, watch)
        assert off_s is not None
        # Looked at first when the end comes near: at most that much before the run's end.
        assert 1800 - 1200 <= off_s <= 1800 + 1

    def test_written_run_directory_counts(self, node: FakeNode) -> None:
        node.passes(1000)
        node.write_run(T0 + 1000)
        assert watched(node, 2 * HOUR) == pytest.approx(1800, abs=1)

    def test_file_from_the_future_does_not(self, node: FakeNode) -> None:
        node.write_run(T0 + 100 * HOUR)
        assert watched(node, 2 * HOUR) == pytest.approx(1800, abs=1)

    def test_provisioning_counts_until_it_ends(self, node: FakeNode) -> None:
        deadman.arm(node)
        assert watched(node, 0.9 * HOUR) is None
        deadman._change(node, None, shorten=False)
        assert watched(node, 2 * HOUR) == pytest.approx(1800, abs=1)

    def test_provisioning_that_never_ends_counts_for_an_hour(self, node: FakeNode) -> None:
        deadman.arm(node)
        assert watched(node, 3 * HOUR) == pytest.approx(HOUR + 1800, abs=1)

    def test_boot_counts_as_use(self, node: FakeNode) -> None:
        watched(node, 1000)
        node.unix_s, node.boot_s, node.boot = node.unix_s + 9 * HOUR, 5.0, "second"
        assert watched(node, 2 * HOUR) == pytest.approx(1800, abs=1)

    def test_earlier_of_both_ends_it(self, tmp_path: Path) -> None:
        (tmp_path / "both").mkdir()
        node = FakeNode(tmp_path / "both", max_hours=0.4, idle_minutes=30)
        assert watched(node, 2 * HOUR) == pytest.approx(0.4 * HOUR, abs=1)


class TestFaults:
    def test_lost_file_changes_nothing_for_the_watch(self, node: FakeNode) -> None:
        watch = deadman.Watch(node)
        watched(node, HOUR, watch)
        node.places.state.unlink()
        node.places.config.unlink()
        assert watched(node, 5 * HOUR, watch) == pytest.approx(3 * HOUR, abs=1)

    def test_full_disk_changes_nothing_for_the_watch(
        self, node: FakeNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watch = deadman.Watch(node)
        watched(node, HOUR, watch)
        before = node.places.state.read_text()

        def full(state: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(node, "save", full)
        assert watched(node, 5 * HOUR, watch) == pytest.approx(3 * HOUR, abs=1)
        assert node.places.state.read_text() == before

    @pytest.mark.parametrize(
        "content",
        ["", "{", "[]", "null", '{"format": 2}', '{"format": 1}', "\x00" * 40],
    )
    def test_damaged_file_counts_from_now(self, node: FakeNode, content: str) -> None:
        node.places.state.write_text(content)
        assert watched(node, 5 * HOUR) == pytest.approx(4 * HOUR, abs=1)

    def test_file_with_words_for_numbers_counts_from_now(self, node: FakeNode) -> None:
        deadman.Watch(node).look()
        data = json.loads(node.places.state.read_text())
        node.places.state.write_text(json.dumps({**data, "deadline_unix_s": "soon"}))
        assert watched(node, 5 * HOUR) == pytest.approx(4 * HOUR, abs=1)

    def test_held_lock_does_not_stop_the_watch(
        self, node: FakeNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(deadman, "LOCK_S", 0.0)
        watch = deadman.Watch(node)
        with node.places.state.with_name("lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert watched(node, 4.1 * HOUR, watch) is not None

    def test_power_off_that_does_nothing_is_tried_again(self, node: FakeNode) -> None:
        watch = deadman.Watch(node)
        watched(node, 5 * HOUR, watch)
        node.passes(deadman.TICK_S)
        watch.look()
        assert len(node.off_at) == 2


class TestBootName:
    def test_stays_until_run_is_emptied(self, node: FakeNode) -> None:
        first = node.boot_id()
        assert first
        assert deadman.Node(node.places).boot_id() == first
        node.places.boot.unlink()
        assert node.boot_id() != first

    def test_empty_file_is_given_anew(self, node: FakeNode) -> None:
        node.places.boot.parent.mkdir()
        node.places.boot.write_text("")
        assert node.boot_id() == node.boot_id() != ""


class TestStatus:
    KEYS = ("armed", "deadline_unix_s", "idle_minutes", "idle_since_unix_s", "booted_unix_s")

    def said(self, state: Any, config: Any, **changes: Any) -> dict[str, Any]:
        arguments = {"running": True, "booted_unix_s": T0 - 50, **changes}
        found: dict[str, Any] = deadman.status(state, config, **arguments)
        assert tuple(found) == self.KEYS
        return found

    def test_armed_with_both(self, node: FakeNode) -> None:
        config = deadman.Config(4.0, 30.0)
        said = self.said(deadman.armed(config, node.now()), config)
        assert said == dict(zip(self.KEYS, (True, T0 + 4 * HOUR, 30.0, T0, T0 - 50), strict=True))

    def test_without_idleness_nothing_is_said_of_it(self, node: FakeNode) -> None:
        config = deadman.Config(4.0, None)
        said = self.said(deadman.armed(config, node.now()), config)
        assert (said["idle_minutes"], said["idle_since_unix_s"]) == (None, None)

    def test_stopped_service_is_not_armed(self, node: FakeNode) -> None:
        config = deadman.Config(4.0, None)
        assert not self.said(deadman.armed(config, node.now()), config, running=False)["armed"]

    def test_nothing_there(self) -> None:
        assert not self.said(None, None)["armed"]

    def test_state_survives_its_file(self, node: FakeNode) -> None:
        state = dataclasses.replace(
            deadman.armed(deadman.Config(4.0, 30.0), node.now()), warned_s=600
        )
        node.save(state)
        assert node.load() == state

    @pytest.mark.integration
    def test_program_tells_this_machines_boot(self) -> None:
        done = subprocess.run(
            [sys.executable, "-I", str(PROGRAM), "status"],
            capture_output=True,
            text=True,
            check=True,
        )
        said = json.loads(done.stdout)
        assert not said["armed"]
        assert 0 < said["booted_unix_s"] < Path("/proc/self").stat().st_mtime + 1


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("units")
    play = [
        {
            "name": "Render",
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            "vars": {"lab_deadman_max_hours": 2.5, "lab_deadman_idle_minutes": 0},
            "vars_files": [str(CHECKOUT / "roles/lab_deadman/vars/main.yml")],
            "tasks": [
                {
                    "name": "Render the units",
                    "ansible.builtin.template": {
                        "src": f"{CHECKOUT}/roles/lab_deadman/templates/{{{{ item }}}}.j2",
                        "dest": f"{out}/{{{{ item }}}}",
                        "mode": "0644",
                    },
                    "loop": list(UNITS),
                }
            ],
        }
    ]
    (out / "render.yml").write_text(json.dumps(play))
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), str(out / "render.yml")],
        cwd=out,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.integration
class TestUnits:
    def test_backstop_takes_the_hours(self, rendered: Path) -> None:
        assert "OnActiveSec=9000s\n" in (rendered / "lab-deadman-backstop.timer").read_text()

    def test_units_are_valid_and_closed(self, rendered: Path) -> None:
        if not shutil.which("systemd-analyze"):
            pytest.skip("systemd-analyze is not installed")
        for name in UNITS:
            with contextlib.suppress(FileNotFoundError):
                text = (rendered / name).read_text()
                (rendered / name).write_text(
                    text.replace("=/usr/bin/python3", "=/bin/true").replace(
                        "/usr/bin/systemctl", "/bin/true"
                    )
                )
        verified = subprocess.run(
            ["systemd-analyze", "verify", "--recursive-errors=no"]
            + [str(rendered / name) for name in UNITS],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
        judged = subprocess.run(
            [
                "systemd-analyze",
                "security",
                "--offline=true",
                "--threshold=25",
                "--no-pager",
                str(rendered / "lab-deadman.service"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert judged.returncode == 0, judged.stdout[-400:] + judged.stderr
