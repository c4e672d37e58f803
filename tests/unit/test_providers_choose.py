"""Which lab, provider and options a command means, and how the answers look."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.errors import ConfigError, UsageError
from labctl.lab.home import Home
from labctl.providers import (
    choose,
    host,
    identity,
    inventory,
    listing,
    network,
    rehearsal,
    rootfs,
    state,
    teardown,
)
from labctl.providers.base import (
    LabStatus,
    MachineCost,
    MachineOptions,
    MachineStatus,
    Receipt,
)
from labctl.providers.cloud.model import CloudOptions
from labctl.providers.identity import LabIdentity
from labctl.providers.rehearsal import RehearsalProvider


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("LABCTL_STATE_DIR", str(tmp_path / "state"))
    return Home(tmp_path / "home")


def brought(home: Home, name: str) -> Path:
    folder = home.inventory(name)
    folder.mkdir(parents=True)
    (folder / "hosts.yml").write_text("tf_cluster: {}\n")
    return folder


def in_cloud(home: Home, name: str) -> None:
    file = home.inventory(name) / "group_vars/all/cloud.yml"
    file.parent.mkdir(parents=True)
    file.write_text("lab_provider: aws\n")
    (home.inventory(name) / "hosts.yml").write_text("tf_cluster: {}\n")


def test_lab_to_make(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose.lab_to_make(home, None) == "rehearsal"
    brought(home, "mine")
    home.activate("mine")
    assert choose.lab_to_make(home, None) == "mine"
    monkeypatch.setenv("LABCTL_LAB", "other")
    assert choose.lab_to_make(home, None) == "other"
    assert choose.lab_to_make(home, "named") == "named"


@pytest.mark.parametrize("name", ["loopback", "../x", "active", "Up"])
def test_names_that_cannot_have_machines(home: Home, name: str) -> None:
    with pytest.raises(ConfigError):
        choose.lab_to_make(home, name)


def test_a_provider_that_is_not_there(home: Home) -> None:
    with pytest.raises(ConfigError, match="--provider foo: unknown"):
        choose.provider_to_make(home, "demo", "foo")


def test_provider_of_a_lab_is_its_own(home: Home) -> None:
    assert choose.provider_to_make(home, "demo", None) == "rehearsal"
    assert choose.provider_to_make(home, "demo", "gcp") == "gcp"
    inventory.write(home.inventory("demo"), home.local_dir("demo"), network.FIRST_SUBNET, 2)
    assert choose.provider_to_make(home, "demo", None) == "rehearsal"
    with pytest.raises(
        ConfigError, match="lab demo has machines of rehearsal, --provider says aws"
    ):
        choose.provider_to_make(home, "demo", "aws")
    in_cloud(home, "far")
    assert choose.provider_to_make(home, "far", None) == "aws"
    assert choose.provider_of(home, "far").name == "aws"
    with pytest.raises(ConfigError, match="lab far has machines of aws, --provider says gcp"):
        choose.provider_to_make(home, "far", "gcp")


def test_a_cloud_means_a_lab_of_its_own(home: Home) -> None:
    brought(home, "mine")
    home.activate("mine")
    assert choose.lab_to_make(home, None, "aws") == "aws"
    in_cloud(home, "far")
    home.activate("far")
    assert choose.lab_to_make(home, None, "aws") == "far"
    assert choose.lab_to_make(home, None, "gcp") == "gcp"


def test_options_of_others_are_refused_by_name(home: Home) -> None:
    choose.refuse_others("rehearsal", {"--memory": "4G", "--gpu": None, "--yes": False})
    choose.refuse_others("gcp", {"--project": "p", "--memory": None, "--spot/--no-spot": "False"})
    with pytest.raises(UsageError, match=r"^--gpu, --yes: not of provider rehearsal"):
        choose.refuse_others("rehearsal", {"--memory": "4G", "--gpu": "T4", "--yes": True})
    with pytest.raises(UsageError, match=r"^--memory: not of provider aws"):
        choose.refuse_others("aws", {"--memory": "4G", "--gpu": "T4"})
    with pytest.raises(UsageError, match=r"^--project: not of provider aws"):
        choose.refuse_others("aws", {"--project": "p"})


def test_commands_of_clouds_are_for_their_labs(home: Home) -> None:
    in_cloud(home, "far")
    assert choose.cloud_provider(home, "far", "stop").name == "aws"
    with pytest.raises(ConfigError, match="lab near is in no cloud: labctl stop"):
        choose.cloud_provider(home, "near", "stop")


def test_down_asks_a_named_cloud_for_a_lab_that_is_not_known(home: Home) -> None:
    somewhere = CloudOptions(region="eu-west-1")
    assert choose.cloud_to_ask(home, "lost", "aws", somewhere) == "aws"
    assert choose.cloud_to_ask(home, "lost", None, CloudOptions()) is None
    in_cloud(home, "far")
    assert choose.cloud_to_ask(home, "far", None, CloudOptions()) == "aws"
    with pytest.raises(UsageError, match="go with --provider"):
        choose.cloud_to_ask(home, "lost", None, somewhere)
    with pytest.raises(UsageError, match="--provider azure"):
        choose.cloud_to_ask(home, "lost", "azure", somewhere)
    with pytest.raises(ConfigError, match="has machines of aws"):
        choose.cloud_to_ask(home, "far", "gcp", somewhere)


def test_brought_machines_are_not_removed(home: Home) -> None:
    folder = brought(home, "mine")
    with pytest.raises(ConfigError) as caught:
        choose.provider_of(home, "mine")
    assert f"ansible-playbook -i {folder} teardown.yml" in str(caught.value)


def test_a_lab_that_never_was_may_be_taken_down(home: Home) -> None:
    assert choose.provider_of(home, "gone").name == "rehearsal"


@pytest.mark.parametrize("nodes", [0, 9, -1])
def test_number_of_machines(nodes: int) -> None:
    with pytest.raises(UsageError, match=f"--nodes {nodes}"):
        choose.machine_options(nodes, None, None, None)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4G", 4 * 2**30), ("1500M", 1500 * 2**20), ("2GiB", 2 * 2**30), ("536870912", 2**29)],
)
def test_sizes(text: str, size: int) -> None:
    assert choose.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "4", "100M", "much", "-4G", "4.5G"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--memory"):
        choose.parse_size(text)


def test_state_of_a_lab() -> None:
    def status(*running: bool) -> LabStatus:
        return LabStatus(tuple(MachineStatus("tf0", "10.132.0.2", each) for each in running))

    states = [status(*each).state for each in ((), (True, True), (True, False), (False,))]
    assert states == ["down", "up", "partly", "down"]
    off = MachineStatus("tf0", "", running=False, stopped=True)
    assert LabStatus((off,)).state == "stopped"
    assert LabStatus((off,), unknown="no answer").state == "unknown"


def test_receipt_has_the_agreed_keys() -> None:
    receipt = Receipt(removed=("machine tf0",), left=(), kept=("group_vars/all.yml",))
    assert receipt.to_dict() == {
        "removed": ["machine tf0"],
        "left": [],
        "forgotten": [],
        "cost": 0.0,
        "kept": ["group_vars/all.yml"],
    }
    assert "left       nothing" in choose.receipt_lines("demo", receipt)
    assert choose.receipt_lines("demo", Receipt()) == [
        "lab demo: nothing is there, nothing was removed",
        (
            "no cloud was asked: if it was in one and its files are lost, "
            "labctl down --lab demo --provider aws --region REGION (gcp: and --project)"
        ),
    ]
    asked = choose.receipt_lines("demo", Receipt(asked="aws at 14:31:07"))
    assert asked == ["lab demo: nothing is there, nothing was removed (asked aws at 14:31:07)"]


def test_receipt_of_a_cloud() -> None:
    receipt = Receipt(
        removed=("machine tf0 (i-1)",),
        cost=0.88,
        machines=(MachineCost("tf0", "g4dn.xlarge", 0.83, 0.5, 0.44),),
        hours=0.83,
        first_step_h=0.31,
        asked="aws at 2026-11-30 14:31:07 UTC",
    )
    assert choose.receipt_lines("demo", receipt, "3 runs, every file's digest equal") == [
        "records    3 runs, every file's digest equal",
        "removed    machine tf0 (i-1)",
        "left       nothing with label labctl-lab=demo (asked aws at 2026-11-30 14:31:07 UTC)",
        "machine    tf0 g4dn.xlarge ran 0.83 h, was off 0.50 h: 0.44 USD",
        "cost       0.83 h, 0.88 USD, of which 0.31 h before the first step",
    ]
    data = receipt.to_dict()
    assert data["machines"][0]["usd"] == 0.44
    assert data["first_step_h"] == 0.31
    unknown = choose.receipt_lines("demo", Receipt(removed=("x",), cost=None, hours=1.0))
    assert unknown[-1] == "cost       1.00 h, price unknown; no run came to its first step"


def test_labs_are_listed_with_the_active_one_marked(home: Home) -> None:
    folder = home.inventory("demo")
    inventory.write(folder, home.local_dir("demo"), network.FIRST_SUBNET, 2)
    home.activate("demo")
    (row,) = listing.lab_rows(home)
    assert row.to_dict() == {
        "name": "demo",
        "provider": "rehearsal",
        "nodes": 0,
        "state": "down",
        "active": True,
        "cost": 0.0,
        "usd_per_hour": 0.0,
        "deadline_unix_s": None,
        "asked_unix_s": None,
        "notes": [],
    }
    (head, line) = listing.lab_lines([row], 0.0)
    assert line.startswith("*  demo")
    assert head.split() == ["lab", "provider", "nodes", "state", "cost"]
    assert listing.lab_lines([], 0.0) == ["no lab yet: labctl up makes one"]


def half_make(home: Home, name: str) -> LabIdentity:
    """Leave what a broken-off `up` leaves."""
    lab = LabIdentity.of(home.root, name)
    lab.base.mkdir(parents=True)
    state.save(
        lab.state_file,
        state.LabState(
            name,
            str(home.root),
            2,
            "bookworm",
            f"bookworm-{'0' * 12}",
            network.FIRST_SUBNET,
            None,
            None,
        ),
    )
    return lab


def test_a_half_made_lab_is_listed_and_taken_down(home: Home) -> None:
    half_make(Home(home.root.parent / "elsewhere"), "foreign")
    assert listing.lab_rows(home) == []
    assert choose.lab_to_remove(home, None) == "rehearsal"

    half_make(home, "one")
    (row,) = listing.lab_rows(home)
    assert (row.name, row.provider, row.nodes, row.state) == ("one", "rehearsal", 2, "partly")
    assert choose.lab_to_remove(home, None) == "one"

    home.make_local_dir("two")
    assert choose.lab_to_remove(home, None) == "one"
    half_make(home, "two").state_file.write_text("damaged")
    assert [row.name for row in listing.lab_rows(home)] == ["one", "two"]
    with pytest.raises(ConfigError, match="one or two"):
        choose.lab_to_remove(home, None)
    assert choose.lab_to_remove(home, "two") == "two"


def test_a_second_down_takes_no_other_lab(home: Home) -> None:
    half_make(home, "whole")
    inventory.write(home.inventory("whole"), home.local_dir("whole"), network.FIRST_SUBNET, 2)
    assert choose.lab_to_remove(home, None) == "rehearsal"


@pytest.fixture
def bare_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A host on which labs may be made, as far as anybody asks."""
    monkeypatch.setattr(host, "require_root", lambda: None)
    monkeypatch.setattr(host, "require_programs", lambda: None)
    monkeypatch.setattr(rootfs, "host_resolver", lambda: "nameserver 192.0.2.1\n")
    monkeypatch.setattr(identity, "RUN_DIR", tmp_path / "run")
    for module in (rehearsal, teardown):
        monkeypatch.setattr(module, "HOST_LOCK", tmp_path / "run/host.lock")
    for name in ("remove_nat", "remove_filter", "restore_forwarding"):
        monkeypatch.setattr(network, name, lambda *_: None)


@pytest.mark.usefixtures("bare_host")
def test_up_in_an_unusable_home_makes_nothing(home: Home) -> None:
    with pytest.raises(ConfigError, match=r"/proc/\.lab cannot be written"):
        RehearsalProvider(Home(Path("/proc"))).up("mine", MachineOptions(), print)
    assert list((home.root.parent / "state").rglob("mine")) == []
    assert state.labs_of(Path("/proc")) == []


@pytest.mark.usefixtures("bare_host")
@pytest.mark.parametrize("error", [ConfigError("no range is left"), KeyboardInterrupt()])
def test_up_that_fails_before_a_machine_leaves_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    said: list[str] = []
    base = LabIdentity.of(home.root, "mine").base

    def fail(*_: object) -> None:
        assert state.labs_of(home.root) == ["mine"]
        raise error

    image = Path(f"bookworm-{'0' * 12}")
    monkeypatch.setattr(rehearsal, "ensure_image", lambda *_: image)
    monkeypatch.setattr(rehearsal, "host_recipe", lambda _: None)
    monkeypatch.setattr(network, "taken_networks", lambda _: ())
    monkeypatch.setattr(network, "ensure_bridge", fail)
    with pytest.raises(type(error)):
        RehearsalProvider(home).up("mine", MachineOptions(), said.append)
    assert (base.exists(), list(home.root.iterdir()), said) == (False, [], [])


@pytest.mark.usefixtures("bare_host")
def test_up_refuses_another_s_inventory_before_it_does_anything(home: Home) -> None:
    brought(home, "mine")
    with pytest.raises(ConfigError, match="not written by labctl"):
        RehearsalProvider(home).up("mine", MachineOptions(), print)
    assert not (home.root.parent / "state").exists()
