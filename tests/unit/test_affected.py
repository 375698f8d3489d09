"""What `make affected` chooses for a change, and that it runs everything where it cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.affected import OTHER_TIERS, Selection, commands, select
from tools.import_graph import ImportGraph

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    return ImportGraph(REPOSITORY)


def unit_tests(path: str, graph: ImportGraph) -> set[str]:
    selection = select([path], graph)
    assert selection.everything == ""
    return set(selection.of_tier("unit"))


def test_a_module_selects_its_tests_and_says_by_which_imports(graph: ImportGraph) -> None:
    selection = select(["src/headway/plan/prices.py"], graph)
    assert selection.reasons["tests/unit/plan/test_prices.py"] == "headway.plan.prices has changed"
    assert "headway.plan.prices" in selection.reasons["tests/unit/plan/test_cost.py"]
    assert "tests/unit/member/worker/test_session.py" not in selection.reasons


def test_a_command_is_reached_by_its_name(graph: ImportGraph) -> None:
    """The command line imports a command when it is called, by its name in a table."""
    found = unit_tests("src/headway/cli/resume.py", graph)
    assert "tests/unit/cli/test_missing_coordinator.py" in found
    assert "tests/unit/cli/test_plan.py" not in found


def test_a_module_that_is_named_in_a_string_counts(graph: ImportGraph) -> None:
    """A process starts it with python -m."""
    assert "headway.train.fork_server" in graph.graph.find_modules_directly_imported_by(
        "headway.launch.fork_server"
    )


def test_a_public_name_is_reached_through_the_package(graph: ImportGraph) -> None:
    assert "tests/unit/api/test_api.py" in unit_tests("src/headway/api/config.py", graph)


def test_a_fixture_counts_for_those_who_use_it(graph: ImportGraph) -> None:
    imported = graph.graph.find_modules_directly_imported_by
    assert "tests.unit.train.conftest" in imported("tests.unit.train.test_save")
    assert "tests.unit.train.conftest" not in imported("tests.unit.train.test_lr_schedule")


def test_a_helper_selects_the_tests_of_all_tiers(graph: ImportGraph) -> None:
    found = select(["tests/support/mistakes.py"], graph).reasons
    assert {"tests/unit/cli/test_mistakes.py", "tests/local/test_mistakes.py"} <= set(found)


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("docs/guides/plan.md", "tests/unit/test_guides.py"),
        ("src/headway/plan/prices.toml", "tests/unit/plan/test_prices.py"),
        ("src/headway/spec/presets/tiny.yaml", "tests/unit/spec/test_load.py"),
        ("tests/unit/kube/golden/cpu-claim.yaml", "tests/unit/kube/test_golden.py"),
        (".github/workflows/ci.yml", "tests/unit/test_gate.py"),
    ],
)
def test_a_file_is_read_by_its_name_or_folder(path: str, test: str, graph: ImportGraph) -> None:
    assert test in unit_tests(path, graph)


@pytest.mark.parametrize(
    "path",
    [
        "pyproject.toml",
        "requirements/all.txt",
        "Makefile",
        "tests/conftest.py",
        "tests/unit/kube/conftest.py",
        "src/headway/__init__.py",
        "src/headway/plan/removed.py",
        "a-new-folder/of-something",
    ],
)
def test_what_reaches_everything_or_nobody_knows_where_runs_everything(
    path: str, graph: ImportGraph
) -> None:
    selection = select([path, "docs/guides/plan.md"], graph)
    assert path in selection.everything
    assert commands(selection) == [("bash", ".ci/run")]


def test_a_helper_that_is_started_by_its_path_counts(graph: ImportGraph) -> None:
    assert "tests/unit/test_gate.py" in unit_tests("tests/support/printing.py", graph)


def test_more_pages_of_one_folder_are_no_reason_to_run_everything(graph: ImportGraph) -> None:
    changed = ["docs/guides/plan.md", "docs/guides/watching.md", "CHANGELOG.md"]
    assert select(changed, graph).everything == ""


def test_a_golden_file_selects_those_who_read_it(graph: ImportGraph) -> None:
    found = select(["tests/local/golden/tiny.json"], graph).reasons
    assert "tests/local/test_first_hour.py" in found


def test_a_changed_test_is_run_with_what_the_night_has_of_it(graph: ImportGraph) -> None:
    path = "tests/local/test_notebook.py"
    found = [command for command in commands(select([path], graph)) if path in command]
    assert found
    assert all("not long" not in command for command in found)


def test_something_is_always_run(graph: ImportGraph) -> None:
    assert commands(select(["LICENSE"], graph))


def test_the_table_of_other_tiers_names_paths_and_tests_that_exist() -> None:
    for start, tests in OTHER_TIERS.items():
        assert (REPOSITORY / start).exists(), start
        for test in tests:
            path, _, function = test.partition("::")
            assert (REPOSITORY / path).exists(), test
            if function:
                assert f"def {function.partition('[')[0]}(" in (REPOSITORY / path).read_text()


def test_every_part_has_a_row() -> None:
    parts = {path.name for path in (REPOSITORY / "src" / "headway").iterdir() if path.is_dir()}
    rows = {Path(start).name for start in OTHER_TIERS if start.startswith("src/headway/")}
    pure = {"api", "plan", "prove", "report", "spec"}
    assert parts - {"__pycache__"} - rows == pure


def test_tiers_are_run_cheapest_first() -> None:
    selection = Selection({"tests/local/test_a.py": "", "tests/unit/test_b.py": ""})
    assert [command[-1] for command in commands(selection)] == [
        "tests/unit/test_b.py",
        "tests/local/test_a.py",
    ]
