"""Two machines race for one run, and it stays one run: never two writers past a save, never
"finished" without a checkpoint of its own, and what counts is never deleted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.s3 import credentials, s3_server
from support.two_machines import Race

pytestmark = [pytest.mark.local, pytest.mark.chaos, pytest.mark.timeout(1500)]

ORDERS = int(os.environ.get("ORDERS", "12"))


def test_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, int] = {}
    with s3_server(tmp_path / "s3") as port:
        for name, value in credentials(port).items():
            monkeypatch.setenv(name, value)
        for seed in range(ORDERS):
            race = Race(f"s3://bucket/{seed}", tmp_path / f"caches-{seed}")
            race.run(seed)
            try:
                race.check()
            except AssertionError as error:
                raise AssertionError(f"order {seed}: {error}\n{race.heard}") from error
            for _, what, _ in race.heard:
                told[what] = told.get(what, 0) + 1
    print(told)
    assert {"started", "saved", "finished"} <= told.keys(), told
