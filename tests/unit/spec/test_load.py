"""From files to a run: what a user reads when something is wrong, and where it comes from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headway.errors import BadInput, Exit, NotFound, SpecError
from headway.spec.key_suggestions import FOREIGN, key_paths
from headway.spec.load import changed_run, load_run, load_targets, preset_names
from headway.spec.resolve import Hardware, resolve
from headway.spec.run_file import RunFile
from headway.spec.target_file import Target
from headway.spec.unsupported_parallelism import parallelism_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def refused(text: str, *overrides: str) -> SpecError:
    Path("run.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        load_run(None, list(overrides))
    assert caught.value.exit_code == Exit.BAD_INPUT
    return caught.value


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("version: 1\nmodle: {from: gpt2}\n", "run.yaml:2:1", "did you mean model?"),
        (
            "version: 1\noptimizer:\n  lr: 1\n  weight_decy: 0\n",
            "run.yaml:4:3",
            "did you mean weight_decay?",
        ),
        ("version: 1\noptimizer: {max-grad-norm: 1}\n", "run.yaml:2:13", "write max_grad_norm"),
        ("version: 1\nSeed: 3\n", "run.yaml:2:1", "write seed"),
        # In the wrong place.
        ("version: 1\nlr: 1e-3\n", "run.yaml:2:1", "lr belongs in optimizer"),
        ("version: 1\nsources: [a]\n", "run.yaml:2:1", "sources belongs in data.train"),
        ("version: 1\ncheckpoint: {last: 3}\n", "run.yaml:2:14", "last belongs in checkpoint.keep"),
        ("version: 1\nbatch: {global: 8, seed: 3}\n", "run.yaml:2:20", "seed belongs in the top"),
        # As other tools call it.
        ("version: 1\nlearning_rate: 1\n", "run.yaml:2:1", "write optimizer.lr"),
        ("version: 1\noptimizer: {learning_rate: 1}\n", "run.yaml:2:13", "write lr"),
        ("version: 1\nlearning-rate: 1\n", "run.yaml:2:1", "write optimizer.lr"),
        ("version: 1\nmax_steps: 1\n", "run.yaml:2:1", "write train_for: N steps"),
        ("version: 1\ntraining: {seq_len: 1}\n", "run.yaml:2:1", "write batch, data and train_for"),
        (
            "version: 1\nresume_from_checkpoint: x\n",
            "run.yaml:2:1",
            "nothing: the same `headway run` resumes",
        ),
        (
            "version: 1\ndata: {validation: {wiki: {source: [a]}}}\n",
            "run.yaml:2:28",
            "did you mean sources?",
        ),
        ("version: 1\nrun: python train.py\n", "run.yaml:2:1", "write command: [python, train.py]"),
        ("version: 1\nxyz: 1\n", "run.yaml:2:1", "keys here: version, name,"),
    ],
)
def test_an_unknown_key(folder: Path, text: str, place: str, hint: str) -> None:
    error = refused(text)
    assert error.where == place
    assert "unknown key" in error.problem
    assert error.hint is not None
    assert hint in error.hint


SHARD = (
    "hint: write shard: node, which splits weights, gradients and optimizer state over a node's "
    "GPUs"
)
SHORTER = (
    "hint: write memory.checkpoint_activations: true and batch.micro: 1, or a shorter "
    "data.sequence_length"
)
EXPERTS = "hint: write shard: node, which splits experts over a node's GPUs like all other weights"


@pytest.mark.parametrize(
    ("keys", "kind", "hint"),
    [
        (
            "tensor_parallel tp tp_size tensor-parallel tensor_parallel_degree tensor_parallelism "
            "tensor_model_parallel_size enable_async_tensor_parallel tp_plan",
            "tensor",
            SHARD,
        ),
        (
            "pipeline_parallel pp pp_size pipeline_parallel_degree pipeline_model_parallel_size "
            "virtual_pipeline_model_parallel_size pipeline_parallel_schedule",
            "pipeline",
            SHARD,
        ),
        ("context_parallel cp cp_size context_parallel_degree", "context", SHORTER),
        ("sequence_parallel sp ulysses_sequence_parallel_size", "sequence", SHORTER),
        (
            "expert_parallel ep expert_parallel_degree expert_model_parallel_size",
            "expert",
            EXPERTS,
        ),
    ],
)
def test_parallelism_that_headway_does_not_have_is_refused_by_name(
    folder: Path, keys: str, kind: str, hint: str
) -> None:
    for key in keys.split():
        assert str(refused(f"version: 1\n{key}: 2\n")) == (
            f"run.yaml:2:1: {key}: {kind} parallelism is not supported\n{hint}"
        )
        assert str(refused(f"version: 1\nresources: {{{key}: 2}}\n")) == (
            f"run.yaml:2:13: resources.{key}: {kind} parallelism is not supported\n{hint}"
        )


def test_parallelism_in_a_section_of_another_tool(folder: Path) -> None:
    text = "version: 1\nparallelism:\n  tensor_parallel_degree: 1\n  pp: 4\n  dp: 2\n"
    assert str(refused(text)).splitlines() == [
        "run.yaml:2:1: unknown key 'parallelism'",
        "hint: write shard and resources",
        "run.yaml:3:3: parallelism.tensor_parallel_degree: tensor parallelism is not supported",
        "hint: leave it out: 1 means none",
        "run.yaml:4:3: parallelism.pp: pipeline parallelism is not supported",
        SHARD,
    ]


def test_no_key_of_ours_asks_for_such_parallelism() -> None:
    names = [name for path in key_paths(RunFile) for name in path.split(".")]
    assert [name for name in [*names, *FOREIGN] if parallelism_of(name)] == []


def test_every_foreign_name_leads_to_a_key_of_ours() -> None:
    known = set(key_paths(RunFile))
    anywhere = {path.rpartition(".")[2] for path in known}
    for name, target in FOREIGN.items():
        first = re.match(r"[\w.]+", target)
        assert first is not None
        key = first[0]
        assert key == "nothing" or key in known or key in anywhere, f"{name} -> {target}"
        if name != "epochs":  # of a mixture's member; whoever writes it elsewhere means the length
            assert name not in anywhere, f"{name} is a key of ours: its own place would be hidden"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "run.yaml:1:1: the file has no key 'version'"),
        ("- a\n", "run.yaml:1:1: a run file must be a mapping of keys"),
        ("version: 2\n", "run.yaml:1:1: version: 2 is not 1"),
        ("version: 1\nmodel: gpt2\n", "its keys are from, revision, type, call, config"),
        ("version: 1\ndata:\n", "run.yaml:2:1: data: must be a section with keys"),
        ("version: 1\nmodel: {from: a, type: b}\n", "exactly one of from, type, call (found from"),
        ("version: 1\nmodel: {config: {a: 1}}\n", "exactly one of from, type, call (found none)"),
        ("version: 1\nmodel: {call: build}\n", 'write "module:function"'),
        ("version: 1\nbatch: {micro: 4}\n", "run.yaml:2:1: batch has no key 'global'"),
        ("version: 1\nprecision: float16\n", "is not one of 'bf16', 'fp16' or 'fp32'"),
        ("version: 1\nmemory: {compile: yes}\n", "memory.compile: write true or false"),
        (
            "version: 1\nmemory: {offload: optimizer}\n",
            "cannot be offloaded: sharding divides them over devices instead\n"
            "hint: write shard: node, or shard: all and more nodes",
        ),
        (
            "version: 1\nmemory: {offload: activations, compile: true}\n",
            "`offload: activations` has not been tried with `compile: true`",
        ),
        (
            "version: 1\nmemory: {offload: activations, checkpoint_activations: false}\n",
            "leave `checkpoint_activations: false` out",
        ),
        ("version: 1\nname: My_Run\n", "lower-case letters, digits"),
        ("version: 1\nsecrets: [A-B]\n", "run.yaml:2:11: secrets.0: 'A-B' is not the name of an"),
        ("version: 1\ntrain_for: 10m\n", "run.yaml:2:1: train_for: '10m' is ambiguous"),
        (
            "version: 1\nevaluation: {every: 10min}\n",
            "must be in steps here, for example 500 steps",
        ),
        ("version: 1\nobjective: distill\n", "must be given together"),
        ("version: 1\nobjective: {teacher: gpt2}\n", "exactly one of type, call"),
        ("version: 1\noptimizer: {betas: [0.9]}\n", "optimizer.betas: too few values"),
        ("version: 1\noptimizer: {betas: [0.9, 1.5]}\n", "less than 1 (found 1.5)"),
        ("version: 1\noptimizer: {lr: inf}\n", "optimizer.lr: input should be a finite number"),
        ("version: 1\noptimizer: {max_grad_norm: 0}\n", "`off` disables clipping"),
        ("version: 1\nthreads: 0\n", "threads: input should be greater than or equal to 1"),
        ("version: 1\nevaluation: {sequences: 0}\n", "greater than or equal to 1 (found 0)"),
        ("version: 1\nguard: {loss_spike: -1}\n", "greater than 0 (found -1)"),
        ("version: 1\ndata: {train: {path: a, tokenizer: gpt2}}\n", "has its own tokenizer"),
        ("version: 1\ndata: {validation: {a b: x}}\n", "letters, digits, dots, dashes"),
    ],
)
def test_a_wrong_value_says_where_and_what_would_be_right(
    folder: Path, text: str, says: str
) -> None:
    assert says in str(refused(text))


STREAMED = "{sources: [a], tokenizer: gpt2, stream: true"


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ("{mixture: {a: {path: a, weight: 1}, b: {path: b, epochs: 2}}}", "every member a weight"),
        ("{mixture: {a: {path: a}}}", "or give the mixture a temperature"),
        ("{mixture: {a: {path: a, weight: 1, epochs: 1}}}", "only one of `weight` and `epochs`"),
        ("{mixture: {a: {path: a, epochs: 1, max_epochs: 2}}}", "remove `max_epochs`"),
        ("{mixture: {a: {path: a, max_epochs: 0}}}", "greater than 0"),
        ("{mixture: {a: {path: a, weight: 1}}, temperature: 2}", "decides the share of a"),
        ("{path: a, temperature: 2}", "`temperature` needs a `mixture`"),
        (f"{{mixture: {{a: {STREAMED}}}}}, temperature: 2}}", "the share of a by its size"),
        (f"{{mixture: {{a: {STREAMED}, epochs: 1}}}}}}", "give only a `weight`"),
        (f"{{mixture: {{a: {STREAMED}, max_epochs: 1}}}}}}", "give only a `weight`"),
        (
            "{mixture: {a: {path: a, weight: 1}}, stream: true}",
            "in a mixture, write it in a member",
        ),
        ("{mixture: {a: {path: a, weight: 1}}, hold_out: 1%}", "not a mixture of them"),
        ("{path: a, stream: true}", "`stream` needs `sources`"),
        (f"{STREAMED}, deduplicate: true}}", "remove `deduplicate`"),
    ],
)
def test_shares_that_cannot_be_are_refused(folder: Path, train: str, says: str) -> None:
    assert says in str(refused(f"version: 1\ndata: {{train: {train}}}\n"))


def test_shares_by_temperature_and_with_limits(folder: Path) -> None:
    mixture = "{a: {path: a, max_epochs: 4}, b: {sources: [b]}}, temperature: 3, tokenizer: gpt2"
    Path("run.yaml").write_text(f"version: 1\ndata: {{train: {{mixture: {mixture}}}}}\n")
    train = load_run("run.yaml").run.data.train
    assert train is not None
    assert train.mixture is not None
    assert (train.temperature, train.mixture["a"].max_epochs) == (3, 4)
    assert not train.is_streamed


def test_all_that_is_wrong_is_said_at_once(folder: Path) -> None:
    text = str(refused("version: 1\nlr: 3\nseed: x\noptimizer: {typ: adamw}\ntrain_for: 10m\n"))
    assert text.count("run.yaml:") == 4
    for said in ("run.yaml:2:1: unknown key 'lr'", "run.yaml:3:1: seed:", "did you mean type?"):
        assert said in text
    assert "run.yaml:5:1: train_for: '10m' is ambiguous" in text


def test_words_and_numbers_as_people_write_them(folder: Path) -> None:
    Path("run.yaml").write_text(
        "version: 1\noptimizer: {lr: 6e-4, max_grad_norm: off}\nbatch: {global: 0.5M tokens}\n"
        "objective: masked\ndata: {train: {sources: [a], tokenizer: gpt2}}\n"
    )
    run = load_run().run
    assert (run.optimizer.lr, run.optimizer.max_grad_norm) == (6e-4, "off")
    assert run.objective.type == "masked"
    assert run.data.train is not None
    assert run.data.train.tokenizer is not None
    assert run.data.train.tokenizer.from_ == "gpt2"


# --- extends


def test_extends_a_preset(folder: Path) -> None:
    Path("run.yaml").write_text("version: 1\nextends: gpt2-small\nmodel: {config: {n_layer: 2}}\n")
    loaded = load_run()
    assert loaded.run.model is not None
    assert loaded.run.model.config["n_layer"] == 2
    assert loaded.run.model.config["n_head"] == 12
    assert loaded.folder == folder
    assert str(loaded.located.mark(("batch",))).startswith("gpt2-small (preset):")
    assert not loaded.is_preset
    assert load_run("gpt2-small", ["seed=3"]).is_preset


def test_extends_a_chain_of_files_each_relative_to_its_own_folder(folder: Path) -> None:
    Path("base").mkdir()
    Path("base/common.yaml").write_text("version: 1\nextends: tiny\nseed: 1\nname: c\n")
    Path("base/run.yaml").write_text("version: 1\nextends: common.yaml\nseed: 2\n")
    Path("run.yaml").write_text("version: 1\nextends: base/run.yaml\nname: mine\n")
    loaded = load_run()
    assert (loaded.run.name, loaded.run.seed) == ("mine", 2)
    assert str(loaded.run.train_for) == "300 steps"
    assert loaded.folder == folder, "paths are relative to the file that is run"
    assert str(loaded.located.mark(("seed",))) == "base/run.yaml:3:1"


def test_files_of_one_name_in_two_folders_are_no_circle(folder: Path) -> None:
    Path("a/a").mkdir(parents=True)
    Path("run.yaml").write_text("version: 1\nextends: a/run.yaml\n")
    Path("a/run.yaml").write_text("version: 1\nextends: a/run.yaml\n")
    Path("a/a/run.yaml").write_text("version: 1\nseed: 5\n")
    assert load_run().run.seed == 5


@pytest.mark.parametrize("start", ["run.yaml", "./sub/../run.yaml"])
def test_a_circle_is_refused(folder: Path, start: str) -> None:
    Path("sub").mkdir()
    Path("sub/other.yaml").write_text("version: 1\nextends: ../run.yaml\n")
    Path("run.yaml").write_text("version: 1\nextends: sub/other.yaml\n")
    with pytest.raises(SpecError, match=r"sub/other.yaml:2:1: `extends` forms a circle"):
        load_run(start)


def test_a_file_that_extends_itself_is_refused(folder: Path) -> None:
    assert refused("version: 1\nextends: run.yaml\n").where == "run.yaml:2:1"


def test_a_missing_base_is_refused_with_the_nearest_preset(folder: Path) -> None:
    error = refused("version: 1\nextends: gpt2-smal\n")
    assert (error.where, error.hint) == ("run.yaml:2:1", "did you mean gpt2-small?")
    assert "presets: " in str(refused("version: 1\nextends: zzz\n").hint)
    assert "one preset or one file" in refused("version: 1\nextends: [a, b]\n").problem


def test_a_mistake_in_the_base_is_shown_in_the_base(folder: Path) -> None:
    Path("base.yaml").write_text("version: 1\noptimizer:\n  lr: -1\n")
    error = refused("version: 1\nextends: base.yaml\noptimizer: {eps: 1e-6}\n")
    assert error.where == "base.yaml:3:3"


# --- --set


def test_set_overrides_with_any_yaml_value(folder: Path) -> None:
    Path("run.yaml").write_text("version: 1\nextends: tiny\n")
    run = load_run(
        None,
        [
            "optimizer.lr=1e-4",
            "optimizer.betas=[0.8, 0.9]",
            "data.train.sources=[other.txt]",
            "batch={global: 8}",
            "train_for=10 steps",
            "track=[]",
            "data.validation.more=prepared/set",
            "seed=1",
            "seed=2",
        ],
    ).run
    assert (run.optimizer.lr, run.optimizer.betas) == (1e-4, (0.8, 0.9))
    assert run.optimizer.weight_decay == 0.1, "what stands beside it stays"
    assert run.data.train is not None
    assert run.data.train.sources == ["other.txt"]
    assert run.data.train.tokenizer is not None
    assert run.batch is not None
    assert (run.batch.global_.amount, run.batch.micro) == (8, 4)
    assert (str(run.train_for), run.track, run.seed) == ("10 steps", [], 2)
    assert set(run.data.validation) == {"held-out", "more"}


@pytest.mark.parametrize("text", ["optimizer.lr", "=3", "optimizer..lr=3", "a.=3", "seed=", "a= "])
def test_set_that_sets_nothing(folder: Path, text: str) -> None:
    Path("run.yaml").write_text("version: 1\n")
    with pytest.raises(BadInput, match=re.escape(f"--set {text}")):
        load_run(None, [text])


def test_a_mistake_in_set_is_shown_there(folder: Path) -> None:
    assert refused("version: 1\n", "optimizer.lr=-1").where == "--set optimizer.lr"
    assert refused("version: 1\n", "optimizer={lr: -1}").where == "--set optimizer"
    assert refused("version: 1\n", "track=[mlflow]").where == "--set track"
    assert refused("version: 1\n", "batch.micro=4").where == "--set batch.micro"
    assert refused("version: 1\n", "a=[").where.startswith("--set a")
    unknown = refused("version: 1\n", "learning_rate=3")
    assert (unknown.where, unknown.hint) == ("--set learning_rate", "write optimizer.lr")


def test_set_does_not_take_the_blame_for_what_stands_around_it(folder: Path) -> None:
    error = refused("version: 1\nbatch:\n  micro: 2\n", "batch.micro=4", "seed=1")
    assert error.where == "run.yaml:2:1"
    assert refused("seed: 1\n", "seed=2").where == "run.yaml:1:1"


def test_set_extends_takes_another_preset_below_the_file(folder: Path) -> None:
    Path("run.yaml").write_text("version: 1\nextends: llama2-7b\ntrain_for: 9 steps\n")
    run = load_run(None, ["model.config.vocab_size=512", "extends=llama2-70b"]).run
    assert run.model is not None
    assert run.model.config["num_hidden_layers"] == 80
    assert run.model.config["vocab_size"] == 512
    assert (run.extends, str(run.train_for)) == ("llama2-70b", "9 steps")


def test_a_preset_that_is_set_but_not_known_is_refused_there(folder: Path) -> None:
    error = refused("version: 1\nextends: llama2-7b\n", "extends=llama2-70")
    assert (error.where, error.hint) == ("--set extends", "did you mean llama2-70b?")


def test_what_extends_nothing_is_not_told_to_extend(folder: Path) -> None:
    with pytest.raises(BadInput, match="llama2-7b is a preset, and extends nothing"):
        load_run("llama2-7b", ["extends=llama2-70b"])
    Path("run.yaml").write_text("version: 1\nextends: llama2-7b\n")
    with pytest.raises(BadInput, match="has taken all keys of its preset already"):
        changed_run(load_run().run, ["extends=llama2-70b"])


# --- where files are looked for


def test_a_run_file_by_path_folder_or_preset(folder: Path) -> None:
    Path("sub").mkdir()
    Path("sub/run.yaml").write_text("version: 1\nseed: 1\n")
    Path("sub/other.yaml").write_text("version: 1\nseed: 2\n")
    assert load_run("sub").run.seed == load_run(Path("sub/run.yaml")).run.seed == 1
    assert load_run("sub/other.yaml").run.seed == 2
    assert load_run("sub").folder == folder / "sub"
    assert load_run("gpt2-small").run.batch is not None


@pytest.mark.parametrize("reference", [None, "nowhere", "nowhere/run.yaml"])
def test_a_missing_run_file(folder: Path, reference: str | None) -> None:
    with pytest.raises(NotFound) as caught:
        load_run(reference)
    assert caught.value.exit_code == Exit.NOT_FOUND == 3
    assert "headway init" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["run.yaml", "targets.yaml"])
def test_a_file_that_is_no_text(folder: Path, name: str) -> None:
    Path(name).write_bytes(b"version: \xff\n")
    with pytest.raises(SpecError, match=f"{name}: not UTF-8 text"):
        load_run() if name == "run.yaml" else load_targets(folder)


# --- targets.yaml

TARGETS = """\
lab:
  kube: {context: lab, namespace: ml}
  image: registry.example/headway@sha256:%s
  storage: {claim: shared-fs}
  queue: research
  prices: {H100: 2.10}
  resources: {accelerators: H100:8, nodes: 2..16, spot: all}
  budget: {usd: 500, hours: 48}
  pod: {tolerations: [{operator: Exists}], node_selector: {a: b}}
  security: restricted
cloud:
  storage: s3://bucket/prefix
""" % ("0" * 64)


def test_targets(folder: Path) -> None:
    Path("targets.yaml").write_text(TARGETS)
    targets = load_targets(folder)
    assert targets["lab"].prices["H100"].on_demand == 2.1
    assert targets["cloud"].storage is not None
    assert targets["cloud"].storage.url == "s3://bucket/prefix"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lab: {kub: {}}\n", "targets.yaml:1:7: unknown key 'kub' in lab\nhint: did you mean kube"),
        ("lab: {namespace: ml}\n", "namespace belongs in kube"),
        ("lab: {image: a:latest}\n", "targets.yaml:1:7: lab.image"),
        ("lab: {storage: {claim: a, url: s3://b}}\n", "give a URL (s3://, gs://) or {claim: NAME}"),
        ("My Lab: {}\n", "lower-case letters"),
        ("- lab\n", "targets.yaml:1:1"),
        ("lab:\n", "targets.yaml:1:1: lab: must be a section with keys"),
    ],
)
def test_wrong_targets(folder: Path, text: str, says: str) -> None:
    Path("targets.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        load_targets(folder)
    assert says in str(caught.value)


def test_targets_beside_the_run_file_come_before_the_users_own(folder: Path) -> None:
    (folder / "config" / "headway").mkdir(parents=True)
    (folder / "config" / "headway" / "targets.yaml").write_text(
        "lab: {queue: users}\nhome: {queue: users}\n"
    )
    assert {name: target.queue for name, target in load_targets(folder).items()} == {
        "lab": "users",
        "home": "users",
    }
    Path("targets.yaml").write_text("lab: {queue: beside}\n")
    assert {name: target.queue for name, target in load_targets(folder).items()} == {
        "lab": "beside",
        "home": "users",
    }


def test_an_empty_config_variable_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG: an empty variable counts as unset. `headway/targets.yaml` in here is somebody else's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setenv("HOME", str(folder / "home"))
    Path("headway").mkdir()
    Path("headway/targets.yaml").write_text("stray: {}\n")
    assert load_targets(folder) == {}


def test_target_keys_have_suggestions_too() -> None:
    assert "kube.namespace" in set(key_paths(Target))


# --- presets


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_runs_once_it_has_data(folder: Path, name: str) -> None:
    Path("run.yaml").write_text(f"version: 1\nextends: {name}\ndata: {{train: prepared}}\n")
    resolved = resolve(
        load_run(),
        Hardware(cores=8, cuda_devices=8),
        nodes=1,
        parameters=None,
        train_set=Path("prepared"),
        validation_sets={},
    )
    assert resolved.global_batch % resolved.micro == 0
    assert resolved.ranks_per_node == 8


def test_a_presets_vocabulary_follows_a_tokenizer_that_is_trained(folder: Path) -> None:
    base = "version: 1\nextends: bert-base\n"
    trained = base + "data: {train: {sources: [a.txt], tokenizer: {train: {vocab: 2048}}}}\n"
    published = base + "data: {train: {sources: [a.txt], tokenizer: bert-base-uncased}}\n"
    for text, overrides, vocabulary in (
        (trained, [], None),
        (trained, ["model.config.vocab_size=4096"], 4096),
        (trained + "model: {config: {vocab_size: 30522}}\n", [], 30522),
        (published, [], 30522),
    ):
        Path("run.yaml").write_text(text)
        model = load_run(None, overrides).run.model
        assert model is not None
        assert model.config.get("vocab_size") == vocabulary
        assert model.config["hidden_size"] == 768
