"""deploy/: valid for the systems that take it, and what they set in each task's environment gives it its role."""

import json
import re
import signal
import subprocess
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from distsgd.algorithms import SCHEMES
from distsgd.common.cli.flag_groups import find_cluster, parse_flags
from distsgd.common.cluster.discovery import from_slurm
from distsgd.common.errors import KINDS, DistsgdError

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
KUBERNETES = "1.33"


def objects(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def of_kind(kind):
    return next(item for item in objects("kubernetes.yaml") if item["kind"] == kind)


def role(arguments):
    """The task that a container with these arguments is."""
    algorithm, *flags = arguments
    return find_cluster(parse_flags(SCHEMES[algorithm], flags)[1]).task


def arguments(template, environment):
    """The arguments of the container with $(NAME) replaced, as Kubernetes does it."""
    container = template["spec"]["containers"][0]
    return [re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], text) for text in container["args"]]


@pytest.mark.parametrize("item", objects("kubernetes.yaml"), ids=lambda item: item["kind"])
def test_the_kubernetes_objects_are_valid(item):
    kubernetes_validate.validate(item, KUBERNETES, strict=True)


def test_every_pod_of_the_kubernetes_objects_finds_its_role_and_its_name():
    hosts = of_kind("ConfigMap")["data"]
    service = of_kind("Service")["metadata"]["name"]
    ps, worker = of_kind("StatefulSet"), of_kind("Job")
    found = []
    for item, count in ((ps, ps["spec"]["replicas"]), (worker, worker["spec"]["completions"])):
        for index in range(count):
            task = role(arguments(item["spec"]["template"], {**hosts, "TASK_INDEX": str(index)}))
            found.append(str(task))
            # a pod's name in the headless service is its own name in the service's domain
            assert task.addresses.of(task.job, index) == f"{item['metadata']['name']}-{index}.{service}:2222"
    assert found == ["ps-0", "worker-0", "worker-1", "worker-2"]
    assert ps["spec"]["serviceName"] == worker["spec"]["template"]["spec"]["subdomain"] == service
    assert worker["spec"]["parallelism"] == worker["spec"]["completions"]
    indices = [item["spec"]["template"]["spec"]["containers"][0]["env"][0] for item in (ps, worker)]
    assert [env["valueFrom"]["fieldRef"]["fieldPath"] for env in indices] == [
        "metadata.labels['apps.kubernetes.io/pod-index']",
        "metadata.annotations['batch.kubernetes.io/job-completion-index']",
    ]


def printed(run_main, *words):
    code, out, _ = run_main("deploy", *words)
    assert code == 0
    return out


def test_deploy_prints_the_objects_of_the_folder_and_those_of_other_numbers_and_algorithms(run_main):
    assert list(yaml.safe_load_all(printed(run_main, "kubernetes"))) == objects("kubernetes.yaml")
    text = printed(run_main, "kubernetes", "--workers", "5", "--algorithm", "ddp", "--image", "true")
    found = {item["kind"]: item for item in yaml.safe_load_all(text)}
    assert "StatefulSet" not in found
    hosts = found["ConfigMap"]["data"]
    for item in found.values():
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
    tasks = [role(arguments(found["Job"]["spec"]["template"], hosts | {"TASK_INDEX": str(k)})) for k in range(5)]
    assert [str(task) for task in tasks] == [f"worker-{k}" for k in range(5)]
    assert len(tasks[0].addresses.worker) == found["Job"]["spec"]["completions"] == 5
    assert found["Job"]["spec"]["template"]["spec"]["containers"][0]["image"] == "true"


def test_deploy_starts_a_script_with_its_packages(run_main, tmp_path):
    script = tmp_path / "my_train.py"
    script.write_text("import distsgd\n")
    listed = tmp_path / "requirements.txt"
    listed.write_text("torch\n-r more.txt\n")
    text = printed(run_main, "kubernetes", "--workers", "4", "--ps", "2", "--script", str(script))
    assert "#   COPY . /work\n#   RUN pip install --no-cache-dir -r /work/requirements.txt\n" in text
    batch = printed(run_main, "slurm", "--ps", "0", "--script", str(script))  # launch has one by default
    assert f"bash run.sh pip install -r {listed}\n" in batch
    assert f'launch --ps 0 --cluster slurm --run-dir "runs/slurm-$SLURM_JOB_ID" {script} "$@"' in batch
    for item in yaml.safe_load_all(text):
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
        if item["kind"] in ("StatefulSet", "Job"):
            (container,) = item["spec"]["template"]["spec"]["containers"]
            assert container["image"] == "distsgd-my-train"
            assert (container["args"][0], container["args"][-1]) == ("launch", "/work/my_train.py")
            assert item["spec"].get("replicas", item["spec"].get("completions")) in (2, 4)
    batch = printed(run_main, "slurm", "--workers", "4", "--ps", "2", "--script", str(script), "--packages", "jax")
    assert "#SBATCH --ntasks=6\n" in batch
    assert "bash run.sh pip install jax\n" in batch
    assert f'bash run.sh launch --ps 2 --cluster slurm --run-dir "runs/slurm-$SLURM_JOB_ID" {script} "$@"' in batch
    subprocess.run(["bash", "-n"], input=batch, text=True, check=True, timeout=60)
    lines = printed(run_main, "hosts", "--workers", "2", "--hosts", "h0,h1", "--script", str(script)).splitlines()
    assert lines[1::2] == ["# ps 0, on h0", "# worker 0, on h1", "# worker 1, on h0"]
    assert all("--ps_hosts=h0:2222 --worker_hosts=h1:2222,h0:2223" in line for line in lines[2::2])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["foo"], "system must be one of kubernetes, slurm, hosts. Received: 'foo'"),
        (["slurm", "--algorithm", "serial"], "serial is one process: it needs no other machines"),
        (["slurm", "--script", "absent.py"], "there is no script of this name. Received: absent.py"),
        (["hosts"], "deploy hosts needs the machines: --hosts h0,h1,h2"),
        (["kubernetes", "--hosts", "a"], "--hosts is for deploy hosts alone, as kubernetes chooses the machines"),
        (["kubernetes", "--workers", "0"], "workers must be"),
        (["slurm", "--ps", "0"], "ps must be at least 1. Received: ps=0"),
    ],
)
def test_deploy_refuses_what_it_cannot_print(words, message, run_main):
    code, out, error = run_main("deploy", *words)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert message in error


def test_a_killed_pod_is_restarted_and_a_failed_run_is_not():
    ours = {kind.exit_code for kind in (DistsgdError, *KINDS.values())}
    killed = {128 + signal.SIGKILL, 128 + signal.SIGTERM}
    _, fail = of_kind("Job")["spec"]["podFailurePolicy"]["rules"]
    assert (fail["action"], fail["onExitCodes"]["operator"]) == ("FailJob", "NotIn")
    again = set(fail["onExitCodes"]["values"])
    assert again == killed
    assert again.isdisjoint(ours)
    for spec in objects("tfjob.yaml")[0]["spec"]["tfReplicaSpecs"].values():
        assert spec["restartPolicy"] == "ExitCode"  # the operator's border between the two is 128
    assert max(ours) < 128 <= min(killed)
    for kind in ("StatefulSet", "Job"):
        assert "--max-restarts=10" in of_kind(kind)["spec"]["template"]["spec"]["containers"][0]["args"]


def pods():
    """The pod of every kind of task."""
    yield from (of_kind(kind)["spec"]["template"]["spec"] for kind in ("StatefulSet", "Job"))
    yield from (spec["template"]["spec"] for spec in objects("tfjob.yaml")[0]["spec"]["tfReplicaSpecs"].values())


def in_bytes(quantity):
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", quantity).groups()
    return int(number) * 1024 ** ("Ki", "Mi", "Gi").index(unit) * 1024


def test_no_pod_can_fill_the_memory_or_the_disk_of_its_node():
    for pod in pods():
        (container,) = pod["containers"]
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        for name in ("memory", "ephemeral-storage"):
            assert 0 < in_bytes(requests[name]) <= in_bytes(limits[name])
        # what is written lies in the volumes, the root is read-only: a volume that is full is named before the pod is
        volumes = [in_bytes(volume["emptyDir"]["sizeLimit"]) for volume in pod["volumes"]]
        assert len(volumes) == 2
        assert sum(volumes) <= in_bytes(limits["ephemeral-storage"])


def test_the_network_policy_admits_only_the_tasks():
    policy = of_kind("NetworkPolicy")["spec"]
    tasks = {"app": "distsgd"}
    assert policy["podSelector"]["matchLabels"] == tasks
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": tasks}}], "ports": [{"port": 2222}]}]
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    templates = [of_kind(kind)["spec"]["template"] for kind in ("StatefulSet", "Job")]
    templates += [spec["template"] for spec in objects("tfjob.yaml")[0]["spec"]["tfReplicaSpecs"].values()]
    for template in templates:
        assert tasks.items() <= template["metadata"]["labels"].items()
        assert template["spec"]["automountServiceAccountToken"] is False
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        security = template["spec"]["containers"][0]["securityContext"]
        assert security["capabilities"]["drop"] == ["ALL"]
        assert security["readOnlyRootFilesystem"]


def test_every_pod_of_the_tfjob_finds_its_role_in_its_tf_config(monkeypatch):
    (job,) = objects("tfjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    replicas = job["spec"]["tfReplicaSpecs"]
    assert replicas.keys() <= {"Chief", "PS", "Worker", "Evaluator"}
    cluster = {
        name.lower(): [f"distsgd-{name.lower()}-{i}.default.svc:2222" for i in range(spec["replicas"])]
        for name, spec in replicas.items()
    }
    found = []
    for name, spec in replicas.items():
        assert spec["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
        container = spec["template"]["spec"]["containers"][0]
        assert container["name"] == "tensorflow"
        assert container["ports"] == [{"name": "tfjob-port", "containerPort": 2222}]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec["template"]["spec"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
        for index in range(spec["replicas"]):
            task = {"type": name.lower(), "index": index}
            monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task, "environment": "cloud"}))
            task = role(container["args"])
            found.append((str(task), task.addresses.of(task.job, task.index)))
    assert sorted(found) == [
        ("ps-0", "distsgd-ps-0.default.svc:2222"),
        ("worker-0", "distsgd-chief-0.default.svc:2222"),
        ("worker-1", "distsgd-worker-0.default.svc:2222"),
        ("worker-2", "distsgd-worker-1.default.svc:2222"),
    ]


def test_the_slurm_file_starts_every_task_with_its_role(tmp_path):
    """`srun` is a double that starts the tasks one after the other, with the environment of each, as Slurm would."""
    script = (DEPLOY / "slurm.sh").read_text()
    tasks = int(re.search(r"^#SBATCH --ntasks=(\d+)$", script, re.M)[1])
    srun, program = tmp_path / "srun", tmp_path / "run.sh"
    srun.write_text(
        "#!/bin/bash\n"
        'while [[ "$1" == --* ]]; do [[ "$1" == --distribution=block ]] && block=1; shift; done\n'
        f'[ "$block" ] && for rank in $(seq 0 {tasks - 1}); do\n'
        'SLURM_PROCID=$rank SLURM_NODEID=$((rank / 2)) "$@"; done\n'
    )
    srun.chmod(0o755)
    program.write_text("env | grep ^SLURM_ | tr '\\n' ' '; echo ARGS $*\n")
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_NTASKS": str(tasks),
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_TASKS_PER_NODE": "2(x2)",
    }
    command = ["bash", str(DEPLOY / "slurm.sh"), "downpour", "--epochs", "3"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    found = []
    for line in done.stdout.splitlines():
        variables, _, words = line.partition("ARGS ")
        assert words == "downpour --epochs 3 --cluster slurm --run-dir runs/slurm-77"
        found.append(from_slurm(1, dict(item.split("=", 1) for item in variables.split())))
    assert [str(task) for task in found] == ["ps-0", "worker-0", "worker-1", "worker-2"]
    assert len({task.addresses for task in found}) == 1
    assert subprocess.run(["bash", "-n", str(DEPLOY / "slurm.sh")], check=False).returncode == 0


def test_the_dockerfile_copies_existing_files_and_starts_the_command():
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    instructions = [line.split(" ", 1) for line in lines]
    assert {name for name, _ in instructions} <= {
        "FROM", "WORKDIR", "COPY", "ARG", "RUN", "USER", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD",
    }  # fmt: skip
    copied = [source for name, text in instructions if name == "COPY" for source in text.split()[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {Path(folder).parts[0] for folder in project["tool"]["setuptools"]["package-dir"].values()}
    needed = {"pyproject.toml", "constraints.txt", project["project"]["readme"], *project["project"]["license-files"]}
    assert set(copied) == folders | needed
    starts = dict(instructions)
    assert json.loads(starts["ENTRYPOINT"])[0] in project["project"]["scripts"]
    assert starts["USER"] == "10001:10001"
    python = re.fullmatch(r"python:(3\.\d+)-slim", starts["FROM"])[1]
    assert python in ("3.11", "3.12", "3.13")
