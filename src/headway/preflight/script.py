"""Whether the command of a script can be started. Nothing is executed."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.errors import SpecError
from headway.preflight.unchecked import Unchecked
from headway.spec.load import Loaded
from headway.spec.script_keys import VARIABLES, written
from headway.state.code_folder import IGNORE_FILE, CodeFolderRefused, code_folder

PYTHON = ("python", "python3")
"""The interpreter that Headway itself runs in."""
SHELLS = ("sh", "bash", "dash", "zsh")
"""Programs that a script, or a line with variables, is an argument of."""
LAUNCHERS = ("torchrun", "deepspeed", "mpirun", "mpiexec", "horovodrun", "srun")
LAUNCHING_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.elastic",
    "accelerate.commands",
    "deepspeed.launcher",
)
OF_A_SHELL = ("&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1")
WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
"""Options of Python that another argument belongs to."""
VARIABLE = re.compile(r"\$(?:\{([A-Z_][A-Z0-9_]*)\}|([A-Z_][A-Z0-9_]*))")
SETTING = re.compile(r"[A-Za-z_]\w*=.*")


def script_problems(loaded: Loaded, is_here: bool, unchecked: Unchecked) -> Iterator[SpecError]:
    """Of a run with `command`. `is_here`: it is to run on this machine."""
    run = loaded.run
    if run.command is None:
        return
    assert run.code is not None
    command = _Command(loaded, list(run.command), is_here, unchecked)
    if not command.folder.is_dir():
        return  # is refused for that
    if (instead := _without_launcher(command.arguments)) is not None:
        yield command.problem(
            0,
            f"{' '.join(instead.launcher)} starts processes, and with Headway these are its "
            "workers: one per device, with the variables of torchrun",
            f"{written(instead.rest) if instead.rest else 'name the script itself'}; devices and "
            "nodes: resources",
        )
        return
    yield from _shell_problems(command)
    yield from _variable_problems(command)
    yield from _program_problems(command)


@dataclass(frozen=True)
class _Command:
    loaded: Loaded
    arguments: list[str]
    is_here: bool
    unchecked: Unchecked

    @property
    def folder(self) -> Path:
        assert self.loaded.run.code is not None
        return self.loaded.folder / self.loaded.run.code.path

    @property
    def has_requirements(self) -> bool:
        assert self.loaded.run.code is not None
        return self.loaded.run.code.requirements is not None

    def is_copied(self, name: str) -> bool:
        """Whether workers have this file. True if the folder is refused as a whole."""
        try:
            found = code_folder(self.loaded.run, self.loaded.folder)
        except CodeFolderRefused:
            return True
        return found is None or os.path.normpath(name) in found.files

    def problem(self, index: int, text: str, hint: str) -> SpecError:
        """At one of the arguments."""
        located = self.loaded.located
        where = located.values.get(("command", index)) or located.mark(("command",))
        return SpecError(f"command: {text}", str(where), hint)


@dataclass(frozen=True)
class _Launched:
    launcher: Sequence[str]
    rest: Sequence[str]
    """What is started by it; empty if that is not to be seen."""


def _without_launcher(command: Sequence[str]) -> _Launched | None:
    """None if it is not a launcher of several processes."""
    start = 0
    while start + 1 < len(command) and (
        command[start] == "env" or (start and SETTING.fullmatch(command[start]))
    ):
        start += 1
    before, command = command[:start], command[start:]
    size = _launcher_size(command)
    if not size:
        return None
    found = _launched(command, size)
    return _Launched(found.launcher, [*before, *found.rest] if found.rest else [])


def _launched(command: Sequence[str], size: int) -> _Launched:
    rest = command[size:]
    for index, argument in enumerate(rest):
        if Path(argument).name in PYTHON:
            return _Launched(command[:size], rest[index:])
        if argument.endswith(".py"):
            return _Launched(command[:size], ["python", *rest[index:]])
        if argument in ("-m", "--module") and index + 1 < len(rest):
            return _Launched(command[:size], ["python", "-m", *rest[index + 1 :]])
    return _Launched(command[:size], [])


def _launcher_size(command: Sequence[str]) -> int:
    """Arguments that name a launcher, 0 if there is none."""
    program = Path(command[0]).name
    if program in LAUNCHERS:
        return 1
    if program == "accelerate" and command[1:2] == ["launch"]:
        return 2
    if program in PYTHON and command[1:2] == ["-m"] and len(command) > 2:
        module = command[2]
        if any(module == one or module.startswith(f"{one}.") for one in LAUNCHING_MODULES):
            return 3
    return 0


def _shell_problems(command: _Command) -> Iterator[SpecError]:
    first = command.arguments[0]
    line = " ".join(command.arguments)
    if SETTING.fullmatch(first):
        hint = written(["env", *command.arguments])
        yield command.problem(0, f"{first} is not a program, and there is no shell", hint)
    for index, argument in enumerate(command.arguments):
        if argument in OF_A_SHELL:
            yield command.problem(
                index,
                f"there is no shell: the script would be given {argument!r} as an argument",
                # Without pipefail a crash before `| tee log` would count as done.
                written(["bash", "-o", "pipefail", "-ec", line])
                if "&" not in command.arguments
                else "leave out &: the run lasts for as long as the command does",
            )
            return


def _variable_problems(command: _Command) -> Iterator[SpecError]:
    """Whoever writes `$HOME` expects a shell; `$HEADWAY_*` are replaced without one."""
    is_shell = Path(command.arguments[0]).name in SHELLS
    for index, argument in enumerate(command.arguments):
        for found in VARIABLE.finditer(argument):
            name = found[1] or found[2]
            if name in VARIABLES:
                continue
            if name.startswith("HEADWAY_"):
                hint = f"there are {', '.join(f'${one}' for one in VARIABLES)}"
                yield command.problem(index, f"there is no variable ${name}", hint)
            elif not is_shell:
                yield command.problem(
                    index,
                    f"${name} is not replaced: there is no shell",
                    f'read it in the script: os.environ["{name}"]',
                )


def _program_problems(command: _Command) -> Iterator[SpecError]:
    """Is the program there, and the file that it is to run?"""
    program = command.arguments[0]
    if program in PYTHON:
        yield from _python_problems(command)
        return
    if SETTING.fullmatch(program) or "$" in program:
        return
    if "/" in program:
        yield from _file_problems(command, 0)
    elif not command.is_here or command.has_requirements:
        command.unchecked.add(f"command: {program} is looked for where the run is")
    elif _which(program) is None:
        is_in_folder = (command.folder / program).is_file()
        yield command.problem(
            0,
            f"no program {program!r} in PATH",
            written([f"./{program}", *command.arguments[1:]])
            if is_in_folder
            else "install it, or name a file of the code folder: ./NAME",
        )
    if Path(program).name in SHELLS and len(command.arguments) > 1:
        first = command.arguments[1]
        if not first.startswith("-") and "$" not in first:
            yield from _file_problems(command, 1)


def _which(program: str) -> str | None:
    """As workers find it: beside the interpreter first."""
    beside = os.path.dirname(sys.executable)
    return shutil.which(program, path=f"{beside}:{os.environ.get('PATH', os.defpath)}")


def _python_problems(command: _Command) -> Iterator[SpecError]:
    arguments, index = command.arguments, 1
    while index < len(arguments) and (option := arguments[index]).startswith("-"):
        kind = option[-1] if not option.startswith(("--", "-X", "-W")) else ""
        if kind == "c":
            return
        if kind == "m":
            if index + 1 < len(arguments):
                yield from _module_problems(command, index + 1)
            return
        index += 2 if option in WITH_VALUE else 1
    if index >= len(arguments):
        example = written(["python", _a_script(command.folder), *arguments[1:]])
        yield command.problem(0, "python is given no script", example)
    elif "$" not in arguments[index]:
        yield from _file_problems(command, index)


def _file_problems(command: _Command, index: int) -> Iterator[SpecError]:
    """Of an argument that names the script, or the program."""
    name = command.arguments[index]
    if os.path.isabs(name):
        if not command.is_here:
            command.unchecked.add(f"command: {name} is looked for in the image")
        elif not Path(name).is_file():
            yield command.problem(index, f"there is no file {name}", "write where it is")
        return
    file = command.folder / name
    if not Path(os.path.abspath(file)).is_relative_to(os.path.abspath(command.folder)):
        yield command.problem(
            index,
            f"{name} is outside of the code folder {command.folder}, of which workers get a copy",
            "code: {path: FOLDER} names a folder that has it",
        )
    elif not file.is_file():
        hint = _instead_of(command, name)
        yield command.problem(index, f"there is no file {name} in {command.folder}", hint)
    elif not command.is_copied(name):
        yield command.problem(
            index,
            f"{name} is not copied to workers",
            f"{IGNORE_FILE}, or a name that begins with a dot, leaves it out",
        )
    elif index == 0 and not os.access(file, os.X_OK):
        yield command.problem(
            0, f"{name} is not executable", f"chmod +x {file}, or name its interpreter first"
        )
    elif command.is_here and file.suffix == ".py":
        yield from _syntax_problems(command, index, file)


def _syntax_problems(command: _Command, index: int, file: Path) -> Iterator[SpecError]:
    """Only here: the Python of a target may be a newer one."""
    try:
        ast.parse(file.read_bytes(), file.name)
    except SyntaxError as error:
        name = command.arguments[index]
        hint = f"correct line {error.lineno} of {name}"
        yield command.problem(index, f"{name}:{error.lineno}: {error.msg}", hint)


def _instead_of(command: _Command, name: str) -> str:
    """The same file as the code folder has it, or one of nearly that name."""
    from_run_file = command.loaded.folder / name
    if from_run_file.is_file() and from_run_file.is_relative_to(command.folder):
        return f"paths start at code.path: write {from_run_file.relative_to(command.folder)}"
    scripts = [path.name for path in sorted(command.folder.iterdir()) if path.is_file()]
    near = difflib.get_close_matches(name, scripts, n=1)
    return f"did you mean {near[0]}?" if near else "code: {path: FOLDER} says where the script is"


def _a_script(folder: Path) -> str:
    scripts = sorted(path.name for path in folder.glob("*.py"))
    return "train.py" if "train.py" in scripts or not scripts else scripts[0]


def _module_problems(command: _Command, index: int) -> Iterator[SpecError]:
    module = command.arguments[index]
    parts = module.split(".")
    path = command.folder.joinpath(*parts)
    top = command.folder / parts[0]
    if top.is_dir() or top.with_suffix(".py").is_file():
        file = path / "__main__.py" if path.is_dir() else path.with_name(f"{path.name}.py")
        if not file.is_file():
            yield command.problem(
                index,
                f"no module {module!r}: there is no {file.relative_to(command.folder)} in "
                f"{command.folder}",
                "code: {path: FOLDER} says where modules are",
            )
        elif command.is_here:
            yield from _syntax_problems(command, index, file)
    elif not command.is_here or command.has_requirements:
        command.unchecked.add(f"command: module {module} is looked for where the run is")
    elif importlib.util.find_spec(parts[0]) is None:
        yield command.problem(
            index,
            f"no module {module!r} in {command.folder}, nor among the installed packages",
            "code: {path: FOLDER} says where modules are",
        )
