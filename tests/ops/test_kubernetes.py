"""The files for Kubernetes fit its schemas, one another, and the product."""

from __future__ import annotations

import copy
import json
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from orchestrator.broker.redis_keys import Keys
from orchestrator.cli.main import app
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.settings.sources import known_paths, variable
from orchestrator.telemetry import metric_names
from tests.doors.clients.packages import wheel_from_pypi

REPOSITORY = Path(__file__).parent.parent.parent
FOLDER = REPOSITORY / "ops/kubernetes"
OTHERS = {"kustomize.config.k8s.io/v1beta1", "keda.sh/v1alpha1", "redis.redis.opstreelabs.in/v1beta2"}
"""Schemas of others than Kubernetes."""
OWN = ("worker", "upkeep", "gateway")


@cache
def documents() -> list[tuple[str, dict[str, Any]]]:
    return [
        (file.name, document)
        for file in sorted(FOLDER.glob("*.yaml"))
        for document in yaml.safe_load_all(file.read_text())
    ]


def named(kind: str, file: str) -> dict[str, Any]:
    (found,) = [one for name, one in documents() if one["kind"] == kind and name == file]
    return found


def pod(part: str) -> dict[str, Any]:
    spec: dict[str, Any] = named("Deployment", f"{part}.yaml")["spec"]["template"]["spec"]
    return spec


# --- The schemas of Kubernetes


@pytest.fixture(scope="module")
def schemas() -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(wheel_from_pypi("kubernetes-validate", "1.37.0")) as wheel:
        yield wheel


def _complaints(schemas: zipfile.ZipFile, document: dict[str, Any]) -> list[str]:
    folder = "kubernetes_validate/kubernetes-json-schema/v1.36.0-local-strict"
    group = document["apiVersion"].replace(".k8s.io", "").replace("/", "-")
    schema = schemas.read(f"{folder}/{document['kind'].lower()}-{group}.json")
    definitions = schemas.read(f"{folder}/_definitions.json")
    # As one document: the parts find one another without an address.
    whole = {**json.loads(schema), **json.loads(definitions)}
    whole = json.loads(json.dumps(whole).replace("/api/_definitions.json#/", "#/"))
    whole.pop("$id")
    return [error.message for error in jsonschema.Draft202012Validator(whole).iter_errors(document)]


def test_every_object_of_kubernetes_fits_its_schema(schemas: zipfile.ZipFile) -> None:
    own = [(file, document) for file, document in documents() if document["apiVersion"] not in OTHERS]
    assert len(own) >= 9
    for file, document in own:
        assert _complaints(schemas, document) == [], file


def test_a_misspelt_field_does_not_fit_the_schema(schemas: zipfile.ZipFile) -> None:
    text = json.dumps(named("Deployment", "worker.yaml"))
    assert _complaints(schemas, json.loads(text.replace("terminationGrace", "terminateGrace")))


# --- What the product says


def test_pods_get_only_variables_that_exist() -> None:
    text = "".join(file.read_text() for file in FOLDER.iterdir())
    known = {variable(path) for path in known_paths()}
    assert set(re.findall(r"\bDENDRO_[A-Z_]+\b", text)) <= known | {"DENDRO_HOME"}


def settings_of_pods(folder: Path = FOLDER) -> Iterator[tuple[str, str]]:
    for line in (folder / "settings.env").read_text().splitlines():
        if not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name, value


def test_workers_alone_are_where_pods_may_have_more_and_where_the_models_keys_are() -> None:
    levels = {
        one["metadata"]["name"]: one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for _, one in documents()
        if one["kind"] == "Namespace"
    }
    assert levels == {"dendro": "restricted", "dendro-workers": "privileged"}
    of_workers = {
        (one["kind"], one["metadata"]["name"]) for _, one in documents() if place(one) == "dendro-workers"
    }
    assert of_workers == {
        ("Deployment", "dendro-worker"),
        ("PodDisruptionBudget", "dendro-worker"),
        ("NetworkPolicy", "dendro-figures"),
        ("ScaledObject", "dendro-worker"),
        ("TriggerAuthentication", "dendro-redis"),
    }
    assert {place(one) for _, one in documents() if one["kind"] not in ("Namespace", "Kustomization")} == set(
        levels
    ), "each object says where it is"
    using = [part for part in OWN if "dendro-providers" in json.dumps(pod(part))]
    assert using == ["worker"]


def place(document: dict[str, Any]) -> str | None:
    namespace: str | None = document.get("metadata", {}).get("namespace")
    return namespace


@pytest.mark.parametrize("part", ["upkeep", "gateway"])
def test_pods_beside_workers_keep_to_the_restricted_profile(part: str) -> None:
    spec = pod(part)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    volumes = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert volumes <= {"emptyDir", "secret", "configMap", "persistentVolumeClaim", "projected", "csi"}


def test_pods_of_both_namespaces_find_redis_and_the_same_settings() -> None:
    generators = named("Kustomization", "kustomization.yaml")["configMapGenerator"]
    assert [(one["name"], one["namespace"], one["envs"]) for one in generators] == [
        ("dendro-settings", namespace, ["settings.env"]) for namespace in ("dendro", "dendro-workers")
    ]
    for part, host in (("gateway", "dendro-redis-sentinel"), ("worker", "dendro-redis-sentinel.dendro.svc")):
        (url,) = [
            one["value"] for one in pod(part)["containers"][0]["env"] if one["name"] == "DENDRO_REDIS_URL"
        ]
        assert f"@{host}:" in url
    (redis,) = [
        one
        for _, one in documents()
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "dendro-redis"
    ]
    (ingress,) = redis["spec"]["ingress"]
    assert {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "dendro-workers"}},
        "podSelector": {"matchLabels": {"app": "dendro", "part": "worker"}},
    } in ingress["from"]


def test_settings_of_the_pods_load(tmp_path: Path) -> None:
    environ = dict(settings_of_pods())
    (url,) = [
        one["value"] for one in pod("worker")["containers"][0]["env"] if one["name"] == "DENDRO_REDIS_URL"
    ]
    environ["DENDRO_REDIS_URL"] = url.replace("$(REDIS_PASSWORD)", "f00")
    settings = load_settings(SettingsSources(tmp_path, environ))
    assert settings.worker.pools == ("default",)
    ports = [port["containerPort"] for port in pod("worker")["containers"][0]["ports"]]
    assert ports == [settings.worker.metrics_port]


def test_a_pod_ends_later_than_the_drain_of_its_worker(tmp_path: Path) -> None:
    worker = load_settings(SettingsSources(tmp_path, {})).worker
    grace = pod("worker")["terminationGracePeriodSeconds"]
    assert grace >= worker.drain_grace_s + worker.lease_s + 30


@pytest.mark.parametrize("part", OWN)
def test_commands_in_a_pod_find_no_right_of_the_cluster(part: str) -> None:
    spec = pod(part)
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_redis_of_the_cluster_is_set_as_the_configuration_file_says() -> None:
    wanted = _directives((REPOSITORY / "ops/redis.conf").read_text())
    found = _directives(named("ConfigMap", "redis.yaml")["data"]["redis-additional.conf"])
    of_the_host = {"bind", "port", "protected-mode", "tcp-keepalive", "aof-load-truncated"}
    assert {key: found.get(key) for key in wanted if key not in of_the_host} == {
        key: value for key, value in wanted.items() if key not in of_the_host
    }
    assert found["min-replicas-to-write"] == "1", "a primary without replicas refuses writes"


def _directives(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition(" ") for line in lines)}


def test_a_workers_pod_lets_bubblewrap_mount_and_is_nobody_on_its_node() -> None:
    spec = pod("worker")
    (worker,) = spec["containers"]
    assert (spec["hostUsers"], worker["securityContext"]["procMount"]) == (False, "Unmasked")
    for part in OWN[1:]:
        assert pod(part)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("part", ["worker", "gateway"])
def test_a_node_can_be_emptied_and_leaves_others_of_the_part(part: str) -> None:
    budget = named("PodDisruptionBudget", f"{part}.yaml")["spec"]
    labels = named("Deployment", f"{part}.yaml")["spec"]["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    assert budget["maxUnavailable"] in (1, "25%")
    assert "minAvailable" not in budget, "with one worker its node could not be emptied"


def test_operator_makes_the_image_that_pods_run_and_the_first_token() -> None:
    page = (REPOSITORY / "docs/operations.md").read_text()
    (image,) = named("Kustomization", "kustomization.yaml")["images"]
    built = f"{image['newName']}:{image['newTag']}"
    assert f"-t {built} ." in page
    assert f"docker push {built}" in page
    assert {container["image"] for part in OWN for container in pod(part)["containers"]} == {image["name"]}
    gateway = named("Deployment", "gateway.yaml")["metadata"]["name"]
    (words,) = re.findall(rf"exec deploy/{gateway} -- dendro (token new .*?) >", page)
    with pytest.raises(SystemExit) as ended:
        app([*words.split(), "--help"], prog_name="dendro")
    assert ended.value.code == 0


# --- The overlay for a trial

TRIAL = REPOSITORY / "ops/kubernetes-trial"


def of_trial() -> list[dict[str, Any]]:
    """The objects of the overlay, as kustomize makes them but for what is generated."""
    overlay = yaml.safe_load((TRIAL / "kustomization.yaml").read_text())
    used = named("Kustomization", "kustomization.yaml")["resources"]
    objects = [copy.deepcopy(one) for file, one in documents() if file in used]
    for patch in overlay["patches"]:
        wanted = patch["target"]
        (target,) = [
            one
            for one in objects
            if (one["kind"], one["metadata"]["name"]) == (wanted["kind"], wanted["name"])
        ]
        change = yaml.safe_load(patch["patch"])
        if isinstance(change, dict):
            assert change.pop("$patch") == "delete"
            assert change["apiVersion"] == target["apiVersion"]
            assert change["metadata"]["namespace"] == target["metadata"]["namespace"]
            objects.remove(target)
        for step in change if isinstance(change, list) else ():
            _apply(target, step)
    return [*objects, *yaml.safe_load_all((TRIAL / "redis.yaml").read_text())]


def _apply(target: Any, step: dict[str, Any]) -> None:
    *way, last = step["path"].removeprefix("/").split("/")
    for part in way:
        target = target[int(part) if isinstance(target, list) else part]
    assert (last in target) == (step["op"] == "replace"), step
    target[last] = step["value"]


def test_every_object_of_the_trial_fits_its_schema_and_none_needs_the_operator(
    schemas: zipfile.ZipFile,
) -> None:
    for document in of_trial():
        assert document["apiVersion"] not in OTHERS
        assert _complaints(schemas, document) == [], document["metadata"]["name"]


def test_pods_of_the_trial_find_its_redis_with_settings_that_need_no_replica(tmp_path: Path) -> None:
    objects = of_trial()
    (service,) = [
        one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Service", "dendro-redis")
    ]
    (server,) = [
        one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Deployment", "dendro-redis")
    ]
    assert service["spec"]["selector"].items() <= server["spec"]["template"]["metadata"]["labels"].items()
    of_dendro = [one for one in objects if one["kind"] == "Deployment" and one is not server]
    assert {one["metadata"]["name"] for one in of_dendro} == {"dendro-worker", "dendro-gateway"}
    environ = dict(settings_of_pods()) | dict(settings_of_pods(TRIAL))
    for deployment in of_dendro:
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        (url,) = [one["value"] for one in container["env"] if one["name"] == "DENDRO_REDIS_URL"]
        assert url.endswith(("@dendro-redis:6379/0", "@dendro-redis.dendro.svc:6379/0"))
        assert [
            one["secretRef"]["name"]
            for one in container["envFrom"]
            if one.get("secretRef", {}).get("optional")
        ] == ["dendro-store"]
        at = {"DENDRO_REDIS_URL": url.replace("$(REDIS_PASSWORD)", "f00")}
        settings = load_settings(SettingsSources(tmp_path, environ | at))
        assert settings.redis.effects == "none"
    overlay = yaml.safe_load((TRIAL / "kustomization.yaml").read_text())
    assert [(one["namespace"], one["behavior"]) for one in overlay["configMapGenerator"]] == [
        ("dendro", "merge"),
        ("dendro-workers", "merge"),
    ]


# --- Autoscalers


@pytest.mark.parametrize("file", ["autoscaler-metrics.yaml", "autoscaler-redis.yaml"])
def test_an_autoscaler_sums_all_of_its_triggers_for_the_workers(file: str, tmp_path: Path) -> None:
    spec = named("ScaledObject", file)["spec"]
    modifiers = spec["advanced"]["scalingModifiers"]
    assert modifiers["formula"].split(" + ") == [one["name"] for one in spec["triggers"]]
    concurrency = load_settings(SettingsSources(tmp_path, {})).worker.concurrency
    assert modifiers["target"] == str(concurrency)
    worker = named("Deployment", "worker.yaml")
    assert spec["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    assert "replicas" not in worker["spec"], "an apply would undo the autoscaler"


def test_the_autoscaler_reads_figures_that_the_gateway_has() -> None:
    triggers = named("ScaledObject", "autoscaler-metrics.yaml")["spec"]["triggers"]
    asked = [one["metadata"]["valueLocation"] for one in triggers]
    assert asked == [
        f'{one.sample}{{pool="default"}}' for one in (metric_names.QUEUE_DEPTH, metric_names.LEASED)
    ]
    (port,) = {re.sub(r".*:(\d+)/metrics", r"\1", one["metadata"]["url"]) for one in triggers}
    assert int(port) in [one["port"] for one in named("Service", "gateway.yaml")["spec"]["ports"]]


def test_the_autoscaler_reads_every_set_of_the_pool_in_redis(tmp_path: Path) -> None:
    settings = load_settings(SettingsSources(tmp_path, {})).redis
    keys = Keys(settings.prefix, settings.shards)
    triggers = named("ScaledObject", "autoscaler-redis.yaml")["spec"]["triggers"]
    assert [one["metadata"]["listName"] for one in triggers] == [
        keys.of_shard(shard, f"{kind}:default") for kind in ("due", "leases") for shard in range(keys.shards)
    ]
    sentinel = [one for _, one in documents() if one["kind"] == "RedisSentinel"]
    for one in triggers:
        assert (
            one["metadata"]["sentinelMaster"] == sentinel[0]["spec"]["redisSentinelConfig"]["masterGroupName"]
        )
