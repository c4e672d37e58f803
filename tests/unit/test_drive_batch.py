"""Batches of runs on scripted machines: their order, their tags, and what ends them early."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from labctl.drive import batch
from labctl.drive.batch import Variant, interleaved, run_batch
from labctl.drive.plan import RunOptions
from labctl.errors import LabBusyError, UsageError, UserInterruptError
from labctl.lab.home import Home
from labctl.runs.observer import Silent
from labctl.runs.store import Entry
from tests.unit.test_drive_run import Opener, World, good_client

FED = Variant("fed", RunOptions(feed="fed", timeout_s=60.0))
STAGED = Variant("staged", RunOptions(feed="staged", timeout_s=60.0, tags=("own=yes",)))


class Stages(Silent):
    def __init__(self) -> None:
        self.told: list[str] = []

    def stage(self, name: str, detail: str = "") -> None:  # noqa: ARG002 the observer's form
        self.told.append(name)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path / "home")
    made.client = good_client
    return made


def run_on(
    world: World, *variants: Variant, repeats: int = 2, **told: Any
) -> dict[str, list[Entry]]:
    return run_batch(
        Home(world.home),
        "unit",
        variants,
        repeats,
        {"batch": "b"},
        opener=Opener(world),
        gate=world.gate,
        clock=world.clock,
        lab=world.lab,
        **told,
    )


def failing_client(world: World, directory: str) -> None:
    world.clock.after(1.0, lambda: world.end(11))


def test_the_order_turns_round() -> None:
    assert interleaved(["a", "b"], 3) == ["a", "b", "b", "a", "a", "b"]
    assert interleaved(["a", "b", "c"], 2) == ["a", "b", "c", "c", "b", "a"]


def test_each_run_is_a_normal_record_with_its_tags(world: World) -> None:
    stages, seen = Stages(), []
    done = run_on(
        world,
        FED,
        STAGED,
        observer=stages,
        on_run=lambda label, entry: seen.append((label, entry.run_id)),
    )
    assert [label for label, _ in seen] == ["fed", "staged", "staged", "fed"]
    assert [entry.state for entries in done.values() for entry in entries] == ["ok"] * 4
    assert {run_id for _, run_id in seen} == {entry.run_id for entry in world.store.entries()}
    record = done["staged"][0].readable()
    assert record.parameters.feed == "staged"
    assert record.tags == {"own": "yes", "variant": "staged", "batch": "b"}
    assert record.wall_s is not None
    assert 0 < record.wall_s < world.clock.now_s
    assert stages.told[0] == "run 1 of 4  fed"


def test_a_variant_that_does_not_fit_the_lab_starts_nothing(world: World) -> None:
    with pytest.raises(UsageError, match="--sum-on 7"):
        run_on(world, FED, Variant("far", RunOptions(sum_task=7, timeout_s=60.0)))
    assert world.store.entries() == []


def test_a_variant_that_fails_is_not_repeated(world: World) -> None:
    def client(world: World, directory: str) -> None:
        staged = b'"staged"' in world.tf0.files[f"{directory}/plan.json"]
        (failing_client if staged else good_client)(world, directory)

    world.client = client
    done = run_on(world, FED, STAGED, repeats=3)
    assert [entry.state for entry in done["fed"]] == ["ok"] * 3
    assert [entry.state for entry in done["staged"]] == ["failed"]


def test_ctrl_c_ends_the_run_at_hand_and_keeps_the_others(world: World) -> None:
    def client(world: World, directory: str) -> None:
        good_client(world, directory)
        if len(world.store.entries()) == 2:
            world.clock.after(1.5, lambda: signal.raise_signal(signal.SIGINT))

    world.client = client
    with pytest.raises(UserInterruptError, match="are kept"):
        run_on(world, FED, STAGED)
    assert [entry.state for entry in world.store.entries()] == ["ok", "cancelled"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_a_caller_raises_ends_the_batch(world: World) -> None:
    def stop(label: str, entry: Entry) -> None:
        raise UsageError(f"not with {label}")

    with pytest.raises(UsageError, match="not with fed"):
        run_on(world, FED, STAGED, on_run=stop)
    assert len(world.store.entries()) == 1


def test_a_busy_lab_is_waited_for(world: World) -> None:
    world.occupy()
    world.clock.after(7.0, world.units.states.clear)
    stages = Stages()
    done = run_on(world, FED, repeats=1, observer=stages)
    assert [entry.state for entry in done["fed"]] == ["ok"]
    assert stages.told == [
        "run 1 of 1  fed",
        "another run holds the lab: waiting for its end",
    ]


def test_a_lab_that_stays_busy_is_said_to_be(world: World) -> None:
    world.occupy()
    with pytest.raises(LabBusyError):
        run_on(world, FED)
    assert world.clock.now_s > batch.BUSY_WAIT_S
    assert world.store.entries() == []


@pytest.mark.parametrize(
    ("variants", "repeats", "words"),
    [
        ((FED, STAGED), 0, "0 repeats"),
        ((FED, FED), 1, "one label"),
        ((Variant("x", RunOptions(detach=True)),), 1, "--detach"),
    ],
)
def test_batches_that_cannot_be_meant(
    world: World, variants: tuple[Variant, ...], repeats: int, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        run_on(world, *variants, repeats=repeats)
