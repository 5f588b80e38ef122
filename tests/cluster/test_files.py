"""Every file of cluster/ is valid by the rules of the program that reads it, and holds what README.md promises."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
import yaml

CLUSTER = Path(__file__).parents[2] / "cluster"
CRDS = CLUSTER.resolve().parents[1] / "shared" / "kuberay"
MANIFESTS = ["kuberay/raycluster.yaml", "kuberay/rayjob.yaml", "kuberay/network-policy.yaml"]
CONFIGS = ["aws.yaml", "gcp.yaml"]


def load(name):
    return [each for each in yaml.safe_load_all((CLUSTER / name).read_text()) if each is not None]


def cluster_spec():
    """Return the spec of the RayCluster."""
    (manifest,) = load("kuberay/raycluster.yaml")
    return manifest["spec"]


@pytest.mark.parametrize("name", [*MANIFESTS, *CONFIGS])
def test_is_yaml_without_repeated_keys(name):
    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            keys = [key.value for key, _ in node.value]
            assert len(set(keys)) == len(keys), f"a key comes twice in {keys}"
            return super().construct_mapping(node, deep)

    assert list(yaml.load_all((CLUSTER / name).read_text(), Strict))


# Ray's cluster launcher -----------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_ray_accepts_the_configuration(name):
    from ray.autoscaler._private.util import prepare_config, validate_config

    (config,) = load(name)
    prepared = prepare_config(config)
    validate_config(prepared)
    assert set(prepared["available_node_types"]) == {"head", "reader", "trainer"}


@pytest.mark.parametrize("name", CONFIGS)
def test_clouds_open_nothing(name):
    (config,) = load(name)
    assert config["provider"]["use_internal_ips"] is True
    assert config["available_node_types"]["head"]["resources"] == {"CPU": 0}
    for role in ("reader", "trainer"):
        assert config["available_node_types"][role]["labels"] == {"role": role}
    starts = [
        line for line in config["head_start_ray_commands"] + config["worker_start_ray_commands"] if "start" in line
    ]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in line and "RAY_AUTH_TOKEN_PATH=" in line for line in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert any(line.startswith("chmod 600") for line in config["setup_commands"])


# KubeRay --------------------------------------------------------------------------------------


def closed(schema):
    """Return a CRD's schema as a JSON schema that knows no other fields."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {name: closed(each) for name, each in value.items()}
        elif key in {"items", "additionalProperties", "anyOf", "allOf", "oneOf", "not"}:
            result[key] = closed(value)
        elif key not in {"format", "default", "description"} and not key.startswith("x-"):
            result[key] = value
    open_ended = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("x-kubernetes-int-or-string"):
        result["type"] = ["integer", "string"]
    elif "properties" in schema and not open_ended:
        result["additionalProperties"] = False
    return result


def crd_schema(kind):
    path = CRDS / f"ray.io_{kind.lower()}s.yaml"
    if not path.exists():
        pytest.skip(f"no {path}: the schemas of KubeRay are not here")
    versions = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]["versions"]
    return next(each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == "v1")


@pytest.mark.parametrize("name", MANIFESTS[:2])
def test_kuberay_accepts_the_manifest(name):
    (manifest,) = load(name)
    schema = closed(crd_schema(manifest["kind"]))
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(manifest)
    manifest["spec"]["nonsense"] = 1
    with pytest.raises(jsonschema.ValidationError, match="nonsense"):
        jsonschema.Draft7Validator(schema).validate(manifest)


def test_the_job_runs_on_the_cluster():
    (cluster,), (job,) = load("kuberay/raycluster.yaml"), load("kuberay/rayjob.yaml")
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    assert "rayClusterSpec" not in job["spec"]  # its sizes stand once
    images = {container["image"] for pod in pods(cluster) + pods(job) for container in pod["containers"]}
    assert len(images) == 1


def pods(manifest):
    """Return all pod templates in a manifest, wherever they are."""
    if isinstance(manifest, dict):
        here = [manifest] if "containers" in manifest else []
        return here + [pod for each in manifest.values() for pod in pods(each)]
    return [pod for each in manifest for pod in pods(each)] if isinstance(manifest, list) else []


@pytest.mark.parametrize(("name", "count"), [("kuberay/raycluster.yaml", 3), ("kuberay/rayjob.yaml", 1)])
def test_every_container_is_confined(name, count):
    (manifest,) = load(name)
    found = pods(manifest)
    assert len(found) == count
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert all("hostPath" not in volume for volume in pod.get("volumes", []))
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            confined(container)
            assert re.search(r"@sha256:[0-9a-f]{64}$", container["image"])
    confined(cluster_spec()["autoscalerOptions"])


def confined(container):
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not context.get("privileged")
    assert {"cpu", "memory"} <= set(container["resources"]["limits"])
    for mount in container.get("volumeMounts", []):
        assert mount.get("readOnly", False) == (mount["name"] == "data")


def test_nobody_gets_in_without_the_token():
    spec = cluster_spec()
    assert spec["authOptions"] == {"mode": "token", "secretName": "ray-h5-token"}
    assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert spec["headGroupSpec"]["enableIngress"] is False
    text = "".join((CLUSTER / name).read_text() for name in MANIFESTS)
    assert not re.search(r"LoadBalancer|NodePort|kind: Ingress|kind: Secret", text)


def test_readers_and_trainers_scale_apart():
    spec = cluster_spec()
    assert spec["enableInTreeAutoscaling"] is True
    groups = {each["groupName"]: each for each in spec["workerGroupSpecs"]}
    for name, role in {"readers": "reader", "trainers": "trainer"}.items():
        assert groups[name]["labels"] == {"role": role}
        assert groups[name]["minReplicas"] < groups[name]["maxReplicas"]
        (container,) = groups[name]["template"]["spec"]["containers"]
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (role == "trainer")


def test_the_policy_covers_the_pods_and_opens_no_more_than_it_says():
    policies = load("kuberay/network-policy.yaml")
    label = policies[0]["spec"]["podSelector"]["matchLabels"].items()
    spec = cluster_spec()
    templates = [each["template"] for each in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    templates += [job["spec"]["submitterPodTemplate"] for job in load("kuberay/rayjob.yaml")]
    assert all(label <= template["metadata"]["labels"].items() for template in templates)
    assert policies[0]["spec"]["policyTypes"] == ["Ingress", "Egress"]
    for policy in policies:
        for rule in policy["spec"].get("ingress", []):
            assert rule["from"], "an empty rule lets everybody in"
        for rule in policy["spec"].get("egress", []):
            assert rule["to"], "an empty rule lets them out to everywhere"
            assert all(peer.get("ipBlock", {}).get("cidr") != "0.0.0.0/0" for peer in rule["to"])


# The rest -------------------------------------------------------------------------------------


def test_the_image_is_pinned_and_runs_as_nobody_in_particular():
    lines = (CLUSTER / "Dockerfile").read_text().splitlines()
    (base,) = [line for line in lines if line.startswith("ARG BASE=")]
    assert re.search(r"@sha256:[0-9a-f]{64}$", base)
    assert all(line.split()[1] == "${BASE}" for line in lines if line.startswith("FROM"))
    users = [line for line in lines if line.startswith("USER")]
    assert users == ["USER 1000:1000"]
    assert not [line for line in lines[lines.index(users[0]) :] if line.startswith(("RUN", "COPY", "ADD"))]


def test_shellcheck_finds_nothing():
    shellcheck = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))
    found = subprocess.run([shellcheck, CLUSTER / "slurm.sbatch"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


FAKES = {
    "scontrol": "echo here",
    "ray": "exec sleep 60",
    # The command without the options of srun.
    "srun": 'while [[ $1 == --* ]]; do shift; done; [[ $1 == hostname ]] && echo 127.0.0.1 || exec "$@"',
    # Nodes are waited for by a program on the standard input: they are there.
    "python": f'[[ $1 == - ]] && exit 0; exec {sys.executable} "$@"',
}
PROGRAM = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def end(*_):
    (folder / "ended").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
(folder / "begun").touch()
time.sleep(float(sys.argv[2]))
sys.exit(5)
"""


@pytest.fixture
def batch(tmp_path):
    """Run the batch script on a node with a Slurm that is none."""
    for name, text in FAKES.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "here", "SLURM_JOB_NUM_NODES": "1"}
    environment |= {"SLURM_CPUS_PER_TASK": "1", "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def run(seconds):
        words = ["bash", str(CLUSTER / "slurm.sbatch"), str(tmp_path / "program.py"), str(tmp_path), str(seconds)]
        return subprocess.Popen(words, env={**os.environ, **environment}, start_new_session=True)

    return run


def test_slurm_ends_the_program_when_the_time_is_nearly_over(batch, tmp_path):
    child = batch(30)
    deadline = time.monotonic() + 20
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.terminate()  # as --signal=B:TERM@60 does: the script alone
    try:
        assert child.wait(15) == 143
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    assert (tmp_path / "ended").exists()
    assert not list(tmp_path.glob(".ray_h5_job_*"))


def test_slurm_ends_with_the_status_of_the_program(batch, tmp_path):
    assert batch(0).wait(20) == 5
    assert not (tmp_path / "ended").exists()
    assert not list(tmp_path.glob(".ray_h5_job_*"))


def test_slurm_keeps_the_token_private():
    text = (CLUSTER / "slurm.sbatch").read_text()
    assert text.index("umask 077") < text.index("secrets.token_hex")
    assert "RAY_AUTH_MODE=token" in text
    assert "--include-dashboard=false" in text
    code = [line for line in text.splitlines() if not line.startswith("#")]
    assert not [line for line in code if "ray stop" in line]


@pytest.mark.parametrize("name", ["README.md", *MANIFESTS, *CONFIGS, "Dockerfile", "slurm.sbatch"])
def test_no_secret_is_in_a_file(name):
    text = (CLUSTER / name).read_text()
    assert not re.search(r"AKIA[0-9A-Z]{16}|BEGIN [A-Z ]*PRIVATE KEY|auth_token: \S", text)
    assert not [found for found in re.findall(r"\b[0-9a-f]{32,}\b", text) if set(found) != {"0"}]
