"""Where an image's packages come from, and when two images are the same."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from labctl.errors import ConfigError
from labctl.providers import image
from labctl.providers.image import Recipe, debian_sources

CHECKOUT = Path(__file__).resolve().parents[2]

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security/
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""
ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian bookworm main  # x
deb-src http://mirror.example/debian bookworm main
deb http://mirror.example/debian-security stable-security main
"""
THIRD_PARTY = """\
deb [arch=amd64] https://docker.example/linux/debian bookworm stable
deb https://cloud.example/apt cloud-sdk-bookworm main
deb https://tools.example bookworm main
deb [signed-by=/usr/share/keyrings/vendor.gpg] https://vendor.example/debian bookworm main
"""
UBUNTU = "deb http://archive.example/ubuntu jammy main universe\n"


def test_sources_of_the_debian_archive_are_taken_from_the_host() -> None:
    text = debian_sources([(".sources", DEB822), (".list", THIRD_PARTY)], "bookworm", "bookworm")
    assert (
        text
        == """\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security/
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
    )


def test_another_release_has_the_host_s_mirror() -> None:
    text = debian_sources([(".sources", DEB822)], "bookworm", "trixie")
    assert "Suites: trixie trixie-updates\n" in text
    assert "Suites: trixie-security\n" in text
    assert "bookworm" not in text


def test_one_line_sources_are_read_too() -> None:
    text = debian_sources([(".list", ONE_LINE)], "bookworm", "trixie")
    assert text.count("Types: deb\n") == 2
    assert "URIs: http://mirror.example/debian\nSuites: trixie\n" in text
    assert "Suites: trixie-security\n" in text
    assert "commented" not in text


@pytest.mark.parametrize("text", [THIRD_PARTY, UBUNTU, ""])
def test_a_host_without_the_debian_archive_leaves_the_choice(text: str) -> None:
    assert debian_sources([(".list", text)], "jammy", "bookworm") == ""
    assert debian_sources([(".list", text)], "bookworm", "bookworm") == ""


def test_same_recipe_same_name() -> None:
    recipe = Recipe("bookworm", "a")
    assert recipe.name == Recipe("bookworm", "a").name
    assert image.is_image_name(recipe.name)
    changed = [
        dataclasses.replace(recipe, suite="trixie"),
        dataclasses.replace(recipe, sources="b"),
        dataclasses.replace(recipe, options=('Acquire::http::Proxy "http://p:3142";',)),
    ]
    assert len({each.name for each in [recipe, *changed]}) == 4


@pytest.mark.parametrize("name", ["bookworm", "../bookworm-0123456789ab", "sid-0123456789ab", ""])
def test_other_directories_are_no_images(name: str) -> None:
    assert not image.is_image_name(name)


def test_build_command() -> None:
    recipe = Recipe("trixie", "x", ('Acquire::http::Proxy "http://p:3142";',))
    argv = image.build_argv(recipe, Path("/t/root"), Path("/t/debian.sources"))
    assert argv[0] == "mmdebstrap"
    assert argv[-3:] == ["trixie", "/t/root", "/t/debian.sources"]
    assert '--aptopt=Acquire::http::Proxy "http://p:3142";' in argv
    assert image.build_argv(recipe, Path("/t/root"), None)[-2:] == ["trixie", "/t/root"]


def test_the_image_is_bare_but_has_what_the_roles_install_at_hand() -> None:
    defaults = yaml.safe_load((CHECKOUT / "roles/lab_base/defaults/main.yml").read_text())
    wanted = set(defaults["lab_base_packages"])
    assert wanted <= set(image.PACKAGES) | set(image.PREFETCHED)
    assert not set(image.PACKAGES) & set(image.PREFETCHED)


def test_sshd_takes_keys_only() -> None:
    lines = "\n".join(image.hooks())
    for setting in ("PasswordAuthentication no", "PermitRootLogin no"):
        assert re.search(rf"^{setting}$", lines, re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "codename"), [("12", "bookworm"), ("13", "trixie"), ("trixie", "trixie")]
)
def test_release_by_number_or_name(text: str, codename: str) -> None:
    assert image.parse_release(text) == codename


def test_unknown_release() -> None:
    with pytest.raises(ConfigError, match="--release 11"):
        image.parse_release("11")
