"""What a run computes, read from its run file."""

from __future__ import annotations

from headway.plan.workload import workload_of
from headway.spec.run_file import RunFile

LLAMA = {"type": "llama", "config": {"vocab_size": 32000}}


def read(**keys: object) -> RunFile:
    return RunFile.model_validate({"version": 1, **keys})


def test_a_run_of_tokens_has_a_number_of_steps() -> None:
    run = read(
        model=LLAMA,
        batch={"global": 512, "micro": 2},
        data={"sequence_length": 4096},
        train_for="2M tokens",
    )
    workload = workload_of(run, vocabulary=None)
    assert workload is not None
    assert (workload.steps, workload.micro, workload.tokens_per_step) == (1, 2, 512 * 4096)
    assert workload.model.size.parameters == 6_738_415_616


def test_epochs_are_known_to_the_data_alone() -> None:
    workload = workload_of(read(model=LLAMA, batch={"global": 8}, train_for="3 epochs"), None)
    assert workload is not None
    assert workload.steps is None


def test_the_vocabulary_is_the_tokenizers_rounded_up_unless_the_config_has_one() -> None:
    run = read(model={"type": "gpt2"}, batch={"global": 8}, train_for="5 steps")
    assert workload_of(run, vocabulary=None) is None
    workload = workload_of(run, vocabulary=1000)
    assert workload is not None
    assert workload.model.config["vocab_size"] == 1024


def test_a_saved_models_config_says_its_shape() -> None:
    run = read(model={"from": "mine"}, batch={"global": 8}, train_for="5 steps")
    assert workload_of(run, vocabulary=1000) is None
    workload = workload_of(run, None, saved={"model_type": "gpt2", "vocab_size": 512})
    assert workload is not None
    assert workload.model.type == "gpt2"


def test_a_teacher_is_counted_beside_its_student() -> None:
    objective = {"type": "distill", "teacher": {"type": "gpt2", "config": {"n_layer": 12}}}
    student = {"type": "gpt2", "config": {"n_layer": 6}}
    run = read(model=student, objective=objective, batch={"global": 8}, train_for="5 steps")
    workload = workload_of(run, vocabulary=1024)
    assert workload is not None
    assert workload.teacher is not None
    assert workload.teacher.size.num_layers == 12
    assert workload.model.size.num_layers == 6


def test_of_a_script_nothing_is_known() -> None:
    assert workload_of(read(command=["python", "train.py"]), vocabulary=1024) is None
