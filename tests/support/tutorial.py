"""The README of a tutorial, by its headings, and a reader who types what it says."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from support import commands
from support.lab import Lab
from support.waiting import wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = ("elastic-gpt2", "sharded-gpt2", "bert-two-phases", "llama-c4", "scripts/images")
SECTION = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
TYPED = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
LAUNCH_SECONDS, END_SECONDS = 300.0, 240.0


@dataclass(frozen=True)
class Tutorial:
    folder: Path

    @property
    def sections(self) -> dict[str, str]:
        return dict(SECTION.findall((self.folder / "README.md").read_text()))

    def commands(self, section: str) -> list[list[str]]:
        """The words of each line that is typed there; one may go on after a backslash."""
        typed = "".join(TYPED.findall(self.sections[section]))
        return [shlex.split(line) for line in typed.replace("\\\n", " ").splitlines()]


def tutorials() -> list[Tutorial]:
    return [Tutorial(EXAMPLES / name) for name in FOLDERS]


def without_settings(words: list[str]) -> list[str]:
    """Without each `--set KEY=VALUE`."""
    found = []
    rest = iter(words)
    for word in rest:
        if word == "--set":
            next(rest)
        else:
            found.append(word)
    return found


class Reader:
    """Of one tutorial, on the test cluster. IMAGE and STORAGE are what the cluster has; what it
    lends to pods and how much it has room for is added to `target add`, and nothing else to
    anything."""

    def __init__(self, lab: Lab, examples: Path) -> None:
        self._lab = lab
        self._examples = examples
        self._target = lab.target()
        self._tutorial = Tutorial(examples)
        self._found: set[Path] = set()

    @property
    def folder(self) -> Path:
        return self._tutorial.folder

    def open(self, name: str) -> list[list[str]]:
        """Its commands at small size."""
        self._tutorial = Tutorial(self._examples / name)
        self.note_storage()
        return self._tutorial.commands("Small")

    def note_storage(self) -> None:
        """What is on it now is the reader's own."""
        self._found = self._stored()

    def wait_for_end(self, name: str, has_ledger: bool = True) -> None:
        """Of a run, which must have finished, with every sample used once."""
        on = self._tutorial.commands("Train")[0][3]

        def end() -> str | None:
            told = commands.headway("status", name, "--on", on, "--json", folder=self.folder)
            state = str(json.loads(told.stdout)["state"])
            return state if state in ("finished", "failed", "stopped") else None

        assert wait_for(f"the end of {name}", end, END_SECONDS) == "finished"
        if has_ledger:
            commands.headway("ledger", "verify", name, "--on", on, folder=self.folder)

    def remove(self) -> None:
        """By the page's command; then nothing of Headway is left, and all else is."""
        (words,) = self._tutorial.commands("Remove")
        self.type(words)
        wait_for("an empty namespace", lambda: self._lab.objects() == [])
        assert self._stored() == self._found

    def _stored(self) -> set[Path]:
        return {path for path in self._lab.storage.rglob("*") if path.is_file()}

    def type(self, words: list[str]) -> str:
        """Returns what was said to people."""
        storage = self._target["storage"]
        place = storage.get("url") or f"claim:{storage['claim']}"
        image = self._lab.cluster.image
        assert image is not None
        filled = [word.replace("IMAGE", image).replace("STORAGE", place) for word in words[1:]]
        if filled[:2] == ["target", "add"]:
            filled += ["--namespace", self._lab.namespace, "--set", "prepare.nodes=2"]
            if "secret" in storage:
                filled += ["--set", f"storage.secret={storage['secret']}"]
            for key in ("resources", "volumes", "mounts", "env"):
                filled += ["--set", f"pod.{key}={json.dumps(self._target['pod'][key])}"]
        return commands.headway(*filled, folder=self.folder, seconds=LAUNCH_SECONDS).stderr
