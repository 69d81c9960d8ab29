"""`deploy`: print what starts a run on several machines, of an algorithm or of a script with a loop of its own.

The templates are those of the folder `deploy/`, in which this module sets the numbers, the command and the image.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...algorithms import SCHEMES
from ..arguments import at_least
from ..errors import UserError
from . import flags
from .catalogue import meant_by
from .main import dispatch

TEMPLATES = Path(__file__).resolve().parent.parent.parent / "deploy"

PORT = 2222

REQUIREMENTS = "requirements.txt"  # the file beside a script that names its packages

ARGUMENT = 12 * " " + "- "  # the beginning of the line of an argument in the template

ABOUT = (
    "Print what starts a run on several machines: Kubernetes objects, a Slurm batch file, or the command of each host."
)


@dataclass(frozen=True, kw_only=True)
class Deploy:
    """The options of `deploy`."""

    system: Literal["kubernetes", "slurm", "hosts"]
    """System that starts the tasks: kubernetes, slurm, or hosts, on which you start them yourself."""
    workers: int = 3
    """Number of worker tasks."""
    ps: int = 1
    """Number of parameter server tasks; of an algorithm without a parameter server there are none."""
    algorithm: str = "downpour"
    """Algorithm to train, if there is no script."""
    script: Path | None = None
    """Python script with a loop of its own, see launch. The files of its folder go along."""
    packages: str = ""
    """Packages that the script imports besides distsgd's own, as in torch,pandas. Default: those of the file
    requirements.txt beside the script, if there is one."""
    image: str = ""
    """Name of the container image, for kubernetes. Default: distsgd, or distsgd- and the name of the script."""
    hosts: str = ""
    """Names or addresses of the machines, for hosts, as in h0,h1,h2: tasks are placed on them in turn."""


def main(arguments: list[str]) -> int:
    """Print the files or commands; return the exit code."""
    usage = "run.sh deploy kubernetes|slurm|hosts [options]"
    (options,) = flags.read("run.sh deploy", ABOUT, arguments, {"options": Deploy}, positional="system", usage=usage)
    at_least(1, workers=options.workers)
    at_least(0, ps=options.ps)
    if options.script is not None and not options.script.is_file():
        raise UserError(f"there is no script of this name. Received: {options.script}")
    if options.system == "hosts":
        return _print_commands(options)
    if options.hosts:
        raise UserError(
            f"--hosts is for deploy hosts alone, as {options.system} chooses the machines: leave it out. Received: "
            f"{options.hosts}"
        )
    print({"kubernetes": kubernetes, "slurm": slurm}[options.system](options), end="")  # noqa: T201
    return 0


def words_of(options: Deploy) -> list[str]:
    """Return the words of the command line that name the algorithm, or `launch`."""
    return ["launch"] if options.script else meant_by(options.algorithm)


def servers_of(options: Deploy, words: list[str]) -> int:
    """Return the number of parameter servers: none of an algorithm without them."""
    if options.script:
        return options.ps
    sync = SCHEMES[words[0]]().sync
    if not sync.exchanges:
        raise UserError(f"{words[0]} is one process: it needs no other machines. Choose another algorithm")
    if not sync.uses_ps:
        return 0
    at_least(1, ps=options.ps)
    return options.ps


def kubernetes(options: Deploy) -> str:
    """Return the objects of Kubernetes, in YAML, with the commands for the image in comments."""
    words, script = words_of(options), options.script
    ps = servers_of(options, words)
    image = options.image or (f"distsgd-{_name(script)}" if script else "distsgd")
    about, _, objects = (TEMPLATES / "kubernetes.yaml").read_text().partition("apiVersion: ")
    parts = f"apiVersion: {objects}".split("---\n")
    text = _changed(
        "---\n".join(part for part in parts if ps or "kind: StatefulSet" not in part),
        {
            r"^  PS_HOSTS: .*\n": f"  PS_HOSTS: {_pods('ps', ps)}\n" if ps else "",
            r"^  WORKER_HOSTS: .*": f"  WORKER_HOSTS: {_pods('worker', options.workers)}",
            r"^ +- --ps_hosts=.*\n": None if ps else "",
            r"replicas: \d+": f"replicas: {ps}",
            r"completions: \d+": f"completions: {options.workers}",
            r"parallelism: \d+": f"parallelism: {options.workers}",
            r"image: distsgd$": f"image: {json.dumps(image)}",
            r"- downpour$": "- " + f"\n{ARGUMENT}".join(map(json.dumps, words)),
            r"^          envFrom:": f"{ARGUMENT}{json.dumps(f'/work/{script.name}')}\n          envFrom:"
            if script
            else None,
        },
    )
    head = f"# {_title(options, words)}: {ps} ps + {options.workers} workers; worker 0 evaluates and writes /runs.\n#\n"
    return head + _image(options, image) + _about(about) + text


def _changed(text: str, changes: Mapping[str, str | None]) -> str:
    """Return a template with other values for the lines that match these patterns; None leaves them."""
    for pattern, value in changes.items():
        if value is not None:
            text = re.sub(pattern, lambda _, value=value: value, text, flags=re.MULTILINE)
    return text


def _pods(job: str, number: int) -> str:
    return ",".join(f"distsgd-{job}-{k}.distsgd:{PORT}" for k in range(number))


def _about(text: str) -> str:
    """Return the comment of the template without its title, for a file that has been printed."""
    lines = [line.replace("deploy/kubernetes.yaml", "run.yaml") for line in text.splitlines()[1:]]
    return "\n".join(line for line in lines if not line.startswith("# Other numbers")) + "\n"


def _image(options: Deploy, image: str) -> str:
    """Return the commands that build the image, as comments."""
    lines = ["docker build -f deploy/Dockerfile -t distsgd .     # in the checkout of distsgd"]
    if script := options.script:
        lines += [
            f"docker build -t {image} -f - {shlex.quote(str(script.parent))} <<'END'",
            "FROM distsgd",
            "USER root",
        ]
        lines += ["COPY . /work"]
        if wanted := packages_of(options, "/work"):
            lines += [f"RUN pip install --no-cache-dir {shlex.join(wanted)}"]
        lines += ["USER 10001:10001", "END"]
    elif image != "distsgd":
        lines += [f"docker tag distsgd {image}"]
    return "".join(f"#   {line}\n" for line in lines)


def slurm(options: Deploy) -> str:
    """Return the batch file."""
    words, script = words_of(options), options.script
    ps = servers_of(options, words)
    text = (TEMPLATES / "slurm.sh").read_text()
    servers = f"--ps {ps} " if ps or script else ""
    cluster_flags = servers + '--cluster slurm --run-dir "runs/slurm-$SLURM_JOB_ID"'
    command = f"{shlex.join(words)} {cluster_flags}{f' {shlex.quote(str(script))}' if script else ''}"
    text = _changed(
        text,
        {
            r"^# One run as a Slurm job.*": f"# {_title(options, words)}: {ps} ps + {options.workers} workers.",
            r"--ntasks=\d+": f"--ntasks={ps + options.workers}",
            r"^if \[ \$# -eq 0 \]; then\n.*\nfi\n": "",
            r'bash run\.sh "\$@" .*"runs/slurm-\$SLURM_JOB_ID"': f'bash run.sh {command} "$@"',
        },
    )
    if wanted := packages_of(options, _folder(options)):
        before = f"# Before the first run, in the checkout: bash run.sh pip install {shlex.join(wanted)}\n"
        text = text.replace("#SBATCH", before + "#SBATCH", 1)
    return text


def _print_commands(options: Deploy) -> int:
    """Print the command of each task, of which the first host has the first ps."""
    hosts = [host for host in options.hosts.split(",") if host]
    if not hosts:
        raise UserError("deploy hosts needs the machines: --hosts h0,h1,h2")
    words = words_of(options)
    number, ps = len(hosts), servers_of(options, words)
    places = [f"{hosts[task % number]}:{PORT + task // number}" for task in range(ps + options.workers)]
    addresses = [f"--ps_hosts={','.join(places[:ps])}"] * bool(ps) + [f"--worker_hosts={','.join(places[ps:])}"]
    if wanted := packages_of(options, _folder(options)):
        print(f"bash run.sh pip install {shlex.join(wanted)}  # on each of {', '.join(hosts)}")  # noqa: T201
    script = [str(options.script)] if options.script else []
    return dispatch([*words, *addresses, "--print-commands", *script])


def packages_of(options: Deploy, folder: str) -> list[str]:
    """Return the arguments of pip for the packages of the script: the given ones, or requirements.txt in its folder."""
    if options.packages:
        return [name.strip() for name in options.packages.split(",") if name.strip()]
    has_requirements = options.script is not None and (options.script.parent / REQUIREMENTS).is_file()
    return ["-r", f"{folder}/{REQUIREMENTS}"] if has_requirements else []


def _folder(options: Deploy) -> str:
    return str(options.script.parent) if options.script else ""


def _title(options: Deploy, words: list[str]) -> str:
    return shlex.join([*words, *([options.script.name] if options.script else [])])


def _name(script: Path) -> str:
    """Return the name of a script as Docker takes it."""
    return re.sub(r"[^a-z0-9]+", "-", script.stem.lower()).strip("-") or "script"
