"""A real Prometheus on this machine, as a distribution packages it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest
import yaml

from support.s3 import free_port
from support.waiting import wait_for

SCRAPE_SECONDS = 1
START_SECONDS = 60.0


def require_prometheus() -> None:
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("there is no prometheus here: apt-get install prometheus")


class Prometheus:
    """Scrapes once a second while it is entered; `scrape_configs` as in its configuration."""

    def __init__(self, folder: Path, scrape_configs: list[dict[str, Any]]) -> None:
        self._address = f"127.0.0.1:{free_port()}"
        config = folder / "prometheus.yml"
        interval = f"{SCRAPE_SECONDS}s"
        content = {"global": {"scrape_interval": interval}, "scrape_configs": scrape_configs}
        config.write_text(yaml.safe_dump(content))
        self._command = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address={self._address}",
            "--log.level=warn",
        ]
        self._log = folder / "prometheus.log"

    def __enter__(self) -> Self:
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)
        wait_for("Prometheus", self._is_ready, START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def query(self, text: str) -> list[dict[str, Any]]:
        """The series that it returns now."""
        found: list[dict[str, Any]] = self._get("query", query=text)["result"]
        return found

    def targets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get("targets", state="active")["activeTargets"]
        return found

    def wait_for(self, text: str, seconds: float = 60.0) -> list[dict[str, Any]]:
        """The series of a query, once there are some."""
        return wait_for(f"data for {text}", lambda: self.query(text), seconds)

    def _get(self, page: str, **arguments: str) -> dict[str, Any]:
        address = f"http://{self._address}/api/v1/{page}?{urlencode(arguments)}"
        with build_opener(ProxyHandler({})).open(address, timeout=30) as answer:
            found: dict[str, Any] = json.loads(answer.read())["data"]
        return found

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            build_opener(ProxyHandler({})).open(f"http://{self._address}/-/ready", timeout=5)
        except OSError:
            return False
        return True


def lint(text: bytes) -> str:
    """What `promtool` has to say about metrics: nothing, if they follow the conventions."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, timeout=30, check=False
    )
    return (done.stdout + done.stderr).decode()


def check_rules(folder: Path, rules: dict[str, Any]) -> str:
    """Why Prometheus would not take these rules; nothing, if it would."""
    path = folder / "rules.yml"
    path.write_text(yaml.safe_dump(rules))
    done = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, timeout=30, check=False
    )
    return "" if done.returncode == 0 else done.stderr.decode()
