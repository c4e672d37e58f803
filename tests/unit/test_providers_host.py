"""Names on the host, what may be removed there, locks, and control groups."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from labctl.errors import ConfigError, LabBusyError, MissingHostPackagesError, RemoteCommandError
from labctl.providers import cgroup, host, mounts
from labctl.providers.cgroup import LabCgroup
from labctl.providers.identity import LabIdentity, is_node_name, node_index
from labctl.providers.lock import hold

CHECKOUT = Path(__file__).resolve().parents[2]


def test_id_is_of_root_and_name() -> None:
    one = LabIdentity.of(Path("/srv/a"), "demo")
    assert re.fullmatch(r"[0-9a-f]{8}", one.id)
    assert one == LabIdentity.of(Path("/srv/a"), "demo")
    others = {
        LabIdentity.of(Path("/srv/b"), "demo").id,
        LabIdentity.of(Path("/srv/a"), "demo2").id,
        LabIdentity.of(Path("/srv/ad"), "emo").id,
    }
    assert len(others | {one.id}) == 4


def test_names_carry_the_id_and_fit_the_kernel() -> None:
    identity = LabIdentity.of(Path("/srv/a"), "demo")
    assert len(identity.bridge) <= 15
    assert identity.machine("tf0") == f"labctl-{identity.id}-tf0"
    for name in (identity.bridge, identity.nft_table, identity.cgroup, str(identity.base)):
        assert identity.id in name


def test_state_directory_can_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABCTL_STATE_DIR", "/srv/state")
    assert LabIdentity.of(Path("/srv/a"), "demo").uv_cache == Path("/srv/state/cache/uv")
    monkeypatch.setenv("LABCTL_STATE_DIR", "/srv/a,upperdir=")
    with pytest.raises(ConfigError, match="LABCTL_STATE_DIR"):
        LabIdentity.of(Path("/srv/a"), "demo").check_state_dir()


@pytest.mark.parametrize("name", ["tf", "tf01", "tf-1", "tf1/..", "tf100", "tf0\n", ""])
def test_odd_directory_names_are_no_nodes(name: str) -> None:
    assert not is_node_name(name)


def test_node_names_order_by_number() -> None:
    assert sorted(["tf10", "tf2"], key=node_index) == ["tf2", "tf10"]


def test_mountinfo_is_unescaped() -> None:
    text = (
        "36 35 98:0 / /mnt/a\\040b rw,noatime shared:1 - ext4 /dev/root rw,errors=continue\n"
        "50 36 0:41 / /mnt/o rw - overlay labctl-1-tf0 rw,lowerdir=/l,upperdir=/u\n"
        "half a line\n"
    )
    first, second = mounts.parse_mountinfo(text)
    assert first.point == Path("/mnt/a b")
    assert (second.fstype, second.source) == ("overlay", "labctl-1-tf0")
    assert "upperdir=/u" in second.options


def test_remove_tree_stays_inside(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    for path in (outside, inside, inside / ".." / "out"):
        with pytest.raises(RemoteCommandError, match="refused"):
            mounts.remove_tree(path, within=inside)
    assert outside.is_dir()


def test_remove_tree_does_not_follow_links(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside / "machine", outside):
        folder.mkdir(parents=True)
    (outside / "precious").touch()
    (inside / "machine" / "link").symlink_to(outside)
    (inside / "linked").symlink_to(outside)
    assert mounts.remove_tree(inside / "machine", within=inside)
    assert mounts.remove_tree(inside / "linked", within=inside)
    assert not mounts.remove_tree(inside / "machine", within=inside)
    assert (outside / "precious").exists()
    assert list(inside.iterdir()) == []


def test_remove_tree_refuses_a_live_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "in" / "machine" / "root"
    root.mkdir(parents=True)
    (root / "file").touch()
    found = (mounts.Mount(root, "overlay", "labctl-1-tf0", "rw"),)
    monkeypatch.setattr(mounts, "mounts", lambda: found)
    with pytest.raises(RemoteCommandError, match="still mounted"):
        mounts.remove_tree(tmp_path / "in" / "machine", within=tmp_path / "in")
    assert (root / "file").exists()


def test_mounts_below_come_topmost_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [tmp_path, tmp_path / "a", tmp_path / "a" / "b", Path("/elsewhere")]
    monkeypatch.setattr(
        mounts, "mounts", lambda: tuple(mounts.Mount(p, "tmpfs", "x", "rw") for p in points)
    )
    assert [m.point for m in mounts.below(tmp_path / "a")] == [points[2], points[1]]


def test_lock_names_its_holder(tmp_path: Path) -> None:
    file = tmp_path / "run" / "lab.lock"
    with hold(file, "labctl up for lab demo"):
        with pytest.raises(LabBusyError) as caught, hold(file, "labctl down for lab demo"):
            pass
        assert f"labctl up for lab demo (pid {os.getpid()})" in caught.value.found
        assert caught.value.exit_code == 9
    assert not file.exists()
    with hold(file, "labctl down for lab demo"):
        assert file.exists()


def test_lock_is_free_after_an_error(tmp_path: Path) -> None:
    file = tmp_path / "lab.lock"
    with pytest.raises(ValueError, match="inner"), hold(file, "labctl up"):
        raise ValueError("inner")
    with hold(file, "labctl up"):
        pass


def test_a_file_left_by_a_dead_holder_is_no_lock(tmp_path: Path) -> None:
    file = tmp_path / "lab.lock"
    file.write_text('{"pid": 1, "what": "labctl up"}')
    with hold(file, "labctl down"):
        pass


def test_missing_programs_are_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in set(host.PROGRAMS) - {"nft", "systemd-nspawn"}:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setattr(host, "PATH", str(tmp_path))
    with pytest.raises(MissingHostPackagesError) as caught:
        host.require_programs()
    assert caught.value.found == "missing on this host: nft, systemd-nspawn"
    assert "apt-get install nftables systemd-container" in str(caught.value)


def test_the_script_installs_what_labctl_asks_for() -> None:
    script = (CHECKOUT / "scripts/host_packages.sh").read_text()
    listed = set(re.findall(r'^packages="(.*)"$', script, re.MULTILINE)[0].split()) | set(
        re.findall(r'^packages="\$packages (.*)"$', script, re.MULTILINE)[0].split()
    )
    assert set(host.PROGRAMS.values()) <= listed


def test_without_root_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError) as caught:
        host.require_root()
    assert "sudo" in str(caught.value)
    assert "--lab loopback" in str(caught.value)


HYBRID = """\
30 23 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
33 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
34 30 0:30 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
"""


def test_control_group_hierarchies_of_hybrid_and_unified() -> None:
    base = Path("/sys/fs/cgroup")
    assert cgroup.hierarchies(mounts.parse_mountinfo(HYBRID)) == (
        ("v2", base / "unified"),
        ("name=systemd", base / "systemd"),
        ("memory", base / "memory"),
    )
    unified = mounts.parse_mountinfo("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    assert cgroup.hierarchies(unified) == (("v2", base),)


def test_memory_is_bound_in_v1_and_v2(tmp_path: Path) -> None:
    v2, v1 = tmp_path / "v2", tmp_path / "memory"
    for folder, file in ((v2, "memory.max"), (v1, "memory.limit_in_bytes")):
        (folder / "labctl-1/tf0").mkdir(parents=True)
        (folder / "labctl-1/tf0" / file).touch()
    lab = LabCgroup("labctl-1", (("v2", v2), ("memory", v1)))
    made, bound = lab.make("tf0", memory_bytes=2**30)
    assert made == (v2 / "labctl-1/tf0", v1 / "labctl-1/tf0")
    assert bound
    assert (v2 / "labctl-1/tf0/memory.max").read_text() == str(2**30)
    assert (v1 / "labctl-1/tf0/memory.limit_in_bytes").read_text() == str(2**30)
    lab.make("tf0", memory_bytes=None)
    assert (v2 / "labctl-1/tf0/memory.max").read_text() == "max"
    assert (v1 / "labctl-1/tf0/memory.limit_in_bytes").read_text() == "-1"


def test_a_bound_that_cannot_be_set_is_reported(tmp_path: Path) -> None:
    lab = LabCgroup("labctl-1", (("name=systemd", tmp_path),))
    assert lab.make("tf0", memory_bytes=2**30) == ((tmp_path / "labctl-1/tf0",), False)
    assert lab.make("tf0", memory_bytes=None)[1]


def test_groups_are_found_and_removed_with_all_below(tmp_path: Path) -> None:
    lab = LabCgroup("labctl-1", (("v2", tmp_path),))
    (tmp_path / "labctl-1/tf0/payload/init.scope").mkdir(parents=True)
    (tmp_path / "labctl-1/tf1").mkdir()
    (tmp_path / "labctl-2/tf0").mkdir(parents=True)
    assert lab.nodes() == {"tf0", "tf1"}
    assert lab.remove("tf0")
    assert lab.nodes() == {"tf1"}
    assert lab.remove()
    assert not lab.exists()
    assert (tmp_path / "labctl-2/tf0").is_dir()
