"""A Slurm of our own: controller, nodes and their network on this machine, without systemd or control groups."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from machines import Network

PROGRAMS = (
    "munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo", "unshare", "nsenter", "setpriv", "ip",
)  # fmt: skip
READY_SECONDS = 200
NODES = ("n1", "n2", "n3")
MUNGE_FILES = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=control
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SlurmdTimeout=300
SchedulerParameters=sched_interval=1
ReturnToService=2
NodeName=n[1-3] CPUs=4 RealMemory=6000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return the reason why Slurm cannot run here, or nothing."""
    absent = [name for name in PROGRAMS if not shutil.which(name)]
    if absent:
        return f"Slurm cannot be tried: this machine has no {', '.join(absent)}"
    return "" if os.geteuid() == 0 else "Slurm cannot be tried: its daemons need root"


class Slurm:
    """A controller and its nodes, each a machine with a network, a name, and processes that die with it."""

    def __init__(self, folder: Path, network: Network):
        self.folder, self.network = folder, network
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        lines = ["127.0.0.1 localhost", *(f"10.77.0.{i} {name}" for i, name in enumerate(("control", *NODES), 1))]
        self.hosts = folder / "hosts"
        self.hosts.write_text("\n".join([*lines, ""]))
        self.configuration = folder / "slurm.conf"
        self.configuration.write_text(CONFIGURATION.format(folder=folder))
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        self.munge_files = [f"--{name}={folder}/munge.{ending}" for name, ending in MUNGE_FILES.items()]

    def boot(self, node: str) -> None:
        """Start a node, or start it again."""
        (self.folder / f"spool-{node}").mkdir(exist_ok=True)
        self._start(node, ["slurmd", "-D", "-N", node])

    def crash(self, node: str) -> None:
        """Kill all processes of a node at once."""
        daemon = self.daemons[node]
        daemon.kill()
        daemon.wait()

    def miss(self, node: str) -> None:
        """Make Slurm notice that a node is gone, which by itself takes it `SlurmdTimeout`."""
        self.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=crashed")

    def command(self, *words: object) -> list[str]:
        """Return a command as it must be started here in order to run on the controller's machine."""
        control = str(self.daemons["control"].pid)
        around = [f"--unset={name}" for name in os.environ if name.startswith("SLURM_")]  # of a job that we may be in
        environment = [*around, f"--chdir={os.getcwd()}", f"SLURM_CONF={self.configuration}"]
        return ["nsenter", "--target", control, "--net", "--mount", "--uts", "env", *environment, *map(str, words)]

    def ask(self, *words: object) -> str:
        """Return the output of one of Slurm's commands."""
        done = subprocess.run(
            self.command(*words), stdout=subprocess.PIPE, text=True, timeout=READY_SECONDS, check=False
        )
        return done.stdout.strip()

    def wait_for_nodes(self) -> None:
        """Block until all nodes are up and idle."""
        self._until(lambda: self.ask("sinfo", "--noheader", "--format=%T %D") == f"idle {len(NODES)}")

    def programs(self, node: str) -> list[str]:
        """Return the programs on a node, Slurm itself apart."""
        network = os.readlink(f"/proc/{self.network.pids[self._number(node)]}/ns/net")
        found: list[str] = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(process / "ns/net") == network:
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return [line for line in found if line and not line.startswith(("slurm", "unshare", "sleep infinity"))]

    def __enter__(self) -> Slurm:
        try:
            self._start("munged", ["munged", "--foreground", "--force", *self.munge_files])
            self._until(lambda: (self.folder / "munge.socket").exists())
            self._start("control", ["slurmctld", "-D"])
            for node in NODES:
                self.boot(node)
            self.wait_for_nodes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self.daemons)):
            self.crash(name)

    def _number(self, name: str) -> int:
        return ("control", *NODES).index(name)

    def _start(self, name: str, daemon: Sequence[str]) -> None:
        """On its machine, which has a hosts file of its own; a node's processes form a world that ends as a whole."""
        machine = "control" if name == "munged" else name
        world = ["--pid", "--fork", "--kill-child", "--mount-proc"] if name in NODES else []
        script = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'
        command = ["unshare", "--mount", "--uts", *world, "sh", "-c", script, str(self.hosts), machine, *daemon]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.network.enter(self._number(machine)), *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=os.environ | {"SLURM_CONF": str(self.configuration)},
            )  # fmt: skip

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))
