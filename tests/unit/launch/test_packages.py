"""Requirements of a run: which are refused, in whose words, and what workers get of the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from headway.clock import Clock, SystemClock
from headway.errors import BadInput
from headway.kube.storage_layout import SITE
from headway.launch.packages import (
    ARCHIVE,
    WORDS_SECONDS,
    InstalledPackages,
    Uv,
    find_uv,
    install_packages,
    python_here,
    python_on,
    require_worker,
    unpack_packages,
)
from headway.launch.requirements_file import RequirementsRefused, read_requirements
from headway.spec.pod_config import PodConfig
from headway.spec.resolve import WorkerPython
from headway.spec.target_file import Target
from headway.state.file_listing import listing_of
from headway.worker_environment import with_packages
from support.clock import Patient
from support.wheels import resolve_offline, write_wheel

WORKER = WorkerPython(python="3.12", torch="2.15.0+cu132", architecture="x86_64")

# --- lines


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("timm\ntorch>=2\n", r"2: `torch>=2` would replace torch"),
        ("Torch==2.3.0\n", "would replace torch"),
        ("headway\n", "would replace headway"),
        ("timm @ https://example.org/timm.whl\n", "1: `timm` is an address"),
        ("git+https://example.org/timm\n", "is an address"),
        ("-e .\n", "of this machine"),
        ("./timm-1.0-py3-none-any.whl\n", "of this machine"),
        ("timm\n\n--index-url https://example.org\n", "3: `--index-url` is not taken"),
        ("--find-links=x\n", "`--find-links` is not taken"),
        ("-r other.txt\n", "names another file"),
        ("timm-1.0-py3-none-any.whl\n", "is not a requirement"),
        ("timm --config-settings=x\n", "has options"),
        ("a==1 --hash=sha256:00\nb==2\n", "2: `b==2` has no hash"),
        ("a==1 \\\n    --hash=sha256:00\ntorch==2 \\\n  --hash=sha256:00\n", "3: `torch==2` would"),
    ],
)
def test_lines_that_are_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    with pytest.raises(RequirementsRefused, match=rf"requirements\.txt:.*{says}") as caught:
        read_requirements(tmp_path / "requirements.txt")
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n\n",
        "timm>=1,<2  # a model\n",
        "torchvision\ntorch-geometric\n",
        "a[extra]==1; python_version > '3.10'\n",
        "a==1 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n    # via b\n",
    ],
)
def test_lines_that_are_taken(tmp_path: Path, text: str) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    assert read_requirements(tmp_path / "requirements.txt").has_hashes == ("--hash" in text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RequirementsRefused, match=r"no file .*nothing\.txt"):
        read_requirements(tmp_path / "nothing.txt")


# --- what uv says

FAKE = """\
import json, os, sys
folder = os.environ["FAKE_UV"]
arguments = sys.argv[1:]
with open(f"{folder}/calls", "a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
if os.path.exists(f"{folder}/sleeps"):
    import time
    time.sleep(600)
if os.path.exists(f"{folder}/says"):
    sys.exit(open(f"{folder}/says").read())
value = lambda name: arguments[arguments.index(name) + 1]
if arguments[1] == "compile":
    excluded = open(value("--excludes")).read().split()
    lines = [one for one in open(f"{folder}/resolves") if one.split("==")[0] not in excluded]
    open(value("-o"), "w").write("".join(lines))
else:
    open(value("--target") + "/timm.py", "w").write("x = 1")
"""


class Fake:
    """A uv that resolves to the lines it is given, or says what it is given and fails."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.said: list[str] = []
        folder.mkdir()
        (folder / "uv.py").write_text(FAKE)
        (folder / "resolves").write_text("timm==1.0 --hash=sha256:00\n")
        (folder / "requirements.txt").write_text("timm\n")
        monkeypatch.setenv("FAKE_UV", str(folder))
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))

    def install(
        self,
        worker: WorkerPython = WORKER,
        kept: Callable[[str], str | None] = lambda _: None,
        clock: Clock | None = None,
        is_script: bool = True,
    ) -> InstalledPackages:
        file = read_requirements(self.folder / "requirements.txt")
        command = [sys.executable, str(self.folder / "uv.py")]
        uv = Uv(self.said.append, clock or SystemClock(), command)
        return install_packages(file, worker, is_script, kept, uv, self.said.append)

    def says(self, words: str) -> None:
        (self.folder / "says").write_text(words)

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake(tmp_path / "fake", monkeypatch)


@pytest.mark.parametrize(
    ("uv", "says", "hint"),
    [
        (
            "error: No solution found\n  cause: Because nosuch was not "
            "found in the package registry and you require nosuch, we can conclude that your "
            "requirements are unsatisfiable.\n",
            "No solution found: because nosuch was not found",
            None,
        ),
        (
            "error: No solution found\n  cause: Because all versions of "
            "flash-attn have no usable wheels and you require flash-attn, we can conclude that "
            "your requirements are unsatisfiable.\n\nhint: Wheels are required for `flash-attn`\n",
            "all versions of flash-attn have no usable wheels",
            "only wheels are installed",
        ),
        (
            "error: No solution found\n  cause: Because torchvision==0.2"
            " depends on torch==2.5.0 and torch==2.15.0, we can conclude that torchvision==0.2 "
            "cannot be used.\n         And because you require torchvision==0.2, we can conclude",
            "torch==2.15.0, we can conclude that torchvision==0.2 cannot be used. And because",
            "torch is the workers' own",
        ),
        ("error: unexpected argument '--excludes' found\n", "is too old", "pip install"),
    ],
)
def test_what_does_not_resolve_is_refused_in_uvs_words(
    fake: Fake, uv: str, says: str, hint: str | None
) -> None:
    fake.says(uv)
    with pytest.raises(RequirementsRefused) as caught:
        fake.install()
    assert says in caught.value.message
    assert hint is None or (caught.value.hint is not None and hint in caught.value.hint)
    assert not list((fake.folder / "cache" / "headway" / "packages").iterdir()), "nothing is left"


def test_torch_bounds_the_resolution_and_is_no_part_of_it(fake: Fake) -> None:
    lines = ("torch==2.15.0 --hash=sha256:00\n", "timm==1.0 --hash=sha256:00\n")
    (fake.folder / "resolves").write_text("".join(lines))
    found = fake.install()
    assert found.lock.splitlines()[1:] == [lines[1].strip()]
    assert found.worker == WORKER.model_copy(update={"torch": "2.15.0"})
    first, second, install = fake.calls
    assert [call[:2] for call in fake.calls] == [["pip", "compile"]] * 2 + [["pip", "install"]]
    for call in fake.calls:
        assert call[call.index("--python-version") + 1] == "3.12"
        assert call[call.index("--python-platform") + 1] == "x86_64-manylinux_2_28"
        assert call[call.index("--only-binary") + 1] == ":all:"
    assert "--require-hashes" in install
    assert second[second.index("-c") + 1] == first[first.index("-o") + 1]


def test_workers_with_any_torch_will_do_if_nothing_needs_it(fake: Fake) -> None:
    found = fake.install(WORKER.model_copy(update={"torch": None}))
    assert found.worker.torch is None
    assert len(fake.calls) == 2


def test_torch_that_is_needed_and_not_known_is_asked_for(fake: Fake) -> None:
    (fake.folder / "resolves").write_text("torch==2.15.0\ntimm==1.0\n")
    with pytest.raises(RequirementsRefused, match="needs torch, and which one workers have"):
        fake.install(WORKER.model_copy(update={"torch": None}))


def test_the_same_requirements_are_installed_once(fake: Fake) -> None:
    first = fake.install()
    assert fake.install() == first
    assert len(fake.calls) == 2
    (fake.folder / "requirements.txt").write_text("timm>=1\n")
    assert fake.install().key != first.key
    older = WORKER.model_copy(update={"python": "3.11"})
    assert fake.install(older).key not in (first.key, fake.install().key)


def test_a_lock_that_the_run_has_kept_is_not_resolved_again(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fake.install()
    monkeypatch.setenv("XDG_CACHE_HOME", str(fake.folder / "of another machine"))
    (fake.folder / "resolves").write_text("timm==2.0 --hash=sha256:00\n")
    again = fake.install(kept={first.key: first.lock}.get)
    assert (again.lock, again.worker) == (first.lock, first.worker)
    assert [call[1] for call in fake.calls] == ["compile", "install", "install"]


@pytest.mark.parametrize(
    "change",
    [
        lambda lock: lock + "--index-url https://example.org\n",
        lambda lock: lock + "evil @ https://example.org/evil.whl --hash=sha256:00\n",
        lambda lock: lock + "evil==1\n",
        lambda lock: lock + "evil>=1 --hash=sha256:00\n",
        lambda lock: lock + "torch==2.15.0 --hash=sha256:00\n",
        lambda lock: lock + "# \u2028evil==1 --hash=sha256:00\n",
        lambda lock: lock.replace("3.12", "3.11"),
        lambda lock: lock.replace("x86_64", "aarch64"),
        lambda lock: lock.partition("\n")[2],
        lambda lock: "# headway: 3\n",
        lambda lock: "",
    ],
)
def test_a_kept_lock_that_is_not_one_is_none(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]
) -> None:
    """Others may be able to write to the storage that has it."""
    first = fake.install()
    monkeypatch.setenv("XDG_CACHE_HOME", str(fake.folder / "of another machine"))
    again = fake.install(kept=lambda _: change(first.lock))
    assert (again.lock, again.worker) == (first.lock, first.worker)
    assert [call[1] for call in fake.calls] == ["compile", "install"] * 2, "resolved again"


def test_the_packages_of_a_kept_lock_are_not_those_of_other_runs(fake: Fake) -> None:
    first = fake.install()
    other = first.lock.replace("1.0", "0.9")
    assert fake.install(kept=lambda _: other).lock == other
    assert fake.install() == first
    assert fake.install(kept=lambda _: other).site != first.site


def test_what_python_writes_beside_packages_is_not_packed(fake: Fake) -> None:
    found = fake.install()
    digest = listing_of({ARCHIVE: found.archive()}).digest
    found.archive().unlink()
    (found.site / "__pycache__").mkdir()
    (found.site / "__pycache__" / "timm.cpython-312.pyc").write_bytes(b"of this machine")
    assert listing_of({ARCHIVE: found.archive()}).digest == digest


def test_a_lock_with_hashes_is_taken_as_it_is(fake: Fake) -> None:
    text = "timm==1.0 --hash=sha256:00\n"
    (fake.folder / "requirements.txt").write_text(text)
    assert fake.install().lock.endswith(f"\n{text}")
    assert [call[1] for call in fake.calls] == ["compile", "install"], "compared with the workers"


def test_a_resolution_says_that_it_lasts_and_ends(fake: Fake) -> None:
    (fake.folder / "sleeps").touch()
    with pytest.raises(RequirementsRefused, match="no result within 300 s"):
        fake.install(clock=Patient())
    assert sum("Python 3.12 on x86_64" in words for words in fake.said) >= 300 / WORDS_SECONDS - 1


def test_a_machine_without_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput) as caught:
        find_uv()
    assert caught.value.hint == "pip install 'headway[requirements]'"


# --- workers


@pytest.mark.parametrize(
    ("have", "says", "hint"),
    [
        ({"python": "3.11"}, "for Python 3.12, and this image has Python 3.11", "python: 3.11"),
        ({"torch": "2.14.1"}, "for torch 2.15.0, and this image has torch 2.14.1", "torch: 2.14.1"),
        ({"torch": None}, "and this image has no torch", "torch: "),
        (
            {"architecture": "aarch64"},
            "for the architecture x86_64, and this image has the architecture aarch64",
            "pod.architecture: arm64",
        ),
    ],
)
def test_a_pod_of_another_kind_is_refused_by_name(
    have: dict[str, str | None], says: str, hint: str
) -> None:
    wanted = WORKER.model_copy(update={"torch": "2.15.0"})
    require_worker(wanted, WORKER)
    require_worker(wanted.model_copy(update={"torch": None}), WORKER)
    with pytest.raises(BadInput) as caught:
        require_worker(wanted, WORKER.model_copy(update=have))
    assert says in caught.value.message
    assert caught.value.hint is not None
    assert f"in the target: {hint}" in caught.value.hint


def test_packages_are_resolved_for_what_the_target_says() -> None:
    here = python_here()
    assert python_on(Target()) == here
    pod = PodConfig(architecture="arm64")
    assert python_on(Target.model_validate({"python": 3.13, "torch": "2.14.1"})) == (
        WorkerPython(python="3.13", torch="2.14.1", architecture=here.architecture)
    )
    assert python_on(Target(pod=pod)).architecture == "aarch64"


def test_packages_come_before_those_of_the_image() -> None:
    given = {"PYTHONPATH": "/image", "PATH": "/bin", "OTHER": "x"}
    assert with_packages("/site", given) == {
        "PYTHONPATH": "/site:/image",
        "PATH": "/site/bin:/bin",
        "OTHER": "x",
    }
    assert with_packages("/site", {})["PYTHONPATH"] == "/site"
    assert with_packages(None, given) == given


# --- a real uv, without network


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, which is all that uv has."""
    wheels = tmp_path / "wheels"
    greeting = "def hello():\n    print('hello')\n"
    write_wheel(wheels, "torch", "2.15.0", {"torch/__init__.py": "mine = False\n"})
    write_wheel(wheels, "torch", "2.3.0", {"torch/__init__.py": "mine = False\n"})
    write_wheel(wheels, "polite", "1.0", {"polite.py": "x = 1\n"})
    write_wheel(
        wheels,
        "greet",
        "2.0",
        {"greet.py": greeting},
        ["torch>=2", "polite"],
        commands={"greet": "greet:hello"},
    )
    write_wheel(wheels, "old", "1.0", {"old.py": ""}, ["torch<2.4"])
    write_wheel(wheels, "arm", "1.0", {"arm.py": ""}, tag="cp312-cp312-manylinux_2_28_aarch64")
    write_wheel(wheels, "sly", "1.0", {"torch/__init__.py": "mine = False\n"})
    write_wheel(wheels, "ancient", "1.0", {"ancient.py": ""}, ["pydantic<2"])
    write_wheel(wheels, "pydantic", "1.10", {"pydantic.py": ""})
    write_wheel(wheels, "pydantic", "2.14", {"pydantic.py": ""})
    resolve_offline(monkeypatch, wheels, tmp_path)
    return tmp_path


def resolved(folder: Path, text: str, worker: WorkerPython = WORKER) -> InstalledPackages:
    (folder / "requirements.txt").write_text(text)
    file = read_requirements(folder / "requirements.txt")
    said: list[str] = []
    uv = Uv(said.append, SystemClock())
    return install_packages(file, worker, True, lambda _: None, uv, said.append)


def test_a_real_resolution_reaches_a_worker(offline: Path) -> None:
    here = python_here().model_copy(update={"torch": "2.15.0"})
    found = resolved(offline, "greet\n", here)
    assert "torch==" not in found.lock
    assert {"greet==2.0", "polite==1.0"} <= set(found.lock.split())
    archive = found.archive()
    digest = listing_of({archive.name: archive}).digest
    archive.unlink()
    assert listing_of({archive.name: found.archive()}).digest == digest, "the same bytes"
    site = offline / "pod" / SITE
    site.parent.mkdir()
    site.with_name(ARCHIVE).write_bytes(found.archive().read_bytes())
    unpack_packages(site)
    environment = with_packages(str(site), os.environ)
    said = subprocess.check_output(["greet"], env=environment, text=True)
    assert said == "hello\n"


def test_a_real_lock_is_compared_with_what_workers_have(offline: Path) -> None:
    def pinned(name: str) -> str:
        (wheel,) = (offline / "wheels").glob(f"{name}-*.whl")
        digest = sha256(wheel.read_bytes()).hexdigest()
        return f"{name}=={wheel.name.split('-')[1]} --hash=sha256:{digest}\n"

    text = pinned("greet") + pinned("polite")
    found = resolved(offline, text)
    assert found.lock.endswith(f"\n{text}")
    assert found.worker.torch == "2.15.0", "greet needs it"
    assert (found.site / "polite.py").is_file()
    with pytest.raises(RequirementsRefused, match=r"torch<2\.4"):
        resolved(offline, pinned("old"))
    with pytest.raises(RequirementsRefused, match=r"(?i)hash"):
        resolved(offline, "polite==1.0 --hash=sha256:" + 64 * "0" + "\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nosuch\n", "nosuch was not found"),
        ("old\n", "torch"),
        ("arm\n", "arm==1.0 has no wheels with a matching platform tag"),
        ("sly\n", "sly has a module 'torch'"),
        ("ancient\n", "pydantic"),
    ],
)
def test_real_refusals(offline: Path, text: str, says: str) -> None:
    with pytest.raises(RequirementsRefused) as caught:
        resolved(offline, text)
    assert says in caught.value.message
    assert caught.value.hint is not None or text == "nosuch\n"
