"""Files for containers, Kubernetes and monitoring parse, fit each other, and name what there is; nothing is run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client import Metric

from fedrdma_fate import __version__
from fedrdma_fate.cli.main import main
from fedrdma_fate.gateway.config.schema import GatewayConfig, load_config, parse_config, split_address
from fedrdma_fate.obs.metrics import GatewayMetrics, Occupancy, _OccupancyCollector
from tests.support.repository import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"
CHART = DEPLOY / "helm" / "fedrdma-gateway"
MONITORING = DEPLOY / "monitoring"

# --- monitoring ---


def series() -> dict[str, set[str]]:
    """Names of what the gateway serves, each with its labels."""
    metrics = GatewayMetrics()
    found: dict[str, set[str]] = {}
    for value in vars(metrics).values():
        for each in value.values() if isinstance(value, dict) else [value]:
            if hasattr(each, "_labelnames"):
                (family,) = each.describe()
                found |= _of_family(family, set(each._labelnames))
    for family in _OccupancyCollector(lambda: Occupancy({}, {})).describe():
        found |= _of_family(family, set(getattr(family, "_labelnames", ())))
    return found


def _of_family(family: Metric, labels: set[str]) -> dict[str, set[str]]:
    if family.type == "counter":
        return {f"{family.name}_total": labels}
    if family.type == "histogram":
        ends = {"_bucket": labels | {"le"}, "_sum": labels, "_count": labels}
        return {f"{family.name}{end}": each for end, each in ends.items()}
    return {family.name: labels}


SERIES = series()
OF_PROMETHEUS = {"instance", "job"}


def expressions() -> Iterator[str]:
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    document = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    for panel in document["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]


def unknown(expression: str, known: Mapping[str, set[str]] = SERIES) -> set[str]:
    """Metrics of ours that are none, and labels that none of the named metrics has."""
    names = set(re.findall(r"\bfedrdma_\w+", expression))
    found = {name for name in names if name not in known}
    for name, matchers in re.findall(r"\b(fedrdma_\w+)\{([^}]*)\}", expression):
        found |= set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) - known.get(name, set()) - OF_PROMETHEUS
    of_all = set().union(*(known.get(name, set()) for name in names)) | OF_PROMETHEUS
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        found |= {label.strip() for label in grouped.split(",")} - of_all
    return found


def test_the_gateways_own_metrics_are_found_with_their_labels() -> None:
    assert SERIES["fedrdma_transfers_total"] == {"outcome", "peer", "mode"}
    assert SERIES["fedrdma_pool_bytes"] == {"pool", "state"}
    assert "le" in SERIES["fedrdma_transfer_seconds_bucket"]
    documented = _plain(
        re.findall(r"^\| `(fedrdma_\w+)`", (ROOT / "docs" / "observability.md").read_text(), re.MULTILINE)
    )
    assert _plain(SERIES) == documented


def _plain(names: Iterable[str]) -> set[str]:
    return {re.sub("_(total|bucket|sum|count)$", "", name) for name in names}


def test_dashboard_and_alerts_name_metrics_and_labels_that_the_gateway_has() -> None:
    named = list(expressions())
    assert len(named) > 30
    assert {expression: unknown(expression) for expression in named if unknown(expression)} == {}


@pytest.mark.parametrize(
    "expression",
    [
        "fedrdma_transfers > 0",
        'fedrdma_transfers_total{result="failed"}',
        "sum by (site) (rate(fedrdma_transfers_total[5m]))",
        "fedrdma_no_such_thing",
    ],
)
def test_a_metric_or_label_that_the_gateway_has_not_is_found(expression: str) -> None:
    assert unknown(expression)


def test_each_alert_says_how_grave_it_is_and_names_labels_that_are_there() -> None:
    (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names)
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))
        grouped = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
        (metric,) = set(re.findall(r"\bfedrdma_\w+", rule["expr"]))
        there = {each.strip() for each in grouped[0].split(",")} if grouped else SERIES[metric] | OF_PROMETHEUS
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= there


def test_what_the_pages_say_to_alert_on_is_in_the_list() -> None:
    text = (ROOT / "docs" / "observability.md").read_text().partition("What to alert on;")[2].partition("## ")[0]
    named = set(re.findall(r"\bfedrdma_\w+", text)) - {"fedrdma_resent_bytes_total"}
    assert len(named) > 8
    assert named <= set(re.findall(r"\bfedrdma_\w+", (MONITORING / "alerts.yaml").read_text()))


def test_panels_of_the_dashboard_do_not_lie_on_each_other() -> None:
    panels = json.loads((MONITORING / "grafana-dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for at in (panel["gridPos"] for panel in panels):
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert taken.isdisjoint(cells)
        taken |= cells


# --- compose ---


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    return document


def mounts(service: Mapping[str, Any]) -> dict[str, str]:
    """What is mounted, by where."""
    return {each.split(":")[1]: each.split(":")[0] for each in service["volumes"]}


def config_of(site: str) -> GatewayConfig:
    return load_config(COMPOSE / f"bank-{site}" / "gateway.yaml")


@pytest.mark.parametrize("site", ["a", "b"])
def test_the_services_of_a_site_share_its_socket_and_its_network(site: str) -> None:
    services, config = compose()["services"], config_of(site)
    gateway, flow, client = (services[f"{name}-{site}"] for name in ("gateway", "flow", "client"))
    assert mounts(gateway)["/etc/fedrdma/gateway.yaml"] == f"./bank-{site}/gateway.yaml"
    assert mounts(flow)["/etc/fedrdma/gateway.yaml"] == f"./bank-{site}/gateway.yaml"
    socket = Path(config.listen.socket.removeprefix("unix://"))
    assert mounts(gateway)[str(socket.parent)] == mounts(flow)[str(socket.parent)] == f"run-{site}"
    assert flow["network_mode"] == client["network_mode"] == f"service:gateway-{site}"
    assert "ports" not in gateway
    assert mounts(gateway)[str(config.memory.spill_directory)] == f"spill-{site}"
    assert {flow["environment"]["PARTY_ID"]} == set(config.parties)
    assert gateway["healthcheck"]["test"][-2] == config.listen.socket
    assert config.tls is not None
    assert config.tls.key is not None
    assert Path(config.tls.key).parent == Path(config.tls.authorities[0]).parent
    assert str(Path(config.tls.key).parent) in mounts(gateway)


def test_the_two_configurations_fit_each_other_and_one_side_dials() -> None:
    a, b = config_of("a"), config_of("b")
    ((of_a,), (of_b,)) = a.peers, b.peers
    assert (of_a.site, list(of_a.parties)) == (b.site, list(b.parties))
    assert (of_b.site, list(of_b.parties)) == (a.site, list(a.parties))
    assert of_b.address is None
    assert of_a.address is not None
    host, port = split_address("address", of_a.address)
    assert host in compose()["services"]
    assert port == split_address("control", b.listen.control)[1]


@pytest.mark.parametrize("site", ["a", "b"])
def test_the_gateway_takes_the_configuration_of_its_container(site: str, tmp_path: Path) -> None:
    run, made = CliRunner(), tmp_path / "tls"
    assert run.invoke(main, ["certs", str(made), "bank-a", "bank-b"]).exit_code == 0
    text = (COMPOSE / f"bank-{site}" / "gateway.yaml").read_text()
    there = tmp_path / "gateway.yaml"
    there.write_text(text.replace("/etc/fedrdma/tls", str(made)))
    checked = run.invoke(main, ["gateway", "--config", str(there), "--check"])
    assert checked.exit_code == 0, checked.output
    there.write_text(text)
    assert run.invoke(main, ["gateway", "--config", str(there), "--check"]).exit_code != 0


def test_the_memory_of_a_gateways_container_holds_its_regions() -> None:
    limit = compose()["services"]["gateway-a"]["mem_limit"]
    assert limit == "2g"
    memory = config_of("a").memory
    assert memory.send_bytes + memory.receive_bytes <= 2**31 * 0.75


def test_every_volume_and_network_is_declared_and_used() -> None:
    document = compose()
    services = document["services"].values()
    named = {name for each in services for name in mounts(each).values() if not name.startswith(".")}
    assert named == set(document["volumes"])
    assert {name for each in services for name in each.get("networks", ())} == set(document["networks"])
    for each in services:
        assert (COMPOSE / each["build"]["context"] / each["build"]["dockerfile"]).is_file()


def test_every_target_and_copied_file_of_the_images_is_there() -> None:
    text = (COMPOSE / "Dockerfile").read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE))
    assert {each["build"]["target"] for each in compose()["services"].values()} <= stages
    for source in re.findall(r"^COPY ([^-\s]\S*) ", text, re.MULTILINE):
        assert (ROOT / source).exists()
    assert set(re.findall(r"--uid (\d+)", text)) == {"1000"}


def test_the_script_of_fate_flow_is_one_for_sh() -> None:
    subprocess.run(["sh", "-n", COMPOSE / "fate-flow.sh"], check=True)


# --- helm ---


def values() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return document


def test_the_configuration_in_the_chart_is_one_that_the_gateway_takes_and_uses_what_is_mounted() -> None:
    config = parse_config(values()["gateway"])
    template = (CHART / "templates" / "statefulset.yaml").read_text()
    mounted = set(re.findall(r"mountPath: ([^,}\s]+)", template))
    assert config.tls is not None
    assert config.tls.key is not None
    for path in (config.tls.key, config.listen.socket.removeprefix("unix://")):
        assert str(Path(path).parent) in mounted
    assert {str(config.memory.spill_directory), str(config.memory.directory)} <= mounted
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


def test_every_value_that_a_template_names_has_a_default_and_every_default_is_used() -> None:
    used = set[str]()
    for template in (CHART / "templates").iterdir():
        text = template.read_text()
        assert text.count("{{") == text.count("}}")
        assert len(re.findall(r"{{-? (?:if|with|range)\b", text)) == len(re.findall(r"{{-? end\b", text))
        used |= set(re.findall(r"\.Values\.([\w.]+)", text))
    for name in used:
        found: Any = values()
        for key in name.split("."):
            assert key in found, name
            found = found[key]
    assert {name.split(".")[0] for name in used} == set(values())


CASES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "with a device": {"rdma": {"enabled": True}, "hostNetwork": True},
    "all in one pod": {
        "socketHostPath": "",
        "extraContainers": [{"name": "flow", "image": "fedrdma-fate", "volumeMounts": []}],
        "extraVolumes": [{"name": "data", "emptyDir": {}}],
        "nodeSelector": {"rdma": "yes"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "service": {"annotations": {"a": "b"}, "type": "LoadBalancer"},
        "spill": {"storageClass": "fast"},
    },
}


@pytest.mark.skipif(shutil.which("helm") is None, reason="no helm is on this machine")
@pytest.mark.parametrize("case", CASES)
def test_the_chart_renders_to_what_parses(case: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(CASES[case]))
    command = ["helm", "template", "bank-a", str(CHART), "--values", str(tmp_path / "values.yaml")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    documents = {each["kind"]: each for each in yaml.safe_load_all(done.stdout) if each}
    host = bool(CASES[case].get("hostNetwork"))
    assert set(documents) == {"ConfigMap", "StatefulSet"} | (set() if host else {"Service"})
    assert parse_config(yaml.safe_load(documents["ConfigMap"]["data"]["gateway.yaml"])).site == "bank-a"
    pod = documents["StatefulSet"]["spec"]["template"]["spec"]
    gateway = pod["containers"][0]
    claims = {each["metadata"]["name"] for each in documents["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    volumes = {each["name"] for each in pod["volumes"]} | claims
    assert {mount["name"] for mount in gateway["volumeMounts"]} <= volumes
    assert ("rdma/hca" in gateway["resources"]["limits"]) is (case == "with a device")
    assert len(pod["containers"]) == 1 + len(CASES[case].get("extraContainers", ()))
    if not host:
        assert [port["port"] for port in documents["Service"]["spec"]["ports"]] == [9370]
