"""How a task learns its role: from flags, TF_CONFIG, Slurm, torchrun; what is refused; what to type on each machine."""

import json
import shlex
import socket

import pytest

from distsgd.algorithms import SCHEMES, Downpour
from distsgd.common import Cluster
from distsgd.common.cli import train as command
from distsgd.common.cli.flag_groups import find_cluster, parse_flags
from distsgd.common.cluster import torchrun
from distsgd.common.cluster.discovery import (
    OWN_PORTS,
    commands,
    expand_counts,
    expand_nodes,
    from_slurm,
    from_tf_config,
    has_tf_config,
    task_spec,
)
from distsgd.common.cluster.task_spec import Addresses, TaskSpec
from distsgd.common.errors import UserError

PS, WORKERS = ["h0:2222"], ["h1:2222", "h2:2222"]
SECOND = TaskSpec("worker", 1, Addresses(tuple(PS), tuple(WORKERS)))


@pytest.fixture(autouse=True)
def no_cluster_around(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def tf_config(job, index, **cluster):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})}


def slurm(rank, **changed):
    environment = {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": "5",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node[08-09],big",
        "SLURM_TASKS_PER_NODE": "2(x2),1",
        "SLURM_NODEID": str(rank // 2),
    }
    return environment | {name: value for name, value in changed.items() if value is not None}


@pytest.mark.parametrize("style", ["--ps_hosts={} --worker_hosts={} --job_name=worker --task_index=1",
                                   "--ps-hosts {} --worker-hosts {} --job-name worker --task-index 1"])  # fmt: skip
def test_flags_give_the_role_in_both_spellings(style):
    scheme, options = parse_flags(Downpour, style.format(",".join(PS), ",".join(WORKERS)).split())
    cluster = find_cluster(options)
    assert cluster.task == SECOND
    assert (cluster.workers, cluster.ps, cluster.isolation, cluster.evaluates) == (2, 1, "off", False)
    assert scheme == Downpour()


def test_without_a_word_about_machines_all_tasks_are_here():
    _, options = parse_flags(Downpour, ["--workers", "3"])
    assert find_cluster(options) == Cluster.local(3)


def test_tf_config_gives_the_same_role_as_flags(monkeypatch):
    assert from_tf_config(environment=tf_config("worker", 1, ps=PS, worker=WORKERS)) == SECOND
    with_chief = {"chief": WORKERS[:1], "ps": PS, "worker": WORKERS[1:]}
    assert from_tf_config(environment=tf_config("worker", 0, **with_chief)) == SECOND
    assert from_tf_config(environment=tf_config("worker", "0", **with_chief)) == SECOND  # some write the index as text
    chief = from_tf_config(environment=tf_config("chief", 0, **with_chief))
    assert (str(chief), chief.evaluates, chief.tasks()) == ("worker-0", True, [("worker", 0), ("evaluator", 0)])
    assert str(from_tf_config(environment=tf_config("master", 0, master=["m:1"], ps=PS))) == "worker-0"
    monkeypatch.setenv("TF_CONFIG", tf_config("worker", 1, ps=PS, worker=WORKERS)["TF_CONFIG"])
    assert find_cluster(parse_flags(Downpour, [])[1]).task == SECOND
    assert find_cluster(parse_flags(Downpour, ["--cluster", "local"])[1]) == Cluster.local()
    monkeypatch.setenv("TF_CONFIG", '{"task": {"type": "worker", "index": 0}}')
    assert find_cluster(parse_flags(Downpour, [])[1]) == Cluster.local()  # as TensorFlow takes it


def test_an_evaluator_of_tf_config_is_never_in_tensorflows_cluster():
    cluster = {"chief": ["c:1"], "ps": ["p:1"], "worker": ["w:1"], "evaluator": ["e:1"]}
    evaluator = from_tf_config(environment=tf_config("evaluator", 0, **cluster))
    assert evaluator.tasks() == [("evaluator", 0)]
    assert evaluator.evaluates
    chief = from_tf_config(environment=tf_config("chief", 0, **cluster))
    assert (chief.tasks(), chief.evaluates) == ([("worker", 0)], False)
    assert chief.addresses.as_dict() == evaluator.addresses.as_dict() == {"ps": ["p:1"], "worker": ["c:1", "w:1"]}
    assert chief.all_tasks()[-1] == ("evaluator", 0)
    left_out = {name: hosts for name, hosts in cluster.items() if name != "evaluator"}
    assert from_tf_config(True, tf_config("chief", 0, **left_out)) == chief
    assert from_tf_config(False, tf_config("evaluator", 0, **left_out)) == evaluator


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ('{"cluster": {"worker": ["a:1"]}}', "must look like"),
        (
            tf_config("worker", 2, worker=WORKERS)["TF_CONFIG"],
            "the index of the worker must lie between 0 and 1. Received: 2",
        ),
        (tf_config("worker", -1, worker=WORKERS)["TF_CONFIG"], "needs a type and an index"),
        (tf_config("ps", 0, worker=WORKERS)["TF_CONFIG"], "this cluster has no ps tasks"),
        (tf_config("chief", 0, worker=WORKERS)["TF_CONFIG"], "the cluster has none"),
        (tf_config("chief", 1, chief=["c:1"])["TF_CONFIG"], "index of the chief must be 0"),
        (tf_config("chief", 0, chief=["c:1", "d:1"])["TF_CONFIG"], "one chief"),
        (tf_config("wroker", 0, worker=WORKERS)["TF_CONFIG"], "unknown job 'wroker'. Did you mean worker"),
        (tf_config("worker", 0, wroker=WORKERS)["TF_CONFIG"], "unknown job 'wroker' in the cluster"),
        (tf_config("worker", 0, worker="a:1")["TF_CONFIG"], "must be a list"),
        (tf_config("worker", 0, worker=["a:1"], ps=["a:1"])["TF_CONFIG"], "cannot listen at a:1: ps 0 and worker 0"),
        (tf_config("worker", 0, worker=["a"])["TF_CONFIG"], "an address is host:port"),
        (tf_config("worker", 0, worker=["a:70000"])["TF_CONFIG"], "port from 1 to 65535"),
        (tf_config("worker", 0, worker=["grpc://a:1"])["TF_CONFIG"], "an address is host:port"),
        (tf_config("worker", 0, worker=["h:²"])["TF_CONFIG"], "an address is host:port"),
        (tf_config("worker", 0, worker=["h:" + "9" * 5000])["TF_CONFIG"], "an address is host:port"),
        (tf_config("worker", "²", worker=WORKERS)["TF_CONFIG"], "needs a type and an index"),
        (tf_config("worker", "9" * 5000, worker=WORKERS)["TF_CONFIG"], "needs a type and an index"),
        ('{"cluster": ' * 100_000, "not a JSON object"),
        ('{"cluster": ' + "9" * 5000 + "}", "not a JSON object"),
    ],
)
def test_a_wrong_tf_config_is_refused_before_tensorflow_sees_it(config, message):
    with pytest.raises(UserError, match=message.replace("[", r"\[")) as refused:
        from_tf_config(environment={"TF_CONFIG": config})
    assert len(str(refused.value)) < 1000
    assert str(refused.value).startswith("TF_CONFIG")
    assert "; for a run on this machine: unset TF_CONFIG" in str(refused.value)


@pytest.mark.parametrize("chief", ["chief", "master"])  # of Vertex AI, and of SageMaker
def test_a_tf_config_that_was_left_behind_is_named_where_it_does_not_fit(chief, run_main, monkeypatch):
    task = {"type": chief, "index": 0, "trial": "1"}
    cluster = {chief: ["algo-1:2222"]}
    config = {"cluster": cluster, "task": task, "environment": "cloud", "job": "{}"}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    code, _, said = run_main("async_sgd")
    assert code == 2
    assert said == (
        "error: async_sgd needs a ps: give --ps_hosts. TF_CONFIG makes this program worker-0 of a cluster; "
        "for a run on this machine: unset TF_CONFIG. Received: {'worker': ['algo-1:2222']}\n"
    )
    monkeypatch.setenv("TF_CONFIG", json.dumps(config | {"cluster": {}}))
    assert not has_tf_config()


def test_slurm_gives_the_first_tasks_to_the_ps():
    roles = [from_slurm(2, slurm(rank)) for rank in range(5)]
    assert [str(role) for role in roles] == ["ps-0", "ps-1", "worker-0", "worker-1", "worker-2"]
    assert len({role.addresses for role in roles}) == 1
    hosts = [address.split(":")[0] for addresses in roles[0].addresses.as_dict().values() for address in addresses]
    assert hosts == ["node08", "node08", "node09", "node09", "big"]
    assert {role.origin for role in roles} == {
        "Slurm job 4711, step 0: "
        "tasks 0 to 1 on node08 are ps 0 to 1; tasks 2 to 4 on node09 to big are workers 0 to 2."
    }
    assert from_slurm(0, slurm(0)).origin.endswith(": tasks 0 to 4 on node08 to big are workers 0 to 4.")
    two = {"SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "n", "SLURM_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
    assert from_slurm(1, slurm(1, **two)).origin.endswith(": task 0 on n is ps 0; task 1 on n is worker 0.")


def ports(job, step, tasks):
    """Those that a step with that number of tasks on one node takes."""
    there = {"SLURM_JOB_NODELIST": "n", "SLURM_NTASKS": str(tasks), "SLURM_TASKS_PER_NODE": str(tasks)}
    role = from_slurm(1, slurm(0, SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(step), **there))
    return {int(address.rpartition(":")[2]) for address in (*role.addresses.ps, *role.addresses.worker)}


@pytest.mark.parametrize(
    ("tasks", "jobs", "steps"), [(2, 1000, 1), (4, 300, 4), (8, 150, 8), (16, 120, 4), (64, 75, 2), (400, 15, 1)]
)
def test_the_ports_of_neighbouring_slurm_jobs_and_steps_are_distinct(tasks, jobs, steps):
    """Consecutive jobs, of some steps each, all at once on one node: wherever their numbers begin."""
    for first in (1, 67_108_000):
        taken = [ports(first + job, step, tasks) for job in range(jobs) for step in range(steps)]
        assert len(set.union(*taken)) == jobs * steps * tasks
        assert set.union(*taken) <= set(OWN_PORTS)


@pytest.mark.parametrize("reserved", ["12000-12001,12005-12007", "[12000-12001,12005-12007]"])
def test_a_slurm_step_takes_the_ports_that_slurm_has_reserved_for_it(reserved):
    role = from_slurm(1, slurm(0, SLURM_STEP_RESV_PORTS=reserved, SLURM_TASKS_PER_NODE="4,1", SLURM_NTASKS="5",
                               SLURM_JOB_NODELIST="a,b"))  # fmt: skip
    assert role.addresses == Addresses(("a:12000",), ("a:12001", "a:12005", "a:12006", "b:12000"))
    with pytest.raises(UserError, match="has reserved 1 ports for 2 tasks on a node: give --resv-ports=2"):
        from_slurm(1, slurm(0, SLURM_STEP_RESV_PORTS="12000"))


@pytest.mark.parametrize(("algorithm", "first"), [("downpour", "ps-0"), ("all_reduce", "worker-0")])
def test_under_slurm_an_algorithm_without_a_ps_gets_none(algorithm, first, monkeypatch, run_main):
    found = []

    def make_job(scheme, recipe, train, test, cluster, options):
        found.append(cluster)
        raise UserError("far enough")

    monkeypatch.setattr(command, "make_job", make_job)
    for name, value in slurm(0).items():
        monkeypatch.setenv(name, value)
    code, _, err = run_main(algorithm, "--cluster=slurm")
    assert (code, "far enough" in err) == (2, True)
    assert [str(cluster.task) for cluster in found] == [first]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"SLURM_NODEID": "1"}, "--distribution=block"),
        ({"SLURM_NTASKS": "6"}, "contradicts itself"),
        ({"SLURM_NTASKS": "x"}, "variables of Slurm must be whole numbers: .*Received: '"),
        ({"SLURM_NODEID": "x"}, "variables of Slurm must be whole numbers: .*Received: '"),
        ({"SLURM_NODEID": "²"}, "variables of Slurm must be whole numbers: .*Received: '"),
        ({"SLURM_STEP_RESV_PORTS": "x"}, "variables of Slurm must be whole numbers: .*Received: '"),
        ({"SLURM_TASKS_PER_NODE": "5", "SLURM_JOB_NODELIST": "a"}, "too few for 5 ps and a worker"),
    ],
)
def test_a_slurm_environment_that_makes_no_sense_is_refused(changed, message):
    with pytest.raises(UserError, match=message):
        from_slurm(5 if "5 ps" in message else 1, slurm(0, **changed))


def test_a_role_from_slurm_outside_a_step_is_refused():
    with pytest.raises(UserError, match="SLURM_PROCID is not set: start the tasks with srun"):
        from_slurm(1, {})


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_tasks_of_torchrun_take_the_addresses_that_all_leave_in_its_store(monkeypatch):
    left = {}

    def exchanged(own, rank, size, wait_seconds, environment):
        left[rank] = own
        return [left.get(k, f"far:{k + 1}") for k in range(size)]

    monkeypatch.setattr(torchrun, "_exchanged", exchanged)
    role = torchrun.from_torchrun(2, 60, TORCHRUN)
    assert str(role) == "worker-1"
    assert role.addresses == Addresses(("far:1", "far:2"), ("far:3", left[3]))
    assert role.origin == (
        "torchrun at 127.0.0.1:29500: "
        "tasks 0 to 1 on far are ps 0 to 1; tasks 2 to 3 on far to 127.0.0.1 are workers 0 to 1."
    )
    beside = torchrun.from_torchrun(0, 60, TORCHRUN | {"RANK": "2"})
    assert (str(beside), left[2] == left[3]) == ("worker-2", False)
    assert {int(address.rpartition(":")[2]) for address in left.values()} <= set(OWN_PORTS)


def test_a_port_that_is_taken_is_passed_over():
    port = torchrun.free_port(29500, 0, 2)
    with socket.socket() as taken:
        taken.bind(("", port))
        assert torchrun.free_port(29500, 0, 2) not in (port, torchrun.free_port(29500, 1, 2))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"RANK": None}, "RANK is not set: start the tasks with torchrun, as in torchrun --nproc-per-node 3 -m dist"),
        ({"MASTER_PORT": None}, "MASTER_PORT is not set"),
        ({"MASTER_PORT": "x"}, "variables of torchrun must be whole numbers: .*'x'"),
        ({"RANK": "4"}, "contradicts itself: task 4 of 4"),
        ({"WORLD_SIZE": "1", "RANK": "0"}, "1 tasks are too few for 1 ps and a worker"),
        ({"MASTER_PORT": "99999"}, "cannot reach MASTER_ADDR and MASTER_PORT .* Received: 127.0.0.1:99999"),
        ({"MASTER_ADDR": "::1"}, "cannot reach MASTER_ADDR and MASTER_PORT of torchrun .* Received: ::1:29500"),
    ],
)
def test_an_environment_of_torchrun_that_makes_no_sense_is_refused(changed, message):
    environment = {name: value for name, value in (TORCHRUN | changed).items() if value is not None}
    with pytest.raises(UserError, match=message):
        torchrun.from_torchrun(1, 60, environment)


@pytest.mark.parametrize(
    ("short", "nodes"),
    [
        ("a", "a"),
        ("a,b", "a b"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[08-11,20]", "n08 n09 n10 n11 n20"),
        ("gpu-a[1,3]-ib,login", "gpu-a1-ib gpu-a3-ib login"),
        ("r[1-2]n[0-1]", "r1n0 r1n1 r2n0 r2n1"),
    ],
)
def test_node_lists_expand(short, nodes):
    assert expand_nodes(short) == nodes.split()


def test_task_counts_expand():
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]


def test_an_algorithm_and_its_cluster_must_fit():
    with pytest.raises(UserError, match="needs at least one worker"):
        task_spec(PS, [], "worker", 0)
    with pytest.raises(UserError, match="index of a worker must lie between 0 and 1"):
        task_spec(PS, WORKERS, "worker", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["downpour", "--worker_hosts=h1:1", "--job_name=worker"], "downpour needs a ps: give --ps_hosts"),
        (["all_reduce", "--ps_hosts=h0:1", "--worker_hosts=h1:1", "--job_name=worker"], "all_reduce has no ps"),
        (["downpour", "--ps_hosts=h0:1", "--worker_hosts=h1:1"], "which task is this?"),
        (["downpour", "--ps_hosts=h0:1", "--job_name=ps", "--cluster=slurm"], "exclude each other"),
        (["downpour", "--ps_hosts=h0:1", "--worker_hosts=h1:1", "--job_name=ps", "--workers=3"], "--workers"),
        (["downpour", "--cluster", "slurm"], "SLURM_PROCID is not set"),
        (["downpour", "--cluster", "torchrun"], "RANK is not set"),
        (["downpour", "--print-commands"], "--print-commands needs the addresses"),
    ],
)  # fmt: skip
def test_a_wrong_cluster_is_one_line_and_exit_code_2(arguments, message, run_main):
    code, out, err = run_main(*arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err


def test_the_printed_commands_give_each_machine_its_role(run_main):
    hosts = [f"--ps_hosts={','.join(PS)}", "--worker-hosts", ",".join(WORKERS)]
    code, out, _ = run_main(
        "downpour", *hosts, "--print-commands", "--communication-period", "7",
        "--model=mlp:hidden=8", "--separate-evaluator",
    )  # fmt: skip
    assert code == 0
    lines = out.splitlines()
    assert lines[::2] == [
        "# ps 0, on h0",
        "# worker 0, on h1",
        "# worker 1, on h2",
        "# evaluator 0, on any machine that reaches the others",
    ]
    found = []
    for line in lines[1::2]:
        assert line.startswith("bash run.sh downpour ")
        scheme, options = parse_flags(SCHEMES["downpour"], shlex.split(line)[3:])
        assert (scheme, options.model) == (Downpour(communication_period=7), "mlp:hidden=8")
        found.append(find_cluster(options).task)
    assert [str(found_task) for found_task in found] == ["ps-0", "worker-0", "worker-1", "evaluator-0"]
    assert all(p.separate_evaluator and p.addresses == SECOND.addresses for p in found)
    assert len(commands(SECOND, ["x"])) == 6
