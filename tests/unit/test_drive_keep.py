"""Before machines go, every run is whole here: what is missing is fetched, what differs is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from labctl.drive import keep
from labctl.drive.places import RUNS_DIR
from labctl.errors import HostUnreachableError, InventoryError, LabBusyError, RefusedError
from labctl.lab.home import Home
from labctl.remote.fake import Call, Reply
from labctl.runs.record import read_record, write_record
from labctl.runs.store import RunStore
from tests.unit.test_drive_run import Opener, World, endless_client, good_client

LAB = "unit"


@pytest.fixture
def world() -> World:
    home = Home.find()
    world = World(home.make_local_dir(LAB))

    def digests(call: Call) -> Reply:
        assert call.argv[-1] == RUNS_DIR
        lines = [
            f"{hashlib.sha256(data).hexdigest()}  ./{path.removeprefix(f'{RUNS_DIR}/')}\0"
            for path, data in world.tf0.files.items()
            if path.startswith(f"{RUNS_DIR}/") and _kept(path)
        ]
        return Reply("".join(lines).encode())

    world.tf0.on(["sh", "-c", keep._DIGESTS], digests)
    return world


def _kept(path: str) -> bool:
    return path.endswith(("/events.jsonl", "/stdout", "/stderr", "/exit.json")) or "/trace/" in path


def kept(world: World, *, force: bool = False) -> keep.Kept:
    return keep.keep_runs(
        Home.find(), LAB, force=force, opener=Opener(world), model=world.lab, clock=world.clock
    )


def run_one(world: World) -> str:
    world.client = good_client
    return world.run(repeat=1, trace=False).run_id


@pytest.mark.parametrize("asked", [True, False])
def test_kernel_caches_are_fetched_only_where_the_inventory_asks(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[str] = []

    def refuse(home: Home, lab: str, playbook: str, **_: object) -> None:
        played.append(playbook)
        raise HostUnreachableError(f"{lab}: out of reach")

    monkeypatch.setattr(keep, "run_playbook", refuse)
    home = Home.find()
    variables = home.inventory(LAB) / "group_vars/all/mine.yml"
    variables.parent.mkdir(parents=True)
    variables.write_text("cuda_kernel_cache_kept: local\n" if asked else "tf_port: 2222\n")
    said = keep.keep_kernel_caches(home, LAB)
    assert said == (f"{LAB}: out of reach" if asked else "")
    assert played == (["playbooks/keep_kernel_cache.yml"] if asked else [])


def test_a_lab_without_runs_is_not_even_asked(world: World) -> None:
    world.tf0.broken = True
    assert kept(world) == keep.Kept("")


def test_whole_runs_are_compared_on_both_sides(world: World) -> None:
    run_one(world)
    run_one(world)
    text = kept(world).text
    assert text.startswith("2 runs, every file's digest equal on both sides (")


def test_a_file_that_differs_is_refused_with_the_runs_id(world: World) -> None:
    first, second = run_one(world), run_one(world)
    local = RunStore(world.home).root / first / "logs/tf0/stdout"
    local.write_bytes(b"tampered")
    with pytest.raises(RefusedError) as caught:
        kept(world)
    assert caught.value.found.startswith(f"run {first} is not whole")
    assert "logs/tf0/stdout is not what stdout on its node is" in caught.value.found
    assert second not in caught.value.found
    assert "--force" in str(caught.value.do)
    given_up = kept(world, force=True)
    assert given_up.lost == (first,)
    assert f"LOST of them: {first}" in given_up.text


def test_a_file_that_is_missing_here_is_fetched(world: World) -> None:
    run_id = run_one(world)
    folder = RunStore(world.home).root / run_id
    record = read_record(folder)
    without = tuple(each for each in record.files if not each.path.endswith("stderr"))
    write_record(folder, replace(record, files=without))
    (folder / "logs/tf0/stderr").unlink()
    assert "1 collected now" in kept(world).text
    assert (folder / "logs/tf0/stderr").is_file()
    assert {each.path for each in read_record(folder).files} == {each.path for each in record.files}


def test_a_run_that_goes_on_is_refused(world: World) -> None:
    world.client = endless_client
    run_id = world.run(repeat=1, trace=False, detach=True).run_id
    with pytest.raises(RefusedError, match=f"run {run_id} is not whole.*still running"):
        kept(world)
    assert kept(world, force=True).lost == (run_id,)


def test_a_run_that_ended_unattended_is_brought_home(world: World) -> None:
    world.client = good_client
    run_id = world.run(repeat=1, trace=False, detach=True).run_id
    world.clock.sleep(30.0)
    assert "1 collected now" in kept(world).text
    assert RunStore(world.home).find(run_id).state == "ok"


def test_a_run_that_another_labctl_follows_is_left_to_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.client = endless_client
    run_id = world.run(repeat=1, trace=False, detach=True).run_id
    folder = RunStore(world.home).root / run_id
    from labctl.runs import owner

    write_record(folder, replace(read_record(folder), owner=owner.this_process()))
    with pytest.raises(LabBusyError, match=f"follows run {run_id}"):
        kept(world)
    monkeypatch.setattr("labctl.runs.owner.is_alive", lambda _: False)
    with pytest.raises(RefusedError, match="still running"):
        kept(world)


def test_a_node_out_of_reach_holds_up_only_runs_that_are_not_whole(world: World) -> None:
    run_one(world)
    world.tf0.broken = True
    assert "digest was equal when it was collected" in kept(world).text
    world.tf0.broken = False
    world.client = endless_client
    run_id = world.run(repeat=1, trace=False, detach=True).run_id
    world.tf0.broken = True
    with pytest.raises(RefusedError) as caught:
        kept(world)
    assert run_id in caught.value.found
    assert "out of reach" in caught.value.found
    assert kept(world, force=True).lost == (run_id,)


def test_a_lab_whose_inventory_is_lost_is_out_of_reach(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_one(world)

    def lost(*_: object) -> None:
        raise InventoryError("no host")

    monkeypatch.setattr(keep, "load_lab", lost)
    assert "out of reach" in keep.keep_runs(Home.find(), LAB, force=False).text


def test_runs_of_others_are_named_and_hold_up_nothing(world: World) -> None:
    run_one(world)
    world.tf0.files[f"{RUNS_DIR}/20200101T000000Z-abcdef/stdout"] = b"not ours"
    assert "of 20200101T000000Z-abcdef there is no record here" in kept(world).text


def test_first_step_is_the_earliest_of_runs_since_the_machines(world: World) -> None:
    run_one(world)
    began_s = RunStore(world.home).find("last").readable().origin.unix_s
    first_s = keep.first_step_unix_s(world.home, began_s - 1)
    assert first_s is not None
    assert first_s >= began_s
    assert keep.first_step_unix_s(world.home, began_s + 1) is None
    assert keep.first_step_unix_s(world.home / "nowhere", 0.0) is None


def test_the_listing_of_digests_fails_with_its_node(world: World) -> None:
    run_one(world)
    world.tf0.on(["sh", "-c", keep._DIGESTS], HostUnreachableError("tf0 timed out"))
    assert "out of reach" in kept(world).text
