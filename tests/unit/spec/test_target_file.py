"""targets.yaml: what may be written, what is refused where, and what a run takes from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.errors import NotFound, SpecError
from headway.spec.load import load_target, load_targets
from headway.spec.pod_config import parse_amount
from headway.spec.run_file import RunFile
from headway.spec.target_file import Target, TargetFile, with_defaults


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def target(**written: Any) -> Target:
    return Target.model_validate(written)


@pytest.mark.parametrize(
    ("written", "amount"),
    [(8, "8"), (0.5, "0.5"), ("500m", "500m"), ("32Gi", "32Gi"), (" 1T ", "1T")],
)
def test_amounts(written: object, amount: str) -> None:
    assert parse_amount(written) == amount


@pytest.mark.parametrize("written", ["", "8 Gi", "-1", -1, "1e3", "8GB", True, None, [8], 1e-9])
def test_what_is_no_amount(written: object) -> None:
    with pytest.raises(ValueError, match="is not an amount such as 8, 500m or 32Gi"):
        parse_amount(written)


@pytest.mark.trap(25, 37)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "lab:\n  pod:\n    resources: {memory: 8GB}\n",
            "targets.yaml:3:17: lab.pod.resources.memory: '8GB' is not an amount such as",
        ),
        (
            "lab:\n  storage: {claim: fs, secret: a}\n",
            "lab.storage: `secret` needs a URL: a claim takes no credentials",
        ),
        (
            "lab:\n  storage: {claim: My_Claim}\n",
            "lab.storage.claim: 'My_Claim' is not a Kubernetes name: lower-case letters",
        ),
        ("lab: {kube: {namespace: a.b}}\n", "lab.kube.namespace: 'a.b' is not a namespace"),
        ("lab: {priority: high}\n", "lab.priority: `priority` is that of a Kueue queue, and needs"),
        ("lab: {egress: [10.0.0.1/8]}\n", "lab.egress: 10.0.0.1/8 has host bits set; write for"),
        ("lab: {egress: [anywhere]}\n", "does not appear to be an IPv4 or IPv6 network; write for"),
        (
            "lab: {pod: {volumes: [{name: a}]}}\n",
            "lab.pod.volumes: {'name': 'a'} is not a volume: give a name and one kind",
        ),
        (
            "lab: {pod: {volumes: [{emptyDir: {}, secret: {}}]}}\n",
            "is not a volume: give a name and one kind",
        ),
        (
            "lab: {pod: {mounts: [{name: a}]}}\n",
            "{'name': 'a'} is not a mount: write {name: models, mountPath: /models}",
        ),
        ("lab: {pod: {user: 0}}\n", "lab.pod.user: input should be greater than or equal to 1"),
        ("lab: {pod: {env: {A-B: c}}}\n", "is not the name of an environment variable"),
        ("lab: {pod: {nodeSelector: {}}}\n", "did you mean node_selector?"),
        (
            "lab:\n  image: registry.example/headway:1.0\n",
            "targets.yaml:2:3: lab.image: 'registry.example/headway:1.0' has no digest, and a tag "
            "can change during a run; write ADDRESS@sha256:... with the digest from `docker buildx "
            "imagetools inspect IMAGE` or `crane digest IMAGE`",
        ),
        ("lab: {image: 'registry.example/headway@sha256:12'}", "has no digest, and a tag can"),
        (
            "lab: {accelerators: {H100: [{}]}}\n",
            "lab.accelerators: H100 has an entry without labels: write H100: [{LABEL: VALUE}]; or",
        ),
        ("lab: {accelerators: {'H100:8': []}}\n", "'H100:8' is not a kind of accelerator such as"),
        (
            "lab: {pod: {sidecars: [{name: a}]}}\n",
            "lab.pod.sidecars: {'name': 'a'} is not a container: write {name: warm-up, image:",
        ),
        (
            "lab: {pod: {architecture: arm64, node_selector: {kubernetes.io/arch: arm64}}}\n",
            "architecture and node_selector both set kubernetes.io/arch",
        ),
        ("lab: {spot_labels: {}}\n", "did you mean spot_label?"),
        ("lab: {spot_label: {a: b, c: d}}\n", "lab.spot_label: give one label (found a, c)"),
    ],
)
def test_wrong_targets(folder: Path, text: str, says: str) -> None:
    Path("targets.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        load_targets(folder)
    assert says in str(caught.value)


def test_a_target_knows_where_it_is_written(folder: Path) -> None:
    (folder / "config" / "headway").mkdir(parents=True)
    (folder / "config" / "headway" / "targets.yaml").write_text("home: {queue: mine}\n")
    Path("targets.yaml").write_text("lab:\n  pod:\n    volumes:\n    - {name: a, emptyDir: {}}\n")
    lab, home = load_target("lab", folder), load_target("home", folder)
    assert str(lab.mark(("pod", "volumes", 0))) == "targets.yaml:4:7"
    assert str(lab.mark(("image",))) == "targets.yaml:1:1", "nearest to what is missing"
    assert str(home.mark(("queue",))) == "config/headway/targets.yaml:1:8"


def test_a_target_that_is_not_there(folder: Path) -> None:
    with pytest.raises(NotFound, match=f"no target 'lab': neither {folder}"):
        load_target("lab", folder)
    Path("targets.yaml").write_text("lab: {}\ncloud: {}\n")
    with pytest.raises(NotFound) as caught:
        load_target("lap", folder)
    assert str(caught.value) == (
        "no target 'lap'\nhint: did you mean lab? known targets: cloud, lab"
    )


def test_a_run_takes_what_it_does_not_say_itself() -> None:
    run = RunFile.model_validate({"version": 1, "resources": {"nodes": 4}, "budget": {"usd": 1}})
    lab = target(
        resources={"nodes": "2..16", "accelerators": "H100:8"}, budget={"usd": 2, "hours": 3}
    )
    found = with_defaults(run, lab)
    assert (str(found.resources.nodes), str(found.resources.accelerators)) == ("4", "H100:8")
    assert found.resources.spot == "none"
    assert (found.budget.usd, found.budget.hours) == (1, 3)
    assert with_defaults(run, target()) == run


def test_the_schema_takes_what_we_take() -> None:
    """Amounts are numbers to an editor, too."""
    amount = {"type": ["string", "number"]}
    pod = TargetFile.model_json_schema()["$defs"]["PodConfig"]["properties"]
    assert amount.items() <= pod["resources"]["additionalProperties"].items()
    assert amount.items() <= pod["shared_memory"].items()


@pytest.mark.parametrize(
    ("prices", "says"),
    [
        ("{H100: x}", "2:12: lab.prices.H100: input should be a valid number"),
        ("{H100: true}", "2:12: lab.prices.H100: input should be a valid number"),
        ("{H100: -1}", "2:12: lab.prices.H100: input should be greater than 0 (found -1)"),
        ("{H100: {spot: 2}}", "2:12: lab.prices.H100 has no key 'on_demand'"),
        ("{H100: {on_demand: 4, sport: 2}}", "did you mean spot?"),
        ("{storage: {on_demand: 1, spot: 2}}", "`storage` has one price"),
    ],
)
def test_prices_are_checked_with_their_line(tmp_path: Path, prices: str, says: str) -> None:
    (tmp_path / "targets.yaml").write_text(f"lab:\n  prices: {prices}\n")
    with pytest.raises(SpecError) as raised:
        load_target("lab", tmp_path)
    assert says in str(raised.value)


def test_a_plain_price_is_that_on_demand(tmp_path: Path) -> None:
    text = "lab:\n  prices: {H100: {on_demand: 4, spot: 2}, L4: 0.80, cpu: 1, storage: 0.02}\n"
    (tmp_path / "targets.yaml").write_text(text)
    found = load_target("lab", tmp_path).target.prices
    assert (found["H100"].on_demand, found["H100"].spot) == (4, 2)
    assert (found["L4"].on_demand, found["L4"].spot) == (0.8, None)
