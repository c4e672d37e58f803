"""The steps of `labctl down`: records first, then the provider, then the receipt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from labctl import console

if TYPE_CHECKING:
    from labctl.lab.home import Home
    from labctl.providers.base import Receipt
    from labctl.providers.cloud.model import CloudOptions


def tear_down(
    home: Home,
    name: str,
    cloud: str | None,
    where: CloudOptions,
    *,
    force: bool,
    json: bool,
    named: bool,
) -> None:
    """Bring the runs home, remove the lab, print the receipt.

    Args:
        home: Where the lab is.
        name: Its name.
        cloud: The cloud that it is, or may be, in; None for none.
        where: Where to ask in the cloud for a lab that is not known here.
        force: Forget what cannot be had or removed.
        json: Print the receipt as JSON.
        named: The user named the lab.

    Raises:
        RefusedError: A run is not whole here, or something stays.
    """
    from labctl.errors import RefusedError
    from labctl.lab.model import LOOPBACK
    from labctl.providers import choose

    records = ""
    provider = choose.cloud(home, cloud) if cloud else choose.provider_of(home, name)
    if name != LOOPBACK and (home.local_dir(name) / "runs").is_dir():
        from labctl.drive.keep import keep_runs
        from labctl.views.progress import make_progress

        observer = make_progress(show_output=False)
        try:
            records = keep_runs(home, name, force=force, observer=observer).text
        finally:
            observer.close()
    if cloud:
        from labctl.drive.keep import keep_kernel_caches

        if lacking := keep_kernel_caches(home, name):
            console.say(f"kernel caches stay behind: {lacking}")
        receipt = choose.cloud(home, cloud).remove(name, where, force=force, report=console.say)
        receipt = _with_first_step(home, name, receipt)
    else:
        receipt = provider.down(name, force=force, report=console.say)
    if json:
        console.out_json({**receipt.to_dict(), **({"records": records} if records else {})})
    else:
        for line in choose.receipt_lines(name, receipt, records):
            console.out(line)
    if not named and home.active() is None and home.labs():
        console.say(f"labs that stay: {', '.join(home.labs())} (labctl down --lab NAME)")
    for path in receipt.kept:
        console.say(f"kept {path}: it is yours")
    if receipt.left:
        raise RefusedError(
            f"lab {name} is not gone: {receipt.left[0]}",
            expected="nothing left",
            do="labctl down again, or labctl down --force to forget them",
        )


def _with_first_step(home: Home, name: str, receipt: Receipt) -> Receipt:
    """Return a receipt that says how long the lab stood before its first step."""
    if receipt.created_unix_s is None:
        return receipt
    from labctl.drive.keep import first_step_unix_s

    first_s = first_step_unix_s(home.local_dir(name), receipt.created_unix_s)
    if first_s is None:
        return receipt
    return replace(receipt, first_step_h=max(0.0, first_s - receipt.created_unix_s) / 3600)
