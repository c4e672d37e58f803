"""Labs in a cloud from nothing to nothing, with a cloud in memory that fails in every way that clouds do."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path

import pytest
import yaml

from labctl.errors import (
    ConfigError,
    DeadlineError,
    HostKeyError,
    HostUnreachableError,
    LabBusyError,
    PlaybookError,
    RemoteCommandError,
    UserInterruptError,
)
from labctl.lab.home import Home
from labctl.providers import listing
from labctl.providers.base import LabStatus
from labctl.providers.cloud import books
from labctl.providers.cloud.fake import Fault
from labctl.providers.cloud.model import CloudOptions, Problem
from labctl.providers.cloud.plan import plan_dict, plan_lines
from labctl.providers.lock import hold
from labctl.remote.fake import FakeExecutor, Reply
from tests.unit.cloud_worlds import START_S, Worlds, options


@pytest.fixture
def aws(tmp_path: Path) -> Worlds:
    return Worlds(Home(tmp_path / "home"))


@pytest.fixture
def gcp(tmp_path: Path) -> Worlds:
    return Worlds(Home(tmp_path / "home"), "gcp")


def up(worlds: Worlds, lab: str = "demo", **how: object) -> None:
    worlds.labs.up(lab, options(**how), worlds.tell)  # type: ignore[arg-type]


def hosts(worlds: Worlds, lab: str = "demo") -> dict[str, dict[str, object]]:
    tree = yaml.safe_load((worlds.home.inventory(lab) / "hosts.yml").read_text())
    children = tree["tf_cluster"]["children"]
    return {**children["tf_client"]["hosts"], **children["tf_workers"]["hosts"]}


def test_up_makes_two_machines_with_gpus_and_writes_the_lab(aws: Worlds) -> None:
    status = aws.labs.up("demo", options(), aws.tell)
    assert (status.state, [each.name for each in status.machines]) == ("up", ["tf0", "tf1"])
    assert aws.home.active() == "demo"
    found = hosts(aws)
    assert found["tf1"]["tf_task_index"] == 1
    assert found["tf1"]["tf_data_address"] == "10.132.0.11"
    assert found["tf0"]["ansible_host"] == aws.cloud.machine("tf0").public_address
    assert found["tf0"]["ansible_user"] == "admin"
    variables = yaml.safe_load(
        (aws.home.inventory("demo") / "group_vars/all/cloud.yml").read_text()
    )
    assert variables["lab_cloud_machine_type"] == "g4dn.xlarge"
    assert variables["tensorflow_build"] == "gpu"
    assert variables["lab_admin_cidrs"] == ["198.51.100.200/32"]
    assert variables["lab_provider"] == "aws"
    known = (aws.home.local_dir("demo") / "known_hosts").read_text()
    assert f"10.132.0.10,{aws.cloud.machine('tf0').public_address} ssh-ed25519" in known
    assert status.deadline_unix_s == pytest.approx(START_S + 8 * 3600)


def test_private_files_are_for_their_owner_alone(aws: Worlds) -> None:
    up(aws)
    local = aws.home.local_dir("demo")
    for name in ("cloud/state.json", "cloud/hosts.yml", "known_hosts"):
        assert stat.S_IMODE((local / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE(local.stat().st_mode) == 0o700


def test_up_twice_makes_nothing_and_asks_nothing(aws: Worlds) -> None:
    up(aws)
    before = list(aws.cloud.resources)
    files = {
        path: path.read_bytes()
        for path in (
            *aws.home.inventory("demo").rglob("*.yml"),
            aws.home.local_dir("demo") / "known_hosts",
        )
    }
    plan = aws.labs.plan("demo", options(), aws.tell)
    assert (plan.costs, plan.new, plan.changes) == (False, (), ())
    status = aws.labs.carry_out(plan, aws.tell)
    assert aws.cloud.resources == before
    assert {path: path.read_bytes() for path in files} == files
    assert "validate" not in aws.cloud.calls[4:]
    assert [each.phase for each in status.phases] == ["ssh", "ssh"]
    assert aws.asked_address == 1


def test_what_is_known_is_written_before_the_cloud_is_asked_to_make_anything(aws: Worlds) -> None:
    aws.cloud.fail("create", Fault(raises=UserInterruptError("killed"), after=1))
    aws.cloud.fail("find", Fault())  # the first question of the plan
    state = books.Books(aws.home, "demo")
    aws.cloud.faults.pop("find")
    with pytest.raises(UserInterruptError):
        up(aws)
    known = state.state()
    assert known is not None
    assert known.wish.region == "us-east-1"
    assert [each.node for each in known.usage] == ["tf0"]
    assert "aws has now of lab demo: 1 machine, 1 disk, 1 network" in aws.said[-1]
    assert "labctl up --lab demo completes it, labctl down --lab demo removes it" in aws.said[-1]
    assert aws.home.active() == "demo"  # a plain `labctl down` means it


def test_up_completes_a_half_made_lab(aws: Worlds) -> None:
    aws.cloud.fail("create", Fault(message="VcpuLimitExceeded: no more", after=1))
    with pytest.raises(PlaybookError) as caught:
        up(aws)
    assert "Service Quotas" in str(caught.value)
    first = aws.cloud.machine("tf0").id
    plan = aws.labs.plan("demo", options(), aws.tell)
    assert plan.new == ("tf1",)
    aws.labs.carry_out(plan, aws.tell)
    assert aws.cloud.machine("tf0").id == first
    assert set(hosts(aws)) == {"tf0", "tf1"}


def test_a_new_lab_of_which_nothing_was_made_leaves_nothing(aws: Worlds) -> None:
    up(aws, "other")
    aws.cloud.fail("create", Fault(message="UnauthorizedOperation: no"))
    with pytest.raises(ConfigError, match="UnauthorizedOperation"):
        up(aws)
    assert aws.home.active() == "other"
    aws.labs.down("other", force=False, report=lambda _: None)
    assert aws.said[-1] == "aws has nothing of lab demo: nothing was made"
    assert aws.home.labs() == []
    assert books.labs_of(aws.home) == []
    up(aws, region="eu-central-1")  # free to be made elsewhere


def test_a_lab_whose_failure_cannot_be_looked_at_stays_known(aws: Worlds) -> None:
    plan = aws.labs.plan("demo", options(), aws.tell)
    aws.cloud.fail("create", Fault(message="boom"))
    aws.cloud.fail("find", Fault(message="no answer"))
    with pytest.raises(PlaybookError, match="boom"):
        aws.labs.carry_out(plan, aws.tell)
    assert "is not known" in aws.said[-1]
    assert books.labs_of(aws.home, "aws") == ["demo"]


def test_problems_are_told_each_and_nothing_is_made(aws: Worlds) -> None:
    aws.cloud.problems = (
        Problem("quota", "0 vCPUs of G and VT", "8", "ask for more"),
        Problem("image", "no image debian-12-*", "one", "correct it"),
    )
    with pytest.raises(ConfigError) as caught:
        up(aws)
    assert str(caught.value).splitlines() == [
        "image: no image debian-12-*",
        "  expected  one",
        "  do        correct it",
    ]
    assert any("labctl: quota: 0 vCPUs of G and VT" in each for each in aws.said)
    assert aws.cloud.resources == []
    assert "create" not in aws.cloud.calls


def test_plan_says_machines_price_timer_and_network(aws: Worlds) -> None:
    plan = aws.labs.plan("demo", options(owner="me"), aws.tell)
    text = "\n".join(plan_lines(plan))
    hourly = 2 * (0.526 + 60 * 0.08 / 730 + 0.005)
    assert plan.usd_per_hour == pytest.approx(hourly)
    assert plan.most_usd == pytest.approx(8 * hourly)
    for part in (
        "lab demo · aws us-east-1 · owner me · paid by 123456789012",
        "tf0  make  g4dn.xlarge  1 x T4  60 GB  us-east-1a  0.538 USD/h  img-1 debian-12-amd64-*",
        f"{hourly:.2f} USD/h for all",
        "a table; another table, of 2025-12-31",
        f"after 8 h or 60 min without a run: at most {8 * hourly:.2f} USD until then",
        "SSH to public addresses, from 198.51.100.200/32",
        "unchecked  spot quota",
    ):
        assert part in text
    data = plan_dict(plan)
    assert json.loads(json.dumps(data)) == data
    assert data["machines"][0]["price_as_of"] == "2025-12-31"


def test_a_price_that_no_row_has_is_unknown_not_zero(aws: Worlds) -> None:
    plan = aws.labs.plan("demo", options(region="eu-south-2"), aws.tell)
    assert (plan.usd_per_hour, plan.most_usd) == (None, None)
    text = "\n".join(plan_lines(plan))
    assert "unknown: labctl's table has none for g4dn.xlarge in eu-south-2" in text
    assert "what that costs at most is unknown" in text
    aws.labs.carry_out(plan, aws.tell)
    receipt = aws.labs.down("demo", force=False, report=aws.tell)
    assert receipt.cost is None
    assert receipt.to_dict()["cost"] is None


def test_a_plan_that_is_not_carried_out_leaves_nothing(aws: Worlds) -> None:
    aws.labs.plan("demo", options(), aws.tell)
    aws.labs.drop_plan("demo")
    assert list(aws.home.root.rglob("*")) == []
    up(aws)
    aws.labs.drop_plan("demo")
    assert aws.labs.owns("demo")


def test_attached_gpus_are_billed_beside_and_disks_after_power_off(gcp: Worlds) -> None:
    plan = gcp.labs.plan("demo", options(), gcp.tell)
    each = 0.19 + 0.35 + 60 * 0.1 / 730 + 0.005
    assert plan.usd_per_hour == pytest.approx(2 * each)
    assert "then its disk is billed at 0.016 USD/h for all" in "\n".join(plan_lines(plan))
    assert plan.wish.project == "my-project"


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("region", "eu-central-1", "--region"),
        ("machine_type", "g5.xlarge", "--machine-type"),
        ("disk_gb", 200, "--disk"),
        ("spot", True, "--spot"),
        ("owner", "you", "--owner"),
        ("image", "ami-0123", "--image"),
    ],
)
def test_what_holds_for_life_cannot_change(
    aws: Worlds, name: str, value: object, option: str
) -> None:
    up(aws)
    with pytest.raises(ConfigError) as caught:
        aws.labs.plan("demo", options(**{name: value}), aws.tell)  # type: ignore[arg-type]
    assert option in caught.value.found
    assert "labctl down --lab demo" in str(caught.value.do)


def test_what_costs_nothing_may_change(aws: Worlds) -> None:
    up(aws)
    wanted = options(admin_cidrs=("192.0.2.0/24",), max_hours=4.0)
    plan = aws.labs.plan("demo", wanted, aws.tell)
    assert not plan.costs
    assert plan.changes == (
        "SSH is open to 192.0.2.0/24",
        "hours of the dead-man timer: 4.0",
    )
    aws.labs.carry_out(plan, aws.tell)
    text = (aws.home.inventory("demo") / "group_vars/all/cloud.yml").read_text()
    assert "192.0.2.0/24" in text


def test_a_lab_grows_and_does_not_shrink(aws: Worlds) -> None:
    up(aws)
    plan = aws.labs.plan("demo", options(nodes=3), aws.tell)
    assert plan.new == ("tf2",)
    aws.labs.carry_out(plan, aws.tell)
    with pytest.raises(ConfigError, match="has 3 machines, 2 are asked for"):
        aws.labs.plan("demo", options(nodes=2), aws.tell)


def test_a_lab_of_another_provider_is_refused_by_name(aws: Worlds) -> None:
    up(aws)
    other = Worlds(aws.home, "gcp")
    with pytest.raises(ConfigError, match="lab demo has machines in aws"):
        up(other)
    folder = aws.home.inventory("mine")
    folder.mkdir(parents=True)
    (folder / "hosts.yml").write_text("tf_cluster: {}\n")
    with pytest.raises(ConfigError, match="not written by labctl"):
        up(aws, "mine")


def test_variables_written_beforehand_are_taken_and_stay_the_users(aws: Worlds) -> None:
    file = aws.home.inventory("demo") / "group_vars/all/cloud.yml"
    file.parent.mkdir(parents=True)
    text = (
        "lab_provider: aws\nlab_cloud_nodes: 3\nlab_cloud_subnet_cidr: 10.9.0.0/24\n"
        "lab_cloud_tasks: {1: {machine_type: g5.xlarge, private_address: 10.9.0.77}}\n"
    )
    file.write_text(text)
    plan = aws.labs.plan("demo", options(admin_cidrs=("192.0.2.7/32",)), aws.tell)
    assert [each.machine_type for each in plan.machines] == [
        "g4dn.xlarge",
        "g5.xlarge",
        "g4dn.xlarge",
    ]
    aws.labs.carry_out(plan, aws.tell)
    assert file.read_text() == text
    written = (aws.home.inventory("demo") / "hosts.yml").read_text()
    assert "192.0.2.7/32" in written  # what provisioning needs and the file lacks
    plays = yaml.safe_load((aws.home.local_dir("demo") / "cloud/hosts.yml").read_text())
    assert plays["all"]["vars"]["lab_cloud_tasks"]["1"]["private_address"] == "10.9.0.77"
    with pytest.raises(ConfigError, match="lab_cloud_nodes"):
        aws.labs.plan("demo", options(nodes=4), aws.tell)
    receipt = aws.labs.down("demo", force=False, report=aws.tell)
    assert receipt.kept == (str(file),)
    assert aws.home.labs() == []


def test_stopped_machines_are_started_only_when_asked(aws: Worlds) -> None:
    up(aws)
    status = aws.labs.stop("demo", aws.tell)
    assert status.state == "stopped"
    assert status.machines[0].note == "stopped by labctl stop, its disk is billed"
    with pytest.raises(ConfigError, match="tf0, tf1 of lab demo is stopped"):
        aws.labs.plan("demo", options(), aws.tell)
    plan = aws.labs.plan("demo", options(reuse=True), aws.tell)
    assert (plan.starting, plan.costs) == (("tf0", "tf1"), True)
    assert aws.labs.carry_out(plan, aws.tell).state == "up"


def test_start_follows_new_addresses(aws: Worlds) -> None:
    up(aws)
    before = hosts(aws)["tf0"]["ansible_host"]
    aws.labs.stop("demo", aws.tell)
    status = aws.labs.start("demo", aws.tell)
    after = hosts(aws)["tf0"]["ansible_host"]
    assert status.state == "up"
    assert after != before
    assert str(after) in (aws.home.local_dir("demo") / "known_hosts").read_text()
    assert "private addresses are what they were: no provision is needed" in status.notes


def test_start_warns_of_a_deadline_that_has_passed(aws: Worlds) -> None:
    up(aws)
    aws.labs.stop("demo", aws.tell)
    aws.clock.now_s += 9 * 3600
    status = aws.labs.start("demo", aws.tell)
    assert any("labctl extend --lab demo HOURS" in each for each in status.notes)


def test_start_of_a_lab_without_machines(aws: Worlds) -> None:
    up(aws)
    aws.cloud.delete("tf0")
    aws.cloud.delete("tf1")
    with pytest.raises(ConfigError, match="no machine that could be started"):
        aws.labs.start("demo", aws.tell)
    with pytest.raises(ConfigError, match="no lab 'other'"):
        aws.labs.stop("other", aws.tell)


def test_machines_that_take_no_login_are_named(aws: Worlds) -> None:
    mute = FakeExecutor("tf1").on(["true"], HostUnreachableError("tf1 timed out"))
    aws.nodes["tf1"] = mute
    with pytest.raises(DeadlineError) as caught:
        up(aws)
    assert caught.value.found.startswith("tf1 (198.51.100.")
    assert "--admin-cidr" in str(caught.value.do)
    assert set(hosts(aws)) == {"tf0", "tf1"}
    aws.nodes["tf1"] = FakeExecutor("tf1").on(
        ["true"], HostUnreachableError("not yet"), HostKeyError("not yet"), Reply()
    )
    up(aws)  # goes on waiting, and is patient


def test_a_wrong_host_key_is_told_as_such(aws: Worlds) -> None:
    aws.nodes["tf0"] = FakeExecutor("tf0").on(["true"], HostKeyError("the host key has changed"))
    with pytest.raises(HostKeyError, match="has changed"):
        up(aws)


def test_a_cloud_that_says_done_with_a_machine_missing_is_not_believed(aws: Worlds) -> None:
    up(aws)
    answer = (aws.home.local_dir("demo") / "cloud/create.json").read_text()
    short = json.loads(answer)
    short["resources"] = [each for each in short["resources"] if each["node"] != "tf1"]
    aws.cloud.fail("create", Fault(answer=json.dumps(short)))
    with pytest.raises(RemoteCommandError, match="tf1 does not run"):
        up(aws)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ("", PlaybookError, "damaged"),
        ("[]", PlaybookError, "no JSON object"),
        ('{"format": 1, "provider": "gcp"}', ConfigError, "answer of 'gcp'"),
        ('{"format": 2, "provider": "aws"}', ConfigError, "format 2"),
        ('{"format": 1, "provider": "aws"}', PlaybookError, "asked_unix_s is missing"),
        (
            '{"format": 1, "provider": "aws", "asked_unix_s": 1, "resources": [{"kind": "machine", "id": ""}]}',
            PlaybookError,
            "has no id",
        ),
        (
            '{"format": 1, "provider": "aws", "asked_unix_s": 1, "resources": [{"kind": "vm", "id": "a"}]}',
            PlaybookError,
            "resources\\[0\\].kind",
        ),
        (
            (
                '{"format": 1, "provider": "aws", "asked_unix_s": 1, "resources":'
                ' [{"kind": "machine", "id": "a", "node": "../x"}]}'
            ),
            PlaybookError,
            "no node's name",
        ),
        (
            '{"format": 1, "provider": "aws", "asked_unix_s": 1, "resources": [{"kind": "machine", "id": "a"}]}',
            PlaybookError,
            "no label labctl-node",
        ),
    ],
)
def test_an_answer_that_cannot_be_believed_is_an_error(
    aws: Worlds, answer: str, error: type[Exception], words: str
) -> None:
    up(aws)
    aws.cloud.fail("find", Fault(answer=answer))
    with pytest.raises(error, match=words):
        aws.labs.down("demo", force=False, report=aws.tell)
    assert aws.labs.owns("demo")


def test_down_removes_all_and_gives_a_receipt(aws: Worlds) -> None:
    up(aws)
    aws.clock.now_s += 3600
    receipt = aws.labs.down("demo", force=False, report=aws.tell)
    assert aws.cloud.resources == []
    assert (receipt.left, receipt.forgotten) == ((), ())
    assert "machine tf0" in receipt.removed[5] or any("machine tf0" in x for x in receipt.removed)
    assert receipt.asked.startswith("aws at 20")
    hourly = 0.526 + 60 * 0.08 / 730 + 0.005
    hours = (aws.clock.now_s - START_S) / 3600
    assert receipt.hours == pytest.approx(hours)
    assert receipt.cost == pytest.approx(2 * hourly * hours)
    assert [each.node for each in receipt.machines] == ["tf0", "tf1"]
    assert aws.home.labs() == []
    assert not aws.home.local_dir("demo").exists()
    assert aws.home.active() is None
    again = aws.labs.down("demo", force=False, report=aws.tell)
    assert (again.removed, again.left, again.cost) == ((), (), 0.0)


def test_down_waits_until_the_cloud_has_nothing_left(aws: Worlds) -> None:
    up(aws)
    aws.cloud.slow_to_leave = 3
    receipt = aws.labs.down("demo", force=False, report=aws.tell)
    assert receipt.left == ()
    assert aws.clock.waits.count(5.0) == 1
    assert 10.0 in aws.clock.waits
    assert any("waiting for 2 machines to leave" in each for each in aws.said)


def test_down_names_what_stays_and_keeps_it_on_the_books(aws: Worlds) -> None:
    up(aws)
    aws.cloud.sticky = frozenset({"machine"})
    aws.cloud.fail(
        "destroy",
        Fault(message="OperationNotPermitted: termination protection", after=None, times=3),
    )
    receipt = aws.labs.down("demo", force=False, report=aws.tell)
    assert len(receipt.left) == 2
    assert "machine tf0" in receipt.left[0]
    assert "0.538 USD/h" in receipt.left[0]
    assert "termination protection" in receipt.left[0]
    assert any(each.startswith("disk tf0") for each in receipt.removed)
    assert aws.labs.owns("demo")
    aws.cloud.sticky = frozenset()
    assert aws.labs.down("demo", force=False, report=aws.tell).left == ()


def test_a_forced_down_forgets_loudly_and_stays_listed_until_the_cloud_has_nothing(
    aws: Worlds,
) -> None:
    up(aws)
    aws.cloud.sticky = frozenset({"machine"})
    receipt = aws.labs.down("demo", force=True, report=aws.tell)
    assert len(receipt.forgotten) == 2
    warning = next(each for each in aws.said if each.startswith("WARNING"))
    assert "BILLED" in warning
    assert "labctl-lab=demo" in warning
    (row,) = listing.lab_rows(aws.home, lambda _, lab: aws.labs.status(lab))
    assert (row.name, row.nodes) == ("demo", 2)
    assert any("given up by labctl down --force" in each for each in row.notes)
    aws.cloud.delete("tf0")
    aws.cloud.delete("tf1")
    aws.labs.status("demo")
    assert books.labs_of(aws.home) == []


def test_unreachable_is_not_gone(aws: Worlds) -> None:
    up(aws)
    aws.cloud.fail("find", Fault(message="RequestLimitExceeded: slow down", times=100))
    with pytest.raises(PlaybookError, match="RequestLimitExceeded"):
        aws.labs.down("demo", force=False, report=aws.tell)
    assert len(aws.cloud.resources) > 0
    assert "destroy" not in aws.cloud.calls
    receipt = aws.labs.down("demo", force=True, report=aws.tell)
    assert len(receipt.forgotten) == 9
    assert receipt.asked == "not asked"
    status = aws.labs.status("demo")
    assert status.state == "unknown"
    assert "RequestLimitExceeded" in status.unknown
    aws.cloud.faults.clear()
    assert aws.labs.down("demo", force=False, report=aws.tell).left == ()
    assert aws.cloud.resources == []


def test_a_list_call_that_fails_after_the_removal_is_not_taken_for_nothing(aws: Worlds) -> None:
    up(aws)
    aws.cloud.slow_to_leave = 1

    def broken(_: str) -> None:
        if _.startswith("removing"):
            aws.cloud.fail("find", Fault(message="Connect timeout", times=100))

    with pytest.raises(PlaybookError, match="Connect timeout"):
        aws.labs.down("demo", force=False, report=broken)
    assert aws.labs.owns("demo")
    aws.cloud.faults.clear()
    assert aws.labs.down("demo", force=False, report=aws.tell).left == ()


def test_down_of_a_machine_that_was_deleted_by_hand(aws: Worlds) -> None:
    up(aws)
    aws.cloud.delete("tf1")
    receipt = aws.labs.down("demo", force=False, report=aws.tell)
    assert receipt.left == ()
    assert [each.node for each in receipt.machines] == ["tf0", "tf1"]


@pytest.mark.parametrize("lost", ["state", "variables", "both"])
def test_down_with_lost_files_asks_by_label(aws: Worlds, lost: str) -> None:
    up(aws)
    book = books.Books(aws.home, "demo")
    if lost in {"state", "both"}:
        book.state_file.write_text("damaged")
    if lost in {"variables", "both"}:
        book.variables_file.unlink()
    if lost == "both":
        (aws.home.inventory("demo") / "hosts.yml").unlink()
        assert not aws.labs.owns("demo")
        receipt = aws.labs.remove(
            "demo", CloudOptions(region="us-east-1"), force=False, report=aws.tell
        )
    else:
        receipt = aws.labs.down("demo", force=False, report=aws.tell)
    assert receipt.left == ()
    assert aws.cloud.resources == []
    assert receipt.cost == pytest.approx(0, abs=0.1)


def test_a_second_lab_is_not_touched(aws: Worlds) -> None:
    up(aws, "one")
    up(aws, "two")
    assert len([each for _, each in aws.cloud.resources if each.kind == "machine"]) == 4
    aws.labs.down("one", force=False, report=aws.tell)
    assert len([each for _, each in aws.cloud.resources if each.kind == "machine"]) == 2
    assert aws.labs.status("two").state == "up"


def test_down_counts_stopped_hours_apart(aws: Worlds) -> None:
    up(aws)
    aws.clock.now_s += 3600
    aws.labs.stop("demo", aws.tell)
    aws.clock.now_s += 10 * 3600
    receipt = aws.labs.down("demo", force=False, report=aws.tell)
    (first, _) = receipt.machines
    assert first.running_h == pytest.approx(1, abs=0.05)
    assert first.stopped_h == pytest.approx(10, abs=0.05)
    assert receipt.cost == pytest.approx(2 * (0.538 + 10 * 60 * 0.08 / 730), rel=0.01)


def test_status_names_a_node_that_its_timer_ended(aws: Worlds) -> None:
    up(aws)
    aws.clock.now_s += 8 * 3600 + 30
    aws.cloud.delete("tf1")
    status = aws.labs.status("demo")
    assert status.state == "partly"
    assert status.machines[1].note.startswith(
        "powered off by its dead-man timer, whose deadline was"
    )


def test_status_of_a_node_that_went_before_its_deadline(aws: Worlds) -> None:
    up(aws)
    aws.cloud.delete("tf1")
    note = aws.labs.status("demo").machines[1].note
    assert note == "powered off by its dead-man timer as idle, or removed by hand"


def test_status_of_a_node_that_powered_itself_off_and_whose_disk_is_billed(gcp: Worlds) -> None:
    up(gcp)
    gcp.clock.now_s += 8 * 3600 + 30
    gcp.cloud.change("tf0", state="TERMINATED", stopped_unix_s=gcp.clock.now_s)
    gcp.cloud.change("tf1", state="TERMINATED", stopped_unix_s=gcp.clock.now_s)
    status = gcp.labs.status("demo")
    assert status.state == "stopped"
    assert status.machines[0].note.endswith("its disk is billed")
    assert status.usd_per_hour == pytest.approx(2 * 60 * 0.1 / 730)


def test_status_says_how_old_it_is_when_the_cloud_cannot_be_asked(aws: Worlds) -> None:
    up(aws)
    aws.clock.now_s += 600
    aws.cloud.fail("find", Fault(timed_out=True))
    (row,) = listing.lab_rows(aws.home, lambda _, lab: aws.labs.status(lab))
    assert (row.state, row.nodes) == ("unknown", 2)
    text = "\n".join(listing.lab_lines([row], aws.clock.now_s))
    assert "what is listed is 10 min old" in text
    assert row.to_dict()["state"] == "unknown"


def test_a_running_lab_is_listed_with_cost_and_timer(aws: Worlds) -> None:
    up(aws)
    aws.clock.now_s += 3600
    (row,) = listing.lab_rows(aws.home, lambda _, lab: aws.labs.status(lab))
    assert row.cost == pytest.approx(2 * 0.538, rel=0.02)
    (head, line) = listing.lab_lines([row], aws.clock.now_s)
    assert head.split() == ["lab", "provider", "nodes", "state", "cost", "now", "timer"]
    assert "1.08 USD/h" in line


def test_a_lab_at_which_somebody_works_is_listed_as_known(aws: Worlds) -> None:
    up(aws)
    lock = aws.home.local_dir("demo") / ".cloud.lock"
    with hold(lock, "labctl up for lab demo"):
        status = aws.labs.status("demo")
        with pytest.raises(LabBusyError):
            aws.labs.down("demo", force=False, report=aws.tell)
    assert status.state == "up"
    assert any("labctl up for lab demo" in each for each in status.notes)


def test_two_machines_of_one_node_are_refused(aws: Worlds) -> None:
    up(aws)
    lab_id, twin = next(each for each in aws.cloud.resources if each[1].node == "tf1")
    import dataclasses

    aws.cloud.resources.append((lab_id, dataclasses.replace(twin, id="machine-twin")))
    with pytest.raises(ConfigError, match="two machines tf1"):
        aws.labs.plan("demo", options(), aws.tell)


def test_ssh_by_private_addresses_needs_to_know_from_where(aws: Worlds) -> None:
    with pytest.raises(ConfigError, match="nothing says from where"):
        up(aws, ssh_by="private")
    up(aws, ssh_by="private", admin_cidrs=("10.0.0.0/8",))
    assert hosts(aws)["tf0"]["ansible_host"] == "10.132.0.10"
    assert aws.asked_address == 0


def test_extension_is_kept(aws: Worlds) -> None:
    up(aws)
    aws.labs.extended("demo", START_S + 20 * 3600)
    assert aws.labs.status("demo").deadline_unix_s == START_S + 20 * 3600
    up(aws)
    assert aws.labs.status("demo").deadline_unix_s == START_S + 20 * 3600


def test_extension_beyond_the_limit_that_gcp_itself_has(gcp: Worlds) -> None:
    up(gcp)
    assert gcp.labs.extended("demo", START_S + 15 * 3600) == ()
    (note,) = gcp.labs.extended("demo", START_S + 30 * 3600)
    assert note.startswith("gcp itself removes the first machine at about 2026-")


def test_variables_that_only_the_playbooks_know_reach_them(aws: Worlds) -> None:
    file = aws.home.inventory("demo") / "group_vars/all/cloud.yml"
    file.parent.mkdir(parents=True)
    file.write_text("lab_provider: aws\nlab_cloud_limit_hours: 3\ntensorflow_build: cpu\n")
    up(aws)
    plays = yaml.safe_load((aws.home.local_dir("demo") / "cloud/hosts.yml").read_text())
    assert plays["all"]["vars"]["lab_cloud_limit_hours"] == 3
    assert "tensorflow_build" not in (aws.home.inventory("demo") / "hosts.yml").read_text()


def test_a_dynamic_inventory_of_the_users_stays_the_only_one(aws: Worlds) -> None:
    folder = aws.home.inventory("demo")
    (folder / "group_vars/all").mkdir(parents=True)
    (folder / "group_vars/all/cloud.yml").write_text(
        'lab_provider: aws\nlab_id: "00c0ffee"\nlab_local_dir: .lab/demo\nlab_name: demo\n'
        "lab_admin_cidrs: [192.0.2.0/24]\nlab_owner: me\n"
    )
    (folder / "aws_ec2.yml").write_text("plugin: amazon.aws.aws_ec2\n")
    up(aws)
    assert sorted(path.name for path in folder.iterdir()) == ["aws_ec2.yml", "group_vars"]
    assert {lab_id for lab_id, _ in aws.cloud.resources} == {"00c0ffee"}
    assert aws.labs.stop("demo", aws.tell).state == "stopped"
    assert aws.labs.start("demo", aws.tell).state == "up"
    receipt = aws.labs.down("demo", force=False, report=aws.tell)
    assert len(receipt.kept) == 2
    assert aws.cloud.resources == []
    assert aws.labs.status("demo").state == "down"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lab_provider: aws\nlab_cloud_nodes: two\n", "lab_cloud_nodes"),
        ("lab_provider: aws\nlab_cloud_nodes: 65\n", "number of nodes is 65"),
        ("lab_provider: aws\nlab_cloud_zone: '{{ x }}'\n", "lab_cloud_zone is a template"),
        ("lab_provider: aws\nlab_admin_cidrs: [0.0.0.0/0]\n", "the whole internet"),
        ("lab_provider: aws\nlab_cloud_subnet_cidr: 8.8.8.0/24\n", "lab_cloud_subnet_cidr"),
        ("lab_provider: aws\nlab_id: 12\n", "lab_id"),
        ("lab_provider: aws\nlab_name: other\n", "it is of other"),
        ("lab_provider: aws\nlab_cloud_tasks: {0: {private_address: 10.132.0.11}}\n", "two tasks"),
        ("lab_provider: aws\nlab_cloud_tasks: {0: {private_address: 10.1.1.1}}\n", "task 0"),
        ("lab_provider: aws\nlab_cloud_tasks: {x: {}}\n", "lab_cloud_tasks"),
        ("lab_provider: aws\nlab_cloud_machine_type: 'a b'\n", "machine_type"),
        ("lab_provider: aws\nlab_cloud_spot: maybe\n", "lab_cloud_spot"),
        ("lab_provider: aws\nlab_cloud_ssh_by: pigeon\n", "lab_cloud_ssh_by"),
        ("lab_provider: aws\nx: [\n", "cannot be read"),
        ("- lab_provider: aws\n", "no list of variables"),
    ],
)
def test_variables_that_cannot_be_are_told_before_the_cloud_is_asked(
    aws: Worlds, text: str, words: str
) -> None:
    file = aws.home.inventory("demo") / "group_vars/all/cloud.yml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        up(aws)
    assert aws.cloud.calls == []


def test_ctrl_c_while_machines_boot_leaves_at_once(aws: Worlds) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    mute = FakeExecutor("tf1").on(["true"], HostUnreachableError("not yet"))
    aws.nodes["tf1"] = mute
    plan = aws.labs.plan("demo", options(), aws.tell)

    def tell(text: str) -> None:
        if text.startswith("tf0"):
            interrupt(text)

    with pytest.raises(KeyboardInterrupt):
        aws.labs.carry_out(plan, tell)
    assert set(hosts(aws)) == {"tf0", "tf1"}
    assert aws.labs.owns("demo")


def test_a_cloud_that_never_answers_holds_no_list_up(
    aws: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(aws)
    monkeypatch.setattr(listing, "_PATIENCE_S", 0.05)
    release = threading.Event()

    def never(_: str, __: str) -> LabStatus:
        release.wait(30)
        return LabStatus(())

    (row,) = listing.lab_rows(aws.home, never)
    release.set()
    assert row.state == "unknown"
    assert row.notes == ("its state cannot be asked: no answer within 0.05 s",)


def test_a_machine_that_is_leaving_is_made_anew_only_with_a_yes(aws: Worlds) -> None:
    up(aws)
    old = aws.cloud.machine("tf1").id
    aws.cloud.change("tf1", state="shutting-down")
    aws.cloud.slow_to_leave = 10
    plan = aws.labs.plan("demo", options(), aws.tell)
    assert (plan.new, plan.costs) == (("tf1",), True)
    lab_id, leaving = next(each for each in aws.cloud.resources if each[1].id == old)
    aws.cloud.delete("tf1")
    plan_done = aws.labs.carry_out(plan, aws.tell)
    assert plan_done.state == "up"
    aws.cloud.resources.append((lab_id, leaving))  # it is still listed beside the new one
    status = aws.labs.status("demo")
    assert [each.running for each in status.machines] == [True, True]
    assert aws.labs.plan("demo", options(), aws.tell).new == ()
