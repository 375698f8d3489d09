"""What a release rests on, read from the workflows and the pages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tools.package_list import package_list

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BY_COMMIT = re.compile(r"uses: [\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)+$")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_and_workflows_say_that_they_have_never_run(
    path: Path,
) -> None:
    lines = [line.strip().removeprefix("- ") for line in path.read_text().splitlines()]
    used = [line for line in lines if line.startswith("uses:")]
    assert used
    assert [line for line in used if not BY_COMMIT.match(line)] == []
    assert "Never run yet" in path.read_text()
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


def test_only_the_job_that_publishes_may_speak_to_pypi() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    named = {name for name, job in jobs.items() if job.get("environment") == "pypi"}
    assert named == {"publish"}
    assert jobs["publish"]["permissions"] == {"contents": "read", "id-token": "write"}
    assert "secrets." not in re.sub(r"secrets\.GITHUB_TOKEN", "", text)


def test_no_program_is_installed_without_its_hash() -> None:
    texts = [path.read_text() for path in (*WORKFLOWS, ROOT / "Makefile")]
    texts += [path.read_text() for path in (ROOT / "docker").glob("*.Dockerfile")]
    found = re.findall(r"pip (?:install|sync) (.*)", "\n".join(texts))
    assert len(found) > 5
    assert [
        line for line in found if "--require-hashes" not in line and "--no-deps" not in line
    ] == []
    pins = {
        name: re.search(r"^uv==\S+", (ROOT / "requirements" / name).read_text(), re.MULTILINE)
        for name in ("uv.txt", "all.txt")
    }
    assert len({pin and pin[0] for pin in pins.values()}) == 1


def test_packages_are_listed_and_none_is_left_out_of_the_audit() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert re.findall(r"pip-audit (\S+)", text) == ["--strict"]
    listed = package_list([ROOT / "requirements" / "base.txt"])["components"]
    (found,) = (one for one in listed if one["name"] == "pydantic")
    assert found["purl"] == f"pkg:pypi/pydantic@{found['version']}"
    assert len(listed) == (ROOT / "requirements" / "base.txt").read_text().count("==")


def test_the_repository_has_its_address_in_one_place() -> None:
    """`[project.urls]` of pyproject.toml, once it has one. Pages say `in a clone`."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    named = {"git clone ", *urls.values()}
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *WORKFLOWS]
    texts = {str(page): page.read_text() for page in pages}
    assert len(texts) > 40
    assert [page for page, text in texts.items() if any(one in text for one in named)] == []
