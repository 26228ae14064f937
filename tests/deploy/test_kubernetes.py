"""The manifests fit each other, the image and the project."""

from pathlib import Path
from typing import Any

import pytest

from tests.deploy.assets import BASE, DEPLOY, OVERLAYS, document, documents, image_environment

KUSTOMIZATIONS = sorted(DEPLOY.rglob("kustomization.yaml"))
DEPLOYMENTS = sorted(BASE.glob("*/deployment.yaml"))
PATHS = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}

each_kustomization = pytest.mark.parametrize(
    "file", KUSTOMIZATIONS, ids=lambda file: str(file.parent.relative_to(DEPLOY))
)
each_deployment = pytest.mark.parametrize("file", DEPLOYMENTS, ids=lambda file: file.parent.name)


def _pod(file: Path) -> dict[str, Any]:
    pod: dict[str, Any] = document(file)["spec"]["template"]["spec"]
    return pod


def _container(file: Path) -> dict[str, Any]:
    (container,) = _pod(file)["containers"]
    assert isinstance(container, dict)
    return container


def _resources(file: Path) -> list[dict[str, Any]]:
    """Return the objects of a kustomization, with those of its resources, unpatched."""
    found: list[dict[str, Any]] = []
    for name in document(file).get("resources", []):
        path = (file.parent / name).resolve()
        found += _resources(path / "kustomization.yaml") if path.is_dir() else documents(path)
    return found


# --- kustomizations -----------------------------------------------------------------------------------------


@each_kustomization
def test_what_it_names_is_there_and_what_is_there_is_named(file: Path) -> None:
    whole = document(file)
    generated = [name for one in whole.get("configMapGenerator", []) for name in one["files"]]
    named = [*whole.get("resources", []), *(patch["path"] for patch in whole.get("patches", [])), *generated]
    assert [name for name in named if not (file.parent / name).exists()] == []
    assert [name for name in generated if Path(name).name != name] == []  # kustomize reads nothing outside its folder
    lying = {path.name for path in file.parent.iterdir() if path.is_file()} - {"kustomization.yaml"}
    assert lying == {name for name in named if not (file.parent / name).is_dir()}


@each_kustomization
def test_what_it_changes_is_there(file: Path) -> None:
    whole = document(file)
    there = {(one["kind"], one["metadata"]["name"]) for one in _resources(file)}
    for patch in whole.get("patches", []):
        target = patch["target"]
        assert any(kind == target["kind"] and name == target.get("name", name) for kind, name in there), target
    assert {one["name"] for one in whole.get("replicas", [])} <= {name for kind, name in there if kind == "Deployment"}
    images = {_container(deployment)["image"] for deployment in DEPLOYMENTS}
    assert {one["name"] for one in whole.get("images", [])} <= images


PATCHES = [(file, patch) for file in KUSTOMIZATIONS for patch in document(file).get("patches", [])]


@pytest.mark.parametrize(("file", "patch"), PATCHES, ids=[patch["path"] for _, patch in PATCHES])
def test_a_patch_has_a_place(file: Path, patch: dict[str, Any]) -> None:
    target = patch["target"]
    for one in _resources(file):
        if one["kind"] == target["kind"] and one["metadata"]["name"] == target.get("name", one["metadata"]["name"]):
            for operation in document(file.parent / patch["path"]):
                _check_place(one, operation)


def _check_place(resource: Any, operation: dict[str, Any]) -> None:
    """Raise KeyError or IndexError where an operation's path leads nowhere."""
    *way, last = operation["path"].split("/")[1:]
    place = resource
    for part in way:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if operation["op"] == "test":
        assert place[last] == operation["value"]


# --- pods ---------------------------------------------------------------------------------------------------


@each_deployment
def test_probes_ask_real_paths_on_the_port_that_is_served(file: Path) -> None:
    container = _container(file)
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"health": int(image_environment()["REAPER_HEALTH_PORT"])}
    assert {name: container[name]["httpGet"] for name in PATHS} == {
        name: {"path": path, "port": "health"} for name, path in PATHS.items()
    }
    assert container["readinessProbe"]["timeoutSeconds"] > 2  # it answers for itself after two


@each_deployment
def test_a_pod_may_do_nothing_but_its_work(file: Path) -> None:
    pod, container = _pod(file), _container(file)
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"] == {
        "runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    resources = container["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert "cpu" not in resources["limits"]


@each_deployment
def test_volumes_and_what_is_mounted_fit(file: Path) -> None:
    pod, container = _pod(file), _container(file)
    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert {one["name"] for one in pod["volumes"]} == set(mounted)
    files = {one["name"]: one["value"] for one in container["env"] if one["name"].endswith("_FILE")}
    assert all(Path(path).parent == Path(mounted["redis"]) for path in files.values())
    (generated,) = document(file.parent / "kustomization.yaml")["configMapGenerator"]
    (settings,) = [one["configMap"]["name"] for one in pod["volumes"] if "configMap" in one]
    assert settings == generated["name"]
    at = container["args"][container["args"].index("--config") + 1]
    assert at == f"{mounted['settings']}/{generated['files'][0]}"


@each_deployment
def test_what_selects_its_pods_finds_them(file: Path) -> None:
    whole = document(file)
    labels = whole["spec"]["template"]["metadata"]["labels"]
    selectors = [whole["spec"]["selector"]["matchLabels"]]
    selectors += [one["labelSelector"]["matchLabels"] for one in _pod(file)["topologySpreadConstraints"]]
    selectors.append(document(file.parent / "disruption-budget.yaml")["spec"]["selector"]["matchLabels"])
    policy = document(file.parent / "network-policy.yaml")["spec"]
    selectors.append(policy["podSelector"]["matchLabels"])
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == ["health"]
    assert document(file.parent / "service-account.yaml")["metadata"]["name"] == _pod(file)["serviceAccountName"]


def test_two_of_three_replicas_stay_whatever_is_planned() -> None:
    spec = document(BASE / "reaper/deployment.yaml")["spec"]
    budget = document(BASE / "reaper/disruption-budget.yaml")["spec"]
    assert (spec["replicas"], budget["minAvailable"]) == (3, 2)
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_ingestion_runs_once_at_a_time_and_as_closed_in_as_the_others() -> None:
    job = document(DEPLOY / "kubernetes/pipeline/cron-job.yaml")["spec"]
    pod = job["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    reaper = DEPLOYMENTS[0]
    assert job["concurrencyPolicy"] == "Forbid"
    assert pod["securityContext"] == _pod(reaper)["securityContext"]
    assert container["securityContext"] == _container(reaper)["securityContext"]
    assert (pod["enableServiceLinks"], pod["automountServiceAccountToken"]) == (False, False)
    claims = [one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if "persistentVolumeClaim" in one]
    assert claims == [document(DEPLOY / "kubernetes/pipeline/volume-claim.yaml")["metadata"]["name"]]
    assert {one["name"] for one in pod["volumes"]} == {one["name"] for one in container["volumeMounts"]}


def test_the_monitor_finds_pods_and_port() -> None:
    monitor = document(OVERLAYS / "monitoring/pod-monitor.yaml")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("health", "/metrics")
    for file in DEPLOYMENTS:
        (labels,) = document(file.parent / "kustomization.yaml")["labels"]
        assert labels["includeTemplates"]
        assert monitor["selector"]["matchLabels"] == labels["pairs"]


def test_no_secret_lies_here() -> None:
    kinds = {one["kind"] for file in DEPLOY.rglob("*.yaml") for one in documents(file) if "kind" in one}
    assert "Secret" not in kinds
    assert not list(DEPLOY.rglob("*-url"))
