"""`labctl up`, `down`, `labs`, `use` on real machines, beside another lab that must not notice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from labctl.providers.identity import LabIdentity
from labctl.providers.lock import hold

if TYPE_CHECKING:
    from tests.conftest import RehearsalLab

EXTRA = "extra"


class ExtraLab:
    """A second lab in the root of the shared one."""

    def __init__(self, shared: RehearsalLab) -> None:
        self.shared = shared
        self.identity = LabIdentity.of(shared.root, EXTRA)
        self.local = shared.root / ".lab" / EXTRA
        self.inventory = shared.root / "inventory" / EXTRA

    def up(self, *args: str) -> dict[str, Any]:
        done = self.shared.labctl("up", "--lab", EXTRA, "--json", *args, timeout_s=900)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def down(self, *args: str) -> dict[str, Any]:
        done = self.shared.labctl("down", "--lab", EXTRA, "--json", *args)
        assert done.returncode == 0, done.stderr
        receipt: dict[str, Any] = json.loads(done.stdout)
        return receipt

    def addresses(self) -> dict[str, str]:
        import yaml

        groups = yaml.safe_load((self.inventory / "hosts.yml").read_text())["tf_cluster"]
        return {
            name: host["ansible_host"]
            for group in groups["children"].values()
            for name, host in group["hosts"].items()
        }

    def ssh(self, node: str, command: str, *, check: bool = True) -> str:
        done = subprocess.run(
            [
                "ssh",
                *("-F", "none", "-i", str(self.local / "id_ed25519"), "-o", "BatchMode=yes"),
                *("-o", f"UserKnownHostsFile={self.local / 'known_hosts'}"),
                *("-o", "StrictHostKeyChecking=yes"),
                f"admin@{self.addresses()[node]}",
                command,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def boot_id(self, node: str) -> str:
        return self.ssh(
            node, "cat /proc/sys/kernel/random/boot_id; cat /proc/1/stat | cut -d' ' -f22"
        )

    def kill(self, node: str) -> None:
        """Kill a machine as a crash would."""
        argument = f"--machine={self.identity.machine(node)}"
        for pid in nspawn_pids(argument):
            Path(f"/proc/{pid}/stat").read_bytes()
            subprocess.run(["kill", "-KILL", str(pid)], check=True)
        deadline = time.monotonic() + 10
        while nspawn_pids(argument) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert nspawn_pids(argument) == []

    def traces(self) -> set[str]:
        """Return the kinds of things on this host that have the lab's id in their name."""
        text = {
            "mount": Path("/proc/self/mountinfo").read_text(),
            "link": output("ip", "-oneline", "link"),
            "table": output("nft", "list", "tables"),
            "group": "\n".join(map(str, Path("/sys/fs/cgroup").rglob("*labctl-*"))),
            "process": "\n".join(nspawn_lines()),
            "state": "\n".join(map(str, self.identity.base.parent.iterdir())),
            "lock": "\n".join(map(str, self.identity.lock_file.parent.glob("*.lock"))),
        }
        return {kind for kind, found in text.items() if self.identity.id in found}


def output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout


def nspawn_lines() -> list[str]:
    listed = output("ps", "-ww", "-eo", "pid=,stat=,args=").splitlines()
    return [line for line in listed if "systemd-nspawn" in line and " Z" not in line]


def nspawn_pids(argument: str) -> list[int]:
    return [int(line.split()[0]) for line in nspawn_lines() if argument in line.split()]


def state_of_extra(extra: ExtraLab) -> str | None:
    """Return the lab's state in the list of labs, None when it is not listed."""
    rows = extra.shared.labctl_json("labs")
    return {row["name"]: row["state"] for row in rows}.get(EXTRA)


@pytest.fixture
def extra(bare_lab: RehearsalLab) -> Iterator[ExtraLab]:
    lab = ExtraLab(bare_lab)
    try:
        yield lab
    finally:
        bare_lab.labctl("down", "--lab", EXTRA, "--force", check=True)
        shutil.rmtree(lab.inventory, ignore_errors=True)  # edited variables stay after a down
        bare_lab.labctl("use", bare_lab.name, check=True)


def test_up_again_down_and_down_again(extra: ExtraLab, bare_lab: RehearsalLab) -> None:
    boot = ["cat", "/proc/1/stat"]
    others = {name: bare_lab.ssh(name, boot).stdout.split()[21] for name in ("tf0", "tf1")}

    made = extra.up("--nodes", "2")
    assert (made["state"], len(made["nodes"]), made["active"]) == ("up", 2, True)
    addresses = extra.addresses()
    assert set(addresses.values()).isdisjoint({node.data_address for node in bare_lab.lab.nodes})
    assert extra.traces() == {"mount", "link", "table", "group", "process", "state"}
    for node in ("tf0", "tf1"):
        assert extra.ssh(node, "systemctl is-system-running") == "running"
        assert extra.ssh(node, "hostname; id -un; sudo id -un") == f"{node}\nadmin\nroot"
        assert addresses[node] in extra.ssh(node, "getent hosts $(hostname)")
    assert extra.local.stat().st_mode & 0o777 == 0o700
    for name in ("id_ed25519", "known_hosts"):
        assert (extra.local / name).stat().st_mode & 0o777 == 0o600

    boots = [extra.boot_id(node) for node in ("tf0", "tf1")]
    started = time.monotonic()
    extra.up()
    assert time.monotonic() - started < 30
    assert [extra.boot_id(node) for node in ("tf0", "tf1")] == boots

    record = extra.local / "runs" / "20261130T141502Z-3fa9c1" / "run.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    receipt = extra.down()
    assert {"machine tf0", "machine tf1", f"bridge {extra.identity.bridge}"} <= set(
        receipt["removed"]
    )
    assert (receipt["left"], receipt["forgotten"], receipt["cost"]) == ([], [], 0)
    assert extra.traces() == set()
    assert not extra.inventory.exists()
    assert [path.name for path in extra.local.iterdir()] == ["runs"]
    assert record.read_text() == "{}"
    assert not (bare_lab.root / "inventory/active").is_symlink()

    again = extra.down()
    assert again == {"removed": [], "left": [], "forgotten": [], "cost": 0, "kept": []}
    for name, start in others.items():
        assert bare_lab.ssh(name, boot).stdout.split()[21] == start


def test_machines_are_bare_and_reach_the_outside(extra: ExtraLab) -> None:
    extra.up("--nodes", "1")
    settings = extra.ssh("tf0", "sudo sshd -T")
    for setting in ("passwordauthentication no", "permitrootlogin no"):
        assert setting in settings.splitlines()
    assert (
        extra.ssh("tf0", "dpkg-query -Wf '${db:Status-Status}' nftables", check=False)
        != "installed"
    )
    # from the image's own package cache
    extra.ssh(
        "tf0",
        "sudo apt-get install --yes --no-install-recommends --no-download acl nftables python3-venv",
    )
    extra.ssh("tf0", "sudo apt-get update --quiet -o APT::Update::Error-Mode=any")
    bundle = Path("/etc/ssl/certs/ca-certificates.crt").read_text()
    assert extra.ssh("tf0", "cat /etc/ssl/certs/ca-certificates.crt") == bundle.strip()


def test_up_heals_what_died(extra: ExtraLab) -> None:
    extra.up("--nodes", "2")
    extra.ssh("tf1", "echo kept | sudo tee /var/lib/mark")
    extra.ssh("tf1", "sync")
    boot = extra.boot_id("tf0")
    extra.kill("tf1")
    assert state_of_extra(extra) == "partly"

    assert extra.up()["state"] == "up"
    assert extra.ssh("tf1", "cat /var/lib/mark") == "kept"
    assert extra.boot_id("tf0") == boot


def test_up_heals_a_network_that_went_away(extra: ExtraLab) -> None:
    extra.up("--nodes", "2")
    output("ip", "link", "delete", extra.identity.bridge)
    subprocess.run(["nft", "delete", "table", "ip", extra.identity.nft_table], check=True)
    assert extra.up()["state"] == "up"
    assert extra.traces() >= {"link", "table"}
    extra.ssh("tf0", "python3 -c \"import socket; socket.create_connection(('tf1', 22), 5)\"")


def test_up_starts_a_mute_machine_anew(extra: ExtraLab) -> None:
    extra.up("--nodes", "1")
    boot = extra.boot_id("tf0")
    extra.ssh("tf0", "sudo systemctl stop ssh.service ssh.socket", check=False)
    assert extra.up()["state"] == "up"
    assert extra.boot_id("tf0") != boot


def test_a_machine_that_cannot_boot_shows_its_console(extra: ExtraLab) -> None:
    extra.up("--nodes", "2")
    extra.kill("tf1")
    (extra.identity.paths("tf1").root / "usr/lib/systemd/systemd").unlink()
    done = extra.shared.labctl("up", "--lab", EXTRA)
    assert done.returncode == 5
    assert "tf1 did not come up: systemd-nspawn ended" in done.stderr
    assert "No such file or directory" in done.stderr
    assert extra.ssh("tf0", "hostname") == "tf0"
    assert extra.down()["left"] == []


def test_nodes_up_and_down(extra: ExtraLab) -> None:
    extra.up("--nodes", "1")
    boot = extra.boot_id("tf0")
    assert [node["name"] for node in extra.up("--nodes", "3")["nodes"]] == ["tf0", "tf1", "tf2"]
    assert extra.ssh("tf2", "getent hosts tf1").split() == [extra.addresses()["tf1"], "tf1"]
    done = extra.shared.labctl("up", "--lab", EXTRA, "--nodes", "1")
    assert done.returncode == 0
    assert "tf2: removed" in done.stderr
    assert set(extra.addresses()) == {"tf0"}
    assert nspawn_pids(f"--machine={extra.identity.machine('tf2')}") == []
    assert not extra.identity.paths("tf2").base.exists()
    assert extra.boot_id("tf0") == boot


def test_down_after_labctl_was_killed(extra: ExtraLab) -> None:
    """Killed while it makes machines, and its record damaged on top of it."""
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "labctl"), "up", "--lab", EXTRA, "--nodes", "4"],
        env=extra.shared.environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while "process" not in extra.traces() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert extra.traces() >= {"mount", "link", "process", "state"}
    assert state_of_extra(extra) == "partly"
    extra.identity.state_file.write_text('{"format": 1, "nodes": "../../..", "image": "/"}')
    assert state_of_extra(extra) == "partly"
    assert extra.shared.labctl("use", EXTRA).returncode == 3

    receipt = extra.down()
    assert receipt["left"] == []
    assert "machine tf0" in receipt["removed"]
    assert extra.traces() == set()


def test_up_completes_what_a_killed_one_began(extra: ExtraLab) -> None:
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "labctl"), "up", "--lab", EXTRA, "--nodes", "3"],
        env=extra.shared.environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while "process" not in extra.traces() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(extra.up()["nodes"]) == 3
    assert {extra.ssh(node, "hostname") for node in extra.addresses()} == {"tf0", "tf1", "tf2"}


def test_down_leaves_what_cannot_be_unmounted_and_says_so(extra: ExtraLab) -> None:
    extra.up("--nodes", "1")
    root = extra.identity.paths("tf0").root
    with subprocess.Popen(["sleep", "300"], cwd=root) as holder:
        try:
            done = extra.shared.labctl("down", "--lab", EXTRA, "--json")
            assert done.returncode == 1
            assert any(str(root) in each for each in json.loads(done.stdout)["left"])
            assert (root / "etc/hostname").read_text() == "tf0\n"
            assert (extra.local / "id_ed25519").exists()
        finally:
            holder.kill()
    assert extra.down()["left"] == []
    assert extra.traces() == set()


def test_one_command_at_a_time(extra: ExtraLab) -> None:
    with hold(extra.identity.lock_file, "labctl up for lab extra"):
        for command in ("up", "down"):
            done = extra.shared.labctl(command, "--lab", EXTRA)
            assert done.returncode == 9
            assert "labctl up for lab extra (pid" in done.stderr


def test_debian_13_with_a_bound(extra: ExtraLab) -> None:
    made = extra.up("--release", "13", "--nodes", "1", "--memory", "512M")
    assert made["state"] == "up"
    assert "VERSION_CODENAME=trixie" in extra.ssh("tf0", "cat /etc/os-release")
    assert extra.ssh("tf0", "systemctl is-system-running") == "running"
    ended = extra.ssh("tf0", "python3 -c 'b\"x\" * (700 << 20)'; echo $?", check=False)
    assert ended == "137"
    refused = extra.shared.labctl("up", "--lab", EXTRA, "--release", "12")
    assert refused.returncode == 3
    assert "runs trixie" in refused.stderr


def test_group_vars_that_the_user_edited_stay(extra: ExtraLab) -> None:
    extra.up("--nodes", "1")
    variables = extra.inventory / "group_vars/all.yml"
    variables.write_text(variables.read_text() + "tf_port: 3333\n")
    hosts = extra.inventory / "hosts.yml"
    hosts.write_text(hosts.read_text() + "# mine\n")
    done = extra.shared.labctl("up", "--lab", EXTRA, check=True)
    assert f"{hosts} was edited and is written anew" in done.stderr
    assert "tf_port: 3333" in variables.read_text()
    assert "# mine" not in hosts.read_text()
    kept = extra.inventory / "hosts.yml.orig"
    assert kept.read_text().endswith("# mine\n")
    assert set(extra.down()["kept"]) == {str(variables), str(kept)}
    assert "tf_port: 3333" in variables.read_text()
    assert state_of_extra(extra) is None
    refused = extra.shared.labctl("use", EXTRA)
    assert (refused.returncode, f"labctl up --lab {EXTRA}" in refused.stderr) == (3, True)


def test_bounds_changed_on_a_running_machine(extra: ExtraLab) -> None:
    extra.up("--nodes", "2", "--cpus-per-node", "1")
    options = ("--memory", "1G", "--cpus-per-node", "2")
    done = extra.shared.labctl("up", "--lab", EXTRA, *options, check=True)
    for node in ("tf0", "tf1"):
        (line,) = [line for line in done.stderr.splitlines() if f"{node}:" in line]
        assert "memory bound 1024 MiB, as of now" in line
        assert "from its next start" in line or len(os.sched_getaffinity(0)) < 2


def test_up_where_nothing_can_be_written_leaves_nothing(bare_lab: RehearsalLab) -> None:
    done = bare_lab.labctl("up", "--lab", EXTRA, env={"LABCTL_HOME": "/proc"})
    assert (done.returncode, "/proc/.lab cannot be written" in done.stderr) == (3, True)
    identity = LabIdentity.of(Path("/proc"), EXTRA)
    assert identity.id not in output("ip", "link") + output("nft", "list", "tables")
    assert not identity.base.exists()


def test_an_inventory_of_the_user_s_is_neither_overwritten_nor_removed(
    bare_lab: RehearsalLab, tmp_path: Path
) -> None:
    hosts = tmp_path / "inventory/mine/hosts.yml"
    hosts.parent.mkdir(parents=True)
    hosts.write_text("tf_cluster: {}\n")
    for command, words in (("up", "not written by labctl"), ("down", "teardown.yml")):
        done = bare_lab.labctl(command, "--lab", "mine", env={"LABCTL_HOME": str(tmp_path)})
        assert done.returncode == 3
        assert words in done.stderr
    assert hosts.read_text() == "tf_cluster: {}\n"
    assert LabIdentity.of(tmp_path, "mine").id not in output("ip", "link")


BESIDE_DOCKER = """
set -eu
# /run/labctl of its own: this network namespace has its own forwarding switch
mount -t tmpfs tmpfs /run/labctl
echo 0 > /proc/sys/net/ipv4/ip_forward
ip link set lo up
ip link add out0 type veth peer name out1
ip address add 192.0.2.1/24 dev out0
ip link set out0 up
unshare --net sleep 120 &
outside=$!
sleep 0.5
ip link set out1 netns $outside
nsenter --net --target $outside sh -c 'ip address add 192.0.2.9/24 dev out1; ip link set out1 up'
nsenter --net --target $outside python3 -c 'import socket
s = socket.create_server(("192.0.2.9", 8000))
while True: s.accept()[0].send(b"outside")' &
server=$!
trap 'kill $outside $server' EXIT
for rule in '-P FORWARD DROP' '-N DOCKER-USER' '-A FORWARD -j DOCKER-USER' '-A DOCKER-USER -j RETURN'; do
    iptables-nft $rule
done
iptables-nft -S > "$1/before"
labctl up --lab extra --nodes 1
ssh -F none -i .lab/extra/id_ed25519 -o UserKnownHostsFile=.lab/extra/known_hosts admin@10.132.0.2 \\
    python3 -c "'import socket; print(socket.create_connection((\\"192.0.2.9\\", 8000), 10).recv(9))'" > "$1/said"
labctl down --lab extra
iptables-nft -S > "$1/after"
cat /proc/sys/net/ipv4/ip_forward > "$1/forward"
"""


@pytest.mark.skipif(not shutil.which("iptables-nft"), reason="not installed: iptables")
def test_beside_docker(extra: ExtraLab, tmp_path: Path) -> None:
    """Docker's FORWARD policy, in a network namespace of its own with a host outside of it."""
    done = subprocess.run(
        ["unshare", "--net", "--mount", "bash", "-c", BESIDE_DOCKER, "bash", str(tmp_path)],
        cwd=extra.shared.root,
        env=extra.shared.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "DOCKER-USER drops forwarded packets" in done.stderr
    assert "outside" in (tmp_path / "said").read_text()
    assert (tmp_path / "after").read_text() == (tmp_path / "before").read_text()
    assert (tmp_path / "forward").read_text().strip() == "0"
    assert extra.traces() == set()
