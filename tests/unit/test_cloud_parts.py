"""The parts of what labctl does with clouds, each by itself: wishes, usage, prices, answers, words, addresses."""

from __future__ import annotations

import re
import urllib.error
from dataclasses import replace
from pathlib import Path
from typing import Any

import botocore.session  # noqa: F401 urllib3 opens a socket when it is imported first
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.errors import ConfigError, UsageError
from labctl.lab.home import Home
from labctl.playbook import PlaybookOutcome, TaskFailure
from labctl.providers.cloud import (
    address,
    catalogue,
    credentials,
    decide,
    demands,
    plays,
    prices,
    tell,
    usage,
)
from labctl.providers.cloud.books import lab_id
from labctl.providers.cloud.model import CloudOptions, Found, Resource
from labctl.providers.cloud.options import cloud_options
from labctl.providers.cloud.wish import Wish

OWN = {"lab": "demo", "lab_id": "0123abcd", "owner": "me", "project": "", "region": "us-east-1"}
AWS = catalogue.cloud("aws")
GCP = catalogue.cloud("gcp")
HOUR = 3600.0


def wish(cloud: catalogue.Cloud = AWS, known: dict[str, Any] | None = None, **options: Any) -> Wish:
    own = {**OWN, **({"project": "p", "region": "us-central1"} if cloud is GCP else {})}
    return decide.decide(cloud, known or {}, CloudOptions(**options), None, own)


# What shall be.


def test_defaults_are_two_machines_with_one_t4_each() -> None:
    aws, gcp = wish(), wish(GCP)
    assert (aws.nodes, aws.machine_type, aws.gpu_type, aws.gpu_count) == (2, "g4dn.xlarge", "T4", 1)
    assert (aws.region, aws.zone, aws.user) == ("us-east-1", "us-east-1a", "admin")
    assert (gcp.machine_type, gcp.zone, gcp.user) == ("n1-standard-4", "us-central1-a", "ubuntu")
    assert (aws.max_hours, aws.idle_minutes, aws.disk_gb) == (8.0, 60.0, 60)


@pytest.mark.parametrize(
    ("cloud", "options", "expected"),
    [
        (AWS, {"gpu_type": "", "gpu_count": 0}, ("m6i.large", "", 0, 20)),
        (AWS, {"gpu_type": "A10G", "gpu_count": 4}, ("g5.12xlarge", "A10G", 4, 60)),
        (AWS, {"machine_type": "p3.2xlarge"}, ("p3.2xlarge", "V100", 1, 60)),
        (AWS, {"machine_type": "c7i.large"}, ("c7i.large", "", 0, 20)),
        (AWS, {"machine_type": "g9.new", "gpu_type": "B9", "gpu_count": 2}, ("g9.new", "B9", 2, 60)),
        (GCP, {"gpu_type": "H100", "gpu_count": 8}, ("a3-highgpu-8g", "H100", 8, 60)),
        (GCP, {"machine_type": "n1-highmem-4", "gpu_type": "T4", "gpu_count": 2}, ("n1-highmem-4", "T4", 2, 60)),
        (GCP, {"machine_type": "n1-standard-8", "gpu_type": "V100"}, ("n1-standard-8", "V100", 1, 60)),
        (GCP, {"gpu_type": "T4", "gpu_count": 1, "disk_gb": 200}, ("n1-standard-4", "T4", 1, 200)),
    ],
)  # fmt: skip
def test_machine_type_and_gpus_follow_from_each_other(
    cloud: catalogue.Cloud, options: dict[str, Any], expected: tuple[str, str, int, int]
) -> None:
    found = wish(cloud, **options)
    assert (found.machine_type, found.gpu_type, found.gpu_count, found.disk_gb) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"machine_type": "g4dn.xlarge", "gpu_type": "A100", "gpu_count": 1}, "g4dn.xlarge has 1 x T4"),
        ({"machine_type": "g4dn.xlarge", "gpu_type": "T4", "gpu_count": 2}, "asks for 2 x T4"),
        ({"machine_type": "m6i.large", "gpu_type": "T4", "gpu_count": 1}, "has no GPU"),
        ({"gpu_type": "T4", "gpu_count": 3}, "no machine type of aws with 3 x T4"),
        ({"region": "eu-west-1", "zone": "us-east-1b"}, "zone us-east-1b is not in region"),
        ({"owner": "Me & You"}, "the owner is"),
        ({"max_hours": 9999.0}, "lab_max_hours is 9999"),
        ({"disk_gb": 2}, "disk of task 0"),
        ({"network": "vpc 1"}, "network is 'vpc 1'"),
        ({"admin_cidrs": ("0.0.0.0/0",)}, "the whole internet"),
        ({"admin_cidrs": ("10.0.0.1/8",)}, "lab_admin_cidrs has '10.0.0.1/8'"),
    ],
)  # fmt: skip
def test_wishes_that_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        wish(**options)


def test_gcp_needs_a_project() -> None:
    with pytest.raises(ConfigError, match="no project"):
        decide.decide(GCP, {}, CloudOptions(), None, {**OWN, "region": "us-central1"})


@pytest.mark.parametrize(
    ("cloud", "options", "place"),
    [
        (AWS, {"zone": "eu-west-1c"}, ("eu-west-1", "eu-west-1c")),
        (AWS, {"region": "eu-west-1"}, ("eu-west-1", "eu-west-1a")),
        (GCP, {"zone": "europe-west4-b"}, ("europe-west4", "europe-west4-b")),
        (GCP, {"region": "us-east1"}, ("us-east1", "us-east1-b")),
    ],
)
def test_region_and_zone_follow_from_each_other(
    cloud: catalogue.Cloud, options: dict[str, Any], place: tuple[str, str]
) -> None:
    found = wish(cloud, **options)
    assert (found.region, found.zone) == place


def test_a_region_that_is_asked_for_drops_the_zone_that_is_known() -> None:
    known = {"region": "us-east-1", "zone": "us-east-1f"}
    assert wish(known=known).zone == "us-east-1f"
    assert wish(known=known, region="eu-west-1").zone == "eu-west-1a"


@pytest.mark.parametrize(
    ("cloud", "text", "expected"),
    [
        (AWS, "ami-0123", ("ami-0123", "", "admin")),
        (AWS, "099720109477/ubuntu/images/*-24.04-*", ("ubuntu/images/*-24.04-*", "099720109477", "ubuntu")),
        (AWS, "debian-13-amd64-*", ("debian-13-amd64-*", "136693071363", "admin")),
        (GCP, "debian-cloud/debian-12", ("debian-12", "debian-cloud", "debian")),
        (GCP, "ubuntu-2204-lts", ("ubuntu-2204-lts", "ubuntu-os-cloud", "ubuntu")),
    ],
)  # fmt: skip
def test_images(cloud: catalogue.Cloud, text: str, expected: tuple[str, str, str]) -> None:
    found = wish(cloud, image=text)
    assert (found.image, found.image_owner, found.user) == expected


@pytest.mark.parametrize(
    ("text", "gpu"), [("T4", ("T4", 1)), ("a100:8", ("A100", 8)), ("none", ("", 0))]
)
def test_gpu_option(text: str, gpu: tuple[str, int]) -> None:
    assert catalogue.parse_gpu(text) == gpu


@pytest.mark.parametrize("text", ["", "T4:0", "T4:17", "4", "T4:x", "T4:1:2", "T4 x"])
def test_gpu_options_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--gpu"):
        catalogue.parse_gpu(text)


def test_limits_of_the_timer() -> None:
    assert cloud_options(max_hours=0.0).max_hours == 0.0
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="--max-hours"):
            cloud_options(max_hours=value)


def test_every_gpu_of_the_catalogue_has_a_machine_type_that_has_it() -> None:
    for cloud in (AWS, GCP):
        for kind, count in set(cloud.machines.values()):
            assert cloud.gpu_of(cloud.machine_for(kind, count)) == (kind, count)


def test_lab_id_is_the_same_again_and_another_elsewhere(tmp_path: Path) -> None:
    first = lab_id(Home(tmp_path), "demo")
    assert re.fullmatch("[0-9a-f]{8}", first)
    assert first == lab_id(Home(tmp_path), "demo")
    assert len({first, lab_id(Home(tmp_path), "demo2"), lab_id(Home(tmp_path / "x"), "demo")}) == 3


# How long, and what it cost.


def machine(node: str = "tf0", state: str = "running", **values: Any) -> Resource:
    return Resource("machine", f"i-{node}", node=node, state=state, billable=True, **values)


def answer(at_s: float, *resources: Resource, provider: str = "aws") -> Found:
    return Found(provider, at_s, resources)


def seen(*answers: Found) -> tuple[usage.Usage, ...]:
    known: tuple[usage.Usage, ...] = ()
    for each in answers:
        known = usage.observe(known, each, wish())
    return known


def test_the_clouds_own_stamps_count() -> None:
    (found,) = seen(
        answer(500.0, machine(created_unix_s=100.0)),
        answer(5000.0, machine(state="stopped", created_unix_s=100.0, stopped_unix_s=3700.0)),
        answer(9000.0, machine(created_unix_s=7300.0)),
        answer(12000.0),
    )
    assert found.hours("running", 99999.0) == pytest.approx((3600 + 4700) / HOUR)
    assert found.hours("stopped", 99999.0) == pytest.approx(1.0)
    assert found.doing == "gone"


def test_a_start_that_keeps_the_stamp_of_the_making_counts_when_it_is_seen() -> None:
    (found,) = seen(
        answer(100.0, machine(created_unix_s=100.0)),
        answer(5000.0, machine(state="stopped", created_unix_s=100.0, stopped_unix_s=3700.0)),
        answer(36100.0, machine(created_unix_s=100.0)),
    )
    assert found.hours("running", 39700.0) == pytest.approx(2.0)
    assert found.hours("stopped", 39700.0) == pytest.approx(9.0)


def test_without_stamps_the_time_of_asking_counts() -> None:
    (found,) = seen(answer(500.0, machine()), answer(4100.0, machine(state="stopped")))
    assert found.hours("running", 7700.0) == pytest.approx(1.0)
    assert found.hours("stopped", 7700.0) == pytest.approx(1.0)


def test_a_stamp_of_the_future_is_not_believed() -> None:
    (found,) = seen(answer(500.0, machine(created_unix_s=9e9)), answer(4100.0))
    assert found.hours("running", 4100.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("provider", "state", "doing"),
    [
        ("aws", "pending", "running"),
        ("aws", "shutting-down", "running"),
        ("aws", "stopping", "running"),
        ("aws", "stopped", "stopped"),
        ("aws", "terminated", "gone"),
        ("gcp", "TERMINATED", "stopped"),
        ("gcp", "RUNNING", "running"),
        ("gcp", "SUSPENDED", "stopped"),
        ("gcp", "SOMETHING-NEW", "running"),
    ],
)
def test_words_of_the_clouds(provider: str, state: str, doing: str) -> None:
    assert usage.doing_of(machine(state=state), provider) == doing


def test_a_terminated_machine_was_never_there_and_goes_once() -> None:
    assert seen(answer(1.0, machine(state="terminated"))) == ()
    (found,) = seen(
        answer(100.0, machine(created_unix_s=100.0)), answer(3700.0, machine(state="terminated"))
    )
    assert found.hours("running", 1e9) == pytest.approx(1.0)


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 1e6),
            st.sampled_from(["running", "stopped", "terminated", "weird", ""]),
            st.none() | st.floats(0.0, 2e6),
            st.none() | st.floats(0.0, 2e6),
        ),
        max_size=8,
    )
)
def test_hours_add_up_whatever_the_cloud_says(
    looks: list[tuple[float, str, float | None, float | None]],
) -> None:
    known: tuple[usage.Usage, ...] = ()
    for at_s, state, created_s, stopped_s in sorted(looks, key=lambda look: look[0]):
        one = machine(state=state, created_unix_s=created_s, stopped_unix_s=stopped_s)
        known = usage.observe(known, answer(at_s, one), wish())
    for each in known:
        times = [change.unix_s for change in each.changes]
        assert times == sorted(times)
        whole = sum(each.hours(doing, 2e6) for doing in ("running", "stopped", "gone"))
        assert whole == pytest.approx((2e6 - each.created_unix_s) / HOUR)


def test_a_sum_with_an_unknown_price_is_unknown() -> None:
    rows = [
        usage.Spent("tf0", "a", "x", 1.0, 0.0, 0.5),
        usage.Spent("tf1", "b", "y", 1.0, 0.0, None),
    ]
    assert usage.total(rows) is None
    assert usage.total(rows[:1]) == 0.5
    assert usage.total([]) == 0.0


# Prices.


def test_every_price_has_a_source_and_a_date() -> None:
    rows = prices.read_rows(prices.TABLE)
    keys = [(row.provider, row.region, row.kind, row.name) for row in rows]
    assert len(set(keys)) == len(keys)
    for row in rows:
        assert row.provider in {"aws", "gcp"}, row
        assert row.kind in prices.UNITS, row
        assert 0 < row.usd < 200, row
        assert len(row.source) > 10, row
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", row.as_of), row
        if row.kind == "machine":
            assert row.name in catalogue.cloud(row.provider).machines, row


def test_default_labs_have_a_price_where_the_table_claims_to_know() -> None:
    table = prices.table()
    for cloud, region in ((AWS, "us-east-1"), (AWS, "eu-central-1"), (GCP, "us-central1")):
        found = wish(cloud, region=region)
        price = table.running(found, found.task(0), public=True)
        assert price is not None, region
        assert 0.3 < price.usd_per_hour < 1.2, region
        assert table.stopped(found, found.task(0)) is not None


# Words.


def outcome(message: str, **values: Any) -> PlaybookOutcome:
    failures = (TaskFailure("localhost", "Make it", message, unreachable=False),) if message else ()
    return PlaybookOutcome(
        "aws_create.yml", 2, 1.0, (), (), {}, failures, Path("/nowhere"), **values
    )


def test_a_play_that_says_what_is_wrong_is_quoted() -> None:
    error = plays.failure(
        "aws", outcome("machine: tf1 ended\n  expected  it to run\n  do        again")
    )
    assert str(error) == "machine: tf1 ended\n  expected  it to run\n  do        again"
    assert error.exit_code == 7


@pytest.mark.parametrize(
    ("provider", "message", "code", "words"),
    [
        ("aws", "An error occurred (ExpiredToken) when calling", 3, "aws sso login"),
        ("aws", "Unable to locate credentials", 3, "aws configure"),
        ("aws", "VcpuLimitExceeded", 7, "Service Quotas"),
        ("aws", "InsufficientInstanceCapacity in your zone", 7, "--zone"),
        ("gcp", "Quota 'NVIDIA_T4_GPUS' exceeded. Limit: 0.0", 7, "GPUS_ALL_REGIONS"),
        ("gcp", "Request had invalid authentication credentials", 3, "gcloud auth"),
        ("gcp", "ZONE_RESOURCE_POOL_EXHAUSTED", 7, "--zone"),
    ],
)
def test_words_of_a_cloud_get_a_remedy(provider: str, message: str, code: int, words: str) -> None:
    error = plays.failure(provider, outcome(message))
    assert error.exit_code == code
    assert words in str(error.do)
    assert "'Make it'" in error.found


def test_a_playbook_that_failed_without_a_task(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("x\n\x1b[0;31mERROR! no such module\x1b[0m\n")
    error = plays.failure("aws", replace(outcome(""), log=log))
    assert error.found == "aws_create.yml ended with 2: ERROR! no such module"


def test_secrets_are_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in AWS.secrets:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "0123456789")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "short")
    assert plays.secrets("aws") == ["0123456789"]


def test_tasks_are_told_once_each() -> None:
    told: list[str] = []
    tell_ = plays._teller(told.append)
    for task in ("Make it", "Make it", "Wait"):
        tell_({"event": "playbook_on_task_start", "event_data": {"task": task}})
    tell_({"event": "runner_on_ok", "event_data": {"task": "Other"}})
    assert told == ["  Make it", "  Wait"]


def test_counting_what_there_is() -> None:
    found = [machine("tf0"), machine("tf1"), Resource("address", "a"), Resource("key", "k")]
    assert tell.counted(found) == "2 machines, 1 address, 1 key"
    assert tell.counted([Resource("address", "a"), Resource("address", "b")]) == "2 addresses"


def test_what_changes_is_said() -> None:
    assert demands.changes(wish(), wish(max_hours=2.0)) == ["hours of the dead-man timer: 2.0"]


# This machine.


def test_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(address.VARIABLE, raising=False)
    assert address.own_cidr(lambda _: b"8.8.4.4\n") == "8.8.4.4/32"
    asked: list[str] = []

    def fetch(url: str) -> bytes:
        asked.append(url)
        return b"8.8.8.8"

    monkeypatch.setenv(address.VARIABLE, "https://address.example/ip")
    address.own_cidr(fetch)
    assert asked == ["https://address.example/ip"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"<html>", "something else"),
        (b"10.0.0.1", "no address of the internet"),
        (b"2001:db8::1", "something else"),
        (b"\xff", "something else"),
        (b"", "something else"),
        (urllib.error.URLError("no route"), "no route"),
        (TimeoutError("timed out"), "timed out"),
    ],
)
def test_own_address_that_cannot_be_known(
    monkeypatch: pytest.MonkeyPatch, said: bytes | Exception, words: str
) -> None:
    monkeypatch.delenv(address.VARIABLE, raising=False)

    def fetch(_: str) -> bytes:
        if isinstance(said, Exception):
            raise said
        return said

    with pytest.raises(ConfigError, match=words) as caught:
        address.own_cidr(fetch)
    assert "--admin-cidr" in str(caught.value.do)


def test_own_address_is_asked_by_https_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(address.VARIABLE, "http://address.example")
    with pytest.raises(ConfigError, match="no https URL"):
        address.own_cidr(lambda _: b"8.8.8.8")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION",
                 "AWS_DEFAULT_REGION", "GCP_ACCESS_TOKEN", "GCP_SERVICE_ACCOUNT_FILE",
                 "GCP_SERVICE_ACCOUNT_CONTENTS", "GOOGLE_APPLICATION_CREDENTIALS"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def test_credentials_of_aws(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no credentials of aws") as caught:
        credentials.require(AWS)
    assert "aws configure" in str(caught.value.do)
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = b\n"
    )
    (tmp_path / "config").write_text("[default]\nregion = eu-west-3\n")
    credentials.require(AWS)
    assert credentials.region(AWS) == "eu-west-3"
    bare.setenv("AWS_REGION", "eu-north-1")
    assert credentials.region(AWS) == "eu-north-1"
    bare.setenv("AWS_PROFILE", "none-such")
    with pytest.raises(ConfigError, match="none-such"):
        credentials.require(AWS)


def test_credentials_of_gcp(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("GCP_ACCESS_TOKEN", "token")
    credentials.require(GCP)
    bare.delenv("GCP_ACCESS_TOKEN")
    bare.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    with pytest.raises(ConfigError, match="no credentials of gcp"):
        credentials.require(GCP)


def test_packages_that_are_not_installed(bare: pytest.MonkeyPatch) -> None:
    bare.setattr(credentials, "_has", lambda name: name != "boto3")
    with pytest.raises(ConfigError) as caught:
        credentials.require(AWS)
    assert caught.value.found == "not installed beside labctl: boto3"
    assert caught.value.do == "pip install 'labctl[aws]'"


def test_a_package_without_its_parent_is_not_there() -> None:
    assert not credentials._has("no_such_package.at_all")
