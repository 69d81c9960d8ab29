"""A real Slurm: controller, three nodes, their network; what it starts finds its roles, trains, and ends well."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import slurm as own
from machines import Network
from runs import wait_until

pytestmark = pytest.mark.gate
ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 150  # seconds, on a busy machine: the end of the jobs after it is within the limit of a test, too
FOREVER = ["--epochs", "1000000"]
ADDRESSES = """
import json
from distsgd.common.cluster.discovery import from_slurm
print(json.dumps(from_slurm(1).addresses.as_dict()))
"""
SCRIPT = """
import distsgd, numpy as np
w = np.ones(3, np.float32)
with distsgd.join(distsgd.SyncSGD(learning_rate=0.1), w) as worker:
    for step in range(20):
        worker.step(w - worker.index)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if reason := own.missing():
        pytest.skip(reason)
    network = Network(1 + len(own.NODES), own_user=False)
    if not network.real:
        pytest.skip(f"this machine allows no network of its own: {network.refusal}")
    try:
        with own.Slurm(tmp_path_factory.mktemp("slurm"), network) as slurm:
            yield slurm
    finally:
        network.close()


@pytest.fixture
def start(slurm, tmp_path, request):
    """Starts commands beside the controller, their output into a file of that name; none is left after the test."""
    running = []
    failures = request.session.testsfailed

    def start(name, *words):
        with (tmp_path / name).open("w") as output:
            running.append(subprocess.Popen(slurm.command(*words), cwd=ROOT, stdout=output, stderr=output))
        return running[-1]

    yield start
    if request.session.testsfailed > failures:
        logs = [log.read_text(errors="replace")[-5000:] for log in tmp_path.glob("*.log")]
        sys.stderr.write("\n".join([slurm.ask("squeue"), slurm.ask("sinfo"), slurm.logs(), *logs]))
    slurm.ask("scancel", "--user=root")
    for process in running:
        process.wait(PATIENCE)
    slurm.wait_for_nodes()


def train(run_dir, *options):
    return ["bash", "run.sh", "downpour", "--cluster", "slurm", "--run-dir", str(run_dir), *options]


def result(run_dir):
    return json.loads((run_dir / "result.json").read_text())


def trains(run_dir):
    metrics = run_dir / "metrics.jsonl"
    return metrics.exists() and '"worker"' in metrics.read_text()


def wait_for(condition):
    wait_until(condition, seconds=PATIENCE)


@pytest.mark.rotating
def test_two_jobs_on_the_same_nodes_train_with_the_readmes_command(slurm, start, tmp_path):
    """They have two nodes in common; the other one has no ps."""
    command = re.search(r"`srun -N3 (bash run.sh .*?)`", (ROOT / "docs" / "several-machines.md").read_text())[1]
    options = ["--epochs", "2", "--run-dir"]
    wide = start("wide", "srun", "-N3", *command.split(), *options, tmp_path / "1")
    narrow = start(
        "narrow", "srun", "-N2", *command.replace("downpour", "all_reduce").split(), *options, tmp_path / "2"
    )
    assert (wide.wait(PATIENCE), narrow.wait(PATIENCE)) == (0, 0)
    for number, algorithm in (("1", "downpour"), ("2", "all_reduce")):
        found = result(tmp_path / number)
        assert (found["algorithm"], found["outcome"], found["workers"]) == (algorithm, "completed", 2)
        assert found["steps"] > 0
    roles = ", step 0: task 0 on n1 is ps 0; tasks 1 to 2 on n2 to n3 are workers 0 to 1.\n"
    assert roles in (tmp_path / "wide").read_text()
    assert ", step 0: tasks 0 to 1 on n1 to n2 are workers 0 to 1.\n" in (tmp_path / "narrow").read_text()


@pytest.mark.rotating
def test_a_script_finds_its_roles(slurm, start, tmp_path):
    script, run_dir = tmp_path / "script.py", tmp_path / "run"
    script.write_text(SCRIPT)
    launch = ["bash", "run.sh", "launch", "--cluster", "slurm", "--run-dir", run_dir, script]
    assert start("output", "srun", "-N3", *launch).wait(PATIENCE) == 0
    found = result(run_dir)
    assert (found["algorithm"], found["outcome"], found["workers"], found["steps"]) == ("sync_sgd", "completed", 2, 40)
    with np.load(run_dir / "center.npz") as saved:
        np.testing.assert_allclose(saved["center"], np.full(3, 0.5 + 0.5 * 0.9**20), rtol=1e-5)


def test_tasks_of_a_step_agree_on_ports_of_their_own(slurm):
    step = f"srun --exact -N2 -n4 -c1 --distribution=block {sys.executable} -c '{ADDRESSES}' &"
    jobs = [slurm.ask("salloc", "-N2", "-n8", "bash", "-c", f"{step} {step} wait").splitlines() for _ in range(2)]
    places = [json.loads(line) for lines in jobs for line in lines if line.startswith("{")]
    assert len(places) == 2 * 2 * 4
    steps = {json.dumps(place): {*place["ps"], *place["worker"]} for place in places}
    assert len(steps) == 2 * 2
    assert len(set.union(*steps.values())) == 2 * 2 * 4


@pytest.mark.rotating
def test_a_cancelled_job_ends_as_interrupted_and_leaves_no_process(slurm, start, tmp_path):
    run_dir = tmp_path / "run"
    srun = start("output", "srun", "-N2", "--nodelist=n1,n2", *train(run_dir), *FOREVER)
    wait_for(lambda: trains(run_dir))
    assert slurm.programs("n1")
    slurm.ask("scancel", "--user=root")
    assert srun.wait(PATIENCE) == 143
    found = result(run_dir)
    assert (found["outcome"], found["exit_code"]) == ("interrupted", 143)
    slurm.wait_for_nodes()
    assert [slurm.programs(node) for node in own.NODES] == [[], [], []]


@pytest.mark.rotating
def test_a_node_that_dies_ends_the_run_with_the_name_of_its_task(slurm, start, tmp_path):
    run_dir = tmp_path / "run"
    srun = start("output", "srun", "-N3", *train(run_dir), *FOREVER)
    wait_for(lambda: trains(run_dir))
    slurm.crash("n1")
    try:
        wait_for((run_dir / "result.json").exists)
        found = result(run_dir)
        assert (found["outcome"], found["exit_code"]) == ("lost", 4)
        assert re.search(r"worker \d at n[23]:\d+ lost ps 0 at n1:\d+$", found["message"])
        wait_for(lambda: not slurm.programs("n2") and not slurm.programs("n3"))
        slurm.miss("n1")
        assert srun.wait(PATIENCE) != 0
    finally:
        slurm.boot("n1")


@pytest.mark.rotating
def test_the_batch_file_resumes_on_other_nodes_when_one_dies(slurm, start, tmp_path):
    """Slurm puts the job back into the queue; its number, and so its run directory, stay the same."""
    (tmp_path / "run.sh").write_text(f'exec bash {ROOT}/run.sh "$@"\n')
    options = ["downpour", *FOREVER, "--checkpoint-seconds", "0.5"]
    job = slurm.ask("sbatch", "--parsable", "-N2", "-n2", f"--chdir={tmp_path}", ROOT / "deploy/slurm.sh", *options)
    checkpoints, log = tmp_path / f"runs/slurm-{job}/checkpoints", tmp_path / f"distsgd-{job}.log"

    def newest():
        return max((int(path.name) for path in checkpoints.glob("0*")), default=0)

    wait_for(newest)
    slurm.crash("n2")
    slurm.miss("n2")
    try:
        wait_for(lambda: slurm.ask("squeue", "--noheader", "--format=%T") == "PENDING")
        before = newest()

        def is_scheduled():
            """Slurm would wait for two minutes. A node refuses a job in the second in which it was killed there."""
            command = slurm.command("scontrol", "update", f"jobid={job}", "starttime=now+2")
            return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0  # not while it ends

        wait_for(is_scheduled)
        wait_for(lambda: newest() > before)
    finally:
        slurm.boot("n2")
    assert "task 1 on n2 is worker 0." in log.read_text()
    assert "task 1 on n3 is worker 0." in log.read_text()
    assert f"the run resumes from version {before}" in log.read_text()
