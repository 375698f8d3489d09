"""What a script is given: torchrun's variables, its own, and none between our processes."""

from __future__ import annotations

import socket

import pytest

from headway.errors import BadInput
from headway.script import place as module
from headway.script.place import (
    Master,
    Place,
    command_environment,
    free_port,
    replace_variables,
    torchrun_variables,
)
from headway.script.stand_still import STACKS_FOLDER

MASTER = Master("10.0.0.7", 23456, restarts=2, is_untried=False)


def test_variables_of_a_rank_of_the_second_node() -> None:
    place = Place(rank=5, num_workers=8, local_rank=1, ranks_per_node=4)
    variables = torchrun_variables(place, MASTER, "mine")
    assert variables["RANK"] == variables["ROLE_RANK"] == "5"
    assert variables["LOCAL_RANK"] == "1"
    assert variables["WORLD_SIZE"] == variables["ROLE_WORLD_SIZE"] == "8"
    assert variables["LOCAL_WORLD_SIZE"] == "4"
    assert (variables["GROUP_RANK"], variables["GROUP_WORLD_SIZE"]) == ("1", "2")
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("10.0.0.7", "23456")
    assert variables["TORCHELASTIC_RESTART_COUNT"] == "2"
    assert variables["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    assert list(place.node_ranks) == [4, 5, 6, 7]


def test_the_command_has_the_users_variables_and_none_between_our_processes() -> None:
    given = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "HEADWAY_RUN": "mine",
        "HEADWAY_DEVICE": "0",
        "HEADWAY_KEY": "/secret",
        "HEADWAY_COORDINATOR": "somewhere:1",
        "HEADWAY_OUTPUT": "s3://bucket/mine/output",
        "HEADWAY_SCRATCH": "/scratch",
    }
    environment = command_environment(given, Place(0, 1, 0, 1), MASTER, "/beat")
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    ours = {name for name in environment if name.startswith("HEADWAY_")}
    assert ours == {"HEADWAY_OUTPUT", "HEADWAY_SCRATCH", "HEADWAY_RUN", "HEADWAY_HEARTBEAT"}
    others = {name: text for name, text in given.items() if not name.startswith("TORCH")}
    default = command_environment(others, Place(0, 1, 0, 1), MASTER, "/beat")
    assert default["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    assert default["PYTHONPATH"] == str(STACKS_FOLDER)
    with_path = command_environment({**given, "PYTHONPATH": "/mine"}, Place(0, 1, 0, 1), MASTER, "")
    assert with_path["PYTHONPATH"] == f"{STACKS_FOLDER}:/mine"


@pytest.mark.parametrize(
    ("device", "local_rank", "visible", "expected"),
    [
        ("1", 1, None, None),
        ("1", 1, "4,5,6,7", "4,5,6,7"),
        ("2", 0, None, "2,3"),
        ("3", 1, None, "2,3"),
        ("3", 1, "4,5,6,7", "6,7"),
    ],
)
def test_nodes_that_share_a_machine_have_devices_of_their_own(
    device: str, local_rank: int, visible: str | None, expected: str | None
) -> None:
    given = {"HEADWAY_RUN": "mine", "HEADWAY_DEVICE": device}
    if visible is not None:
        given["CUDA_VISIBLE_DEVICES"] = visible
    place = Place(int(device), 4, local_rank, 2)
    environment = command_environment(given, place, MASTER, "/beat")
    assert environment.get("CUDA_VISIBLE_DEVICES") == expected


def test_only_our_variables_are_replaced_in_arguments() -> None:
    environment = {"HEADWAY_OUTPUT": "/out", "HOME": "/home/me"}
    command = ["python", "train.py", "--out=$HEADWAY_OUTPUT/a", "${HEADWAY_OUTPUT}b", "$HOME", "$$"]
    assert replace_variables(command, environment)[2:] == ["--out=/out/a", "/outb", "$HOME", "$$"]
    with pytest.raises(BadInput, match=r"no \$HEADWAY_OUTPUTS"):
        replace_variables(["$HEADWAY_OUTPUTS"], environment)


def test_a_port_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        monkeypatch.setattr(module, "PORTS", range(number, number + 1))
        monkeypatch.setattr(module, "PORT_TRIES", 1)
        with pytest.raises(BadInput, match="in use"):
            free_port()
