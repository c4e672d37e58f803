"""Which driver fits which device, and what is done to apt's sources, as the role nvidia_driver sees them."""

from __future__ import annotations

import base64
import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import yaml

from tests.fakes import scenario

CHECKOUT = Path(__file__).resolve().parents[2]
ROLE = CHECKOUT / "roles/nvidia_driver"


def load(path: str) -> ModuleType:
    name = f"nvidia_driver_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, ROLE / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


driver: Any = load("filter_plugins/nvidia_driver.py")
apt: Any = load("files/apt_source.py")
TABLE = yaml.safe_load((ROLE / "vars/main.yml").read_text())["__nvidia_driver_table"]


def state(
    *ids: str, answers: str = "", packages: dict[str, tuple[str, bool]] | None = None
) -> dict[str, Any]:
    return {
        "devices": [{"address": "0000:00:1e.0", "class": "0302", "id": each} for each in ids],
        "driver": {"answers": bool(answers), "version": answers, "said": ""},
        "packages": {
            name: {"version": version, "held": held}
            for name, (version, held) in (packages or {}).items()
        },
    }


def plan(
    *ids: str, answers: str = "", default_branch: str = "535", modules: bool = True, **asked: Any
) -> dict[str, Any]:
    options = {"branch": "", "version": "", "flavour": "auto", "forced": False, **asked}
    found: dict[str, Any] = driver.driver_plan(
        state(*ids, answers=answers),
        TABLE,
        default_branch=default_branch,
        modules=modules,
        **options,
    )
    return found


class TestDevices:
    @pytest.mark.parametrize(
        ("device", "architecture"),
        [
            ("102d", "Kepler"),
            ("13f2", "Maxwell"),
            ("17fd", "Maxwell"),
            ("15f7", "Pascal"),
            ("15f8", "Pascal"),
            ("15f9", "Pascal"),
            ("1b38", "Pascal"),
            ("1bb3", "Pascal"),
            ("1d01", "Pascal"),
            ("1db1", "Volta"),
            ("1db6", "Volta"),
            ("1e04", "Turing"),
            ("1eb8", "Turing"),
            ("2182", "Turing"),
            ("20b0", "Ampere"),
            ("20F1", "Ampere"),
            ("2237", "Ampere"),
            ("2484", "Ampere"),
            ("26b9", "Ada"),
            ("27b8", "Ada"),
            ("2330", "Hopper"),
            ("2335", "Hopper"),
            ("2901", "Blackwell"),
            ("2b85", "Blackwell"),
        ],
    )
    def test_id_stands_for_its_architecture(self, device: str, architecture: str) -> None:
        (found,) = driver.with_architecture(state(device)["devices"], TABLE)
        assert found["architecture"]["name"] == architecture

    def test_no_id_stands_for_two(self) -> None:
        ranges = sorted(
            (int(low, 16), int(high, 16))
            for row in TABLE["architectures"].values()
            for low, high in row["ids"]
        )
        assert all(low <= high for low, high in ranges)
        assert all(one[1] < other[0] for one, other in itertools.pairwise(ranges))

    @pytest.mark.parametrize("name", scenario.names())
    def test_every_card_of_the_fakes_is_known(self, name: str) -> None:
        for gpu in scenario.load(name).gpus:
            (found,) = driver.with_architecture(state(gpu.pci_id[-4:])["devices"], TABLE)
            assert found["architecture"] is not None

    def test_every_named_card_has_an_architecture(self) -> None:
        found = driver.with_architecture(state(*TABLE["names"])["devices"], TABLE)
        assert all(device["architecture"] for device in found)


class TestPlan:
    def test_nothing_is_wanted_without_a_device(self) -> None:
        assert not plan()["wanted"]
        assert plan(forced=True)["wanted"]

    def test_driver_that_answers_is_kept(self) -> None:
        found = plan("1eb8", answers="550.54.15")
        assert (found["keep"], found["branch"], found["problem"]) == (True, 550, None)

    @pytest.mark.parametrize(
        "asked", [{"branch": "580"}, {"version": "580.95.05-1"}, {"flavour": "open"}]
    )
    def test_driver_that_answers_is_not_kept_against_a_wish(self, asked: dict[str, Any]) -> None:
        assert not plan("1eb8", answers="550.54.15", **asked)["keep"]

    @pytest.mark.parametrize(
        ("device", "branch", "do"),
        [
            ("15f8", "590", "nvidia_driver_branch: 580"),
            ("1bb3", "590", "nvidia_driver_branch: 580"),
            ("13f2", "595", "nvidia_driver_branch: 580"),
            ("1db4", "590", "nvidia_driver_branch: 580"),
            ("102d", "535", "nvidia_driver_branch: 470"),
            ("2901", "550", "nvidia_driver_branch: 580"),
            ("27b8", "470", "nvidia_driver_branch: 580"),
        ],
    )
    def test_branch_that_does_not_know_the_device_is_refused(
        self, device: str, branch: str, do: str
    ) -> None:
        problem = plan(device, branch=branch)["problem"]
        assert f"branch {branch}" in problem["found"]
        assert do in problem["do"]

    def test_default_that_is_too_old_names_the_other_source(self) -> None:
        assert "nvidia_driver_source: nvidia" in plan("2901")["problem"]["do"]

    @pytest.mark.parametrize(
        ("devices", "branch", "flavour"),
        [
            (["1eb8"], "535", "closed"),
            (["1eb8"], "580", "open"),
            (["2330"], "580", "open"),
            (["2901"], "570", "open"),
            (["15f8"], "580", "closed"),
            (["1db1"], "580", "closed"),
            (["1eb8", "15f8"], "580", "closed"),
            (["ffff"], "580", "open"),
        ],
    )
    def test_modules_follow_the_device(self, devices: list[str], branch: str, flavour: str) -> None:
        found = plan(*devices, branch=branch)
        assert (found["flavour"], found["problem"]) == (flavour, None)

    @pytest.mark.parametrize(
        ("device", "branch", "flavour", "do"),
        [
            ("1bb3", "580", "open", "closed"),
            ("1db1", "535", "open", "closed"),
            ("2901", "580", "closed", "open"),
            ("1eb8", "470", "open", "closed"),
        ],
    )
    def test_modules_that_do_not_suit_are_refused(
        self, device: str, branch: str, flavour: str, do: str
    ) -> None:
        problem = plan(device, branch=branch, flavour=flavour)["problem"]
        assert f"nvidia_driver_flavour: {do}" in problem["do"]

    def test_cards_that_no_modules_drive_together_are_refused(self) -> None:
        assert plan("2901", "15f8", branch="580")["problem"] is not None

    def test_container_is_not_asked_for_modules(self) -> None:
        assert plan("2901", branch="580", flavour="closed", modules=False)["problem"] is None

    def test_one_of_several_cards_decides(self) -> None:
        assert "Pascal" in plan("1eb8", "15f8", branch="590")["problem"]["found"]

    @pytest.mark.parametrize(
        "asked",
        [{"branch": "535", "version": "580.95.05-1"}, {"branch": "58"}, {"branch": "latest"}],
    )
    def test_wish_that_is_none_is_refused(self, asked: dict[str, Any]) -> None:
        assert plan("1eb8", **asked)["problem"] is not None

    def test_unknown_distribution_needs_a_branch(self) -> None:
        assert plan("1eb8", default_branch="")["problem"]["do"] == "set nvidia_driver_branch"
        assert plan("1eb8", default_branch="", branch="580")["problem"] is None

    @pytest.mark.parametrize("device", list(TABLE["names"]))
    def test_what_a_refusal_says_to_do_helps(self, device: str) -> None:
        """Whatever branch is asked for: following the message once gives a driver."""
        for branch in ("390", "470", "535", "570", "580", "590"):
            problem = plan(device, branch=branch)["problem"]
            if problem is not None:
                told = problem["do"].partition("nvidia_driver_branch: ")[2].split()[0]
                assert plan(device, branch=told)["problem"] is None


class TestPackages:
    PINNED = ({"name": "libcuda1", "pinned": True}, {"name": "nvidia-smi", "pinned": True})

    def missing(self, version: str = "", **packages: tuple[str, bool]) -> list[str]:
        there = {name.replace("_", "-"): package for name, package in packages.items()}
        found: list[str] = driver.packages_missing(state(packages=there), self.PINNED, 535, version)
        return found

    def test_absent_and_other_branches_are_missing(self) -> None:
        assert self.missing() == ["libcuda1", "nvidia-smi"]
        assert self.missing(libcuda1=("535.1.2-1", True), nvidia_smi=("550.1-1", True)) == [
            "nvidia-smi"
        ]

    def test_any_version_of_the_branch_will_do_unless_one_is_asked_for(self) -> None:
        there: dict[str, Any] = {
            "libcuda1": ("535.1.2-1", True),
            "nvidia_smi": ("1:535.2.2-1", True),
        }
        assert self.missing(**there) == []
        assert self.missing("535.1.2-1", **there) == ["nvidia-smi"]

    def test_those_that_an_upgrade_may_move_are_named(self) -> None:
        there = state(packages={"a": ("535.1-1", True), "b": ("535.1-1", False)})
        assert driver.not_held(there) == ["b"]

    @pytest.mark.parametrize(
        ("version", "branch"),
        [
            ("535.261.03-1", 535),
            ("1:580.95.05-0ubuntu1", 580),
            ("570", None),
            ("", None),
            ("9.535.1", None),
        ],
    )
    def test_branch_of_a_version(self, version: str, branch: int | None) -> None:
        assert driver.branch_of(version) == branch


DEBIAN = """Types: deb
# a comment
URIs: http://deb.example.org/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian.gpg

Types: deb deb-src
URIs: http://deb.example.org/debian-security/
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 xx
"""
NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos/"
OWN = Path("/etc/apt/sources.list.d/lab-nvidia-driver.sources")


class TestSources:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "sources.list.d").mkdir()
        (tmp_path / "sources.list.d/debian.sources").write_text(DEBIAN)
        return tmp_path

    def own(self, folder: Path) -> Path:
        return folder / "sources.list.d" / OWN.name

    def rendered(self, folder: Path, components: str = "contrib non-free") -> str:
        found: str = apt.rendered(
            {"components": components}, apt.entries(folder), self.own(folder), Path("/key.asc")
        )
        return found

    def test_components_follow_each_entry_of_main_and_its_key(self, folder: Path) -> None:
        text = self.rendered(folder)
        self.own(folder).write_text(text)
        added = [entry for entry in apt.entries(folder) if entry.file == self.own(folder)]
        assert [(e.uris, e.suites, e.components) for e in added] == [
            (["http://deb.example.org/debian"], ["bookworm"], ["contrib", "non-free"]),
            (["http://deb.example.org/debian"], ["bookworm-updates"], ["contrib", "non-free"]),
            (
                ["http://deb.example.org/debian-security"],
                ["bookworm-security"],
                ["contrib", "non-free"],
            ),
        ]
        there = {
            tuple(e.suites): e.signed_by for e in apt.entries(folder) if e.file != self.own(folder)
        }
        assert added[0].signed_by == there[("bookworm", "bookworm-updates")]
        assert added[2].signed_by == there[("bookworm-security",)]
        assert self.rendered(folder) == text

    def test_component_that_is_there_is_not_added(self, folder: Path) -> None:
        path = folder / "sources.list.d/debian.sources"
        path.write_text(DEBIAN.replace("Components: main", "Components: main contrib non-free"))
        assert self.rendered(folder) == ""
        assert "Components: non-free-firmware\n" in self.rendered(
            folder, "non-free non-free-firmware"
        )

    def test_one_line_entries_count_too(self, tmp_path: Path) -> None:
        (tmp_path / "sources.list").write_text(
            "# deb http://off.example.org bookworm main\n"
            "deb [arch=amd64 signed-by=/k.gpg] http://deb.example.org/debian bookworm main # all\n"
            "deb-src http://deb.example.org/debian bookworm main\n"
        )
        text = self.rendered(tmp_path, "non-free")
        assert text.count("Types: deb\n") == 1
        assert "Signed-By: /k.gpg\n" in text

    def test_entry_that_is_switched_off_gives_nothing(self, folder: Path) -> None:
        path = folder / "sources.list.d/debian.sources"
        path.write_text("Enabled: no\n" + DEBIAN.partition("\n\n")[0])
        assert self.rendered(folder) == ""

    def test_entries_for_nvidias_repository_are_left_to_one(self, folder: Path) -> None:
        stale = f"deb {NVIDIA}debian11/x86_64/ /\n"
        (folder / "sources.list").write_text(f"deb http://deb.example.org/x bookworm main\n{stale}")
        (folder / "sources.list.d/cuda.list").write_text(
            f"# by hand\ndeb [trusted=yes] {NVIDIA}debian12/x86_64 /\n"
        )
        source = {"uris": f"{NVIDIA}debian12/x86_64/", "suites": "/", "components": ""}
        gone = apt.contradicting(source, apt.entries(folder), self.own(folder), [NVIDIA])
        assert {entry.file.name for entry in gone} == {"sources.list", "cuda.list"}
        assert (
            apt.without(folder / "sources.list", gone)
            == "deb http://deb.example.org/x bookworm main\n"
        )
        assert apt.without(folder / "sources.list.d/cuda.list", gone) == ""

    def test_they_stay_where_the_driver_is_the_distributions(self, folder: Path) -> None:
        (folder / "sources.list.d/cuda.list").write_text(f"deb {NVIDIA}debian12/x86_64 /\n")
        source = {"components": "non-free"}
        assert apt.contradicting(source, apt.entries(folder), self.own(folder), [NVIDIA]) == []

    @pytest.mark.parametrize(
        ("said", "kind", "again"),
        [
            (
                "E: Conflicting values set for option Signed-By regarding source http://x/ /: a != b",
                "conflict",
                False,
            ),
            (
                "W: GPG error: http://x InRelease: NO_PUBKEY A4B469\nE: The repository 'http://x' is not signed.",
                "key",
                False,
            ),
            ("E: GPG error: http://x InRelease: EXPKEYSIG 3B4FE6ACC0B21F32 Ubuntu", "key", False),
            (
                "E: Failed to fetch http://x/Packages.gz  File has unexpected size (9 != 8).",
                "mismatch",
                True,
            ),
            ("E: Failed to fetch http://x/Packages  Hash Sum mismatch", "mismatch", True),
            ("E: The repository 'http://x' does not have a Release file.", "absent", True),
            (
                "E: Failed to fetch http://x  Could not connect to x:80 (192.0.2.1), connection timed out",
                "unreachable",
                True,
            ),
            (
                "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 5 (apt-get)",
                "locked",
                True,
            ),
            ("E: something new", "other", True),
        ],
    )
    def test_what_apt_says_is_understood(self, said: str, kind: str, again: bool) -> None:
        found = apt.fault_of(f"Reading package lists...\n{said}\n")
        assert found[:2] == (kind, again)
        assert found[2].startswith(said.partition("\n")[0][3:20])
        assert kind in apt.REMEDIES


class TestVersions:
    """Debian 12's archive and its security archive, as they were in November 2026."""

    THERE: ClassVar[dict[str, list[str]]] = {
        "nvidia-kernel-dkms": ["535.309.01-0+deb12u1", "535.261.03-1"],
        "nvidia-open-kernel-dkms": ["535.261.03-1"],
        "nvidia-smi": ["535.309.01-0+deb12u1", "535.261.03-1"],
        "nvidia-persistenced": ["535.171.04-1~deb12u1"],
        "linux-headers-6.1.0-57-amd64": [],
    }

    def chosen(self, *names: str, branch: str = "535", version: str = "") -> tuple[Any, Any]:
        packages = driver.packages_of(names, ["nvidia-persistenced"], None)
        wanted = {"packages": packages, "branch": branch, "version": version}
        found: tuple[Any, Any] = apt.chosen_versions(wanted, self.THERE)
        return found

    def test_newest_is_taken(self) -> None:
        versions, own = self.chosen("nvidia-kernel-dkms", "nvidia-smi")
        assert own == "535.309.01"
        assert versions == {
            "nvidia-kernel-dkms": "535.309.01-0+deb12u1",
            "nvidia-smi": "535.309.01-0+deb12u1",
            "nvidia-persistenced": "",
        }

    def test_newest_that_all_have_is_taken(self) -> None:
        versions, own = self.chosen("nvidia-open-kernel-dkms", "nvidia-smi")
        assert own == "535.261.03"
        assert versions["nvidia-smi"] == "535.261.03-1"

    def test_exact_version_is_taken(self) -> None:
        assert self.chosen("nvidia-smi", version="535.261.03-1")[1] == "535.261.03"

    @pytest.mark.parametrize(
        ("names", "asked", "found"),
        [
            (["nvidia-smi"], {"branch": "580"}, "nvidia-smi: 535.309.01-0+deb12u1, 535.261.03-1"),
            (["nvidia-smi"], {"version": "535.261.03-2"}, "nvidia-smi: 535.309"),
            (["linux-headers-6.1.0-57-amd64"], {}, "in no repository of the node"),
        ],
    )
    def test_what_is_not_there_is_named(
        self, names: list[str], asked: dict[str, Any], found: str
    ) -> None:
        with pytest.raises(apt.SourceError) as refused:
            self.chosen(*names, **asked)
        assert found in refused.value.args[1]

    def test_nothing_in_common_is_told(self) -> None:
        with pytest.raises(apt.SourceError) as refused:
            apt.chosen_versions(
                {
                    "packages": driver.packages_of(["a", "b"], [], None),
                    "branch": "535",
                    "version": "",
                },
                {"a": ["535.2.1-1"], "b": ["535.1.1-1"]},
            )
        assert refused.value.args[2] == "one version that all of them have"

    def test_pin_goes_down_too(self) -> None:
        assert "Pin: version 535.261.03*\nPin-Priority: 1001\n" in apt.pin_text("535.261.03")


class TestKey:
    # The smallest body that has a version 4 key packet: its fingerprint is SHA-1 over 99, the length and the body.
    BODY = bytes([4, 0x5F, 0, 0, 0, 1, 0, 8, 0x80])

    def expected(self) -> str:
        import hashlib

        return hashlib.sha1(b"\x99\x00\x09" + self.BODY).hexdigest().upper()  # noqa: S324 the format's own

    @pytest.mark.parametrize(
        "head", [b"\x98\x09", b"\x99\x00\x09", b"\x9a\x00\x00\x00\x09", b"\xc6\x09"]
    )
    def test_fingerprint_of_each_way_to_write_a_packet(self, head: bytes) -> None:
        assert apt.fingerprint(head + self.BODY + b"\xb4\x01x") == self.expected()

    def test_armoured_key(self) -> None:
        text = base64.b64encode(b"\x98\x09" + self.BODY)
        armoured = (
            b"-----BEGIN PGP PUBLIC KEY BLOCK-----\nVersion: 1\n\n"
            + text
            + b"\n=abcd\n-----END PGP PUBLIC KEY BLOCK-----\n"
        )
        assert apt.fingerprint(armoured) == self.expected()

    @pytest.mark.parametrize("junk", [b"", b"<html>", b"\xff", b"-----BEGIN PGP MESSAGE-----"])
    def test_what_is_no_key_has_none(self, junk: bytes) -> None:
        assert apt.fingerprint(junk) == ""

    def test_other_key_is_refused_with_the_repositorys_name(self) -> None:
        source = {"uris": "http://x.example/", "key": "no key", "fingerprint": "AB CD"}
        with pytest.raises(apt.SourceError) as refused:
            apt.key_of(source)
        kind, found, expected, _ = refused.value.args
        assert kind == "key"
        assert "http://x.example/" in found
        assert "ABCD" in expected


@pytest.mark.integration
def test_node_state_answers_on_a_machine_without_any_of_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-"],
        input=(ROLE / "files/node_state.py").read_text(),
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    assert said["driver"]["answers"] is False
    assert said["packages"] == {}
