"""`run.sh`: which environment it makes and when, and what `pip` puts there; a double of `uv` installs nothing."""

import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from distsgd.common import packages
from distsgd.common.cli.flag_groups import Options
from distsgd.common.cli.imports import execute
from distsgd.common.cli.own import own_data
from distsgd.common.errors import UserError
from distsgd.common.launch.task_process import report_error

ROOT = Path(__file__).resolve().parent.parent

# It logs its words, fails if there is a file of that name, and makes a program that prints its own words.
UV = f"""#!/bin/bash
echo "$*" >>log
[[ ! -e fails ]] || exit 1
if [[ $1 == venv ]]; then
    sleep 0.1
    {shlex.quote(sys.executable)} -m venv --without-pip .venv
elif [[ $2 == install ]]; then
    printf '#!/bin/bash\\necho starts $*' >.venv/bin/distsgd
    chmod 755 .venv/bin/distsgd
fi
"""


@pytest.fixture
def checkout(tmp_path):
    """A checkout that is not set up, in a folder whose name has a space."""
    folder = tmp_path / "a checkout"
    (folder / "common").mkdir(parents=True)
    for name in ("run.sh", "pyproject.toml", "constraints.txt", "common/packages.py"):
        shutil.copy(ROOT / name, folder / name)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").write_text(UV)
    (tmp_path / "bin" / "uv").chmod(0o755)
    return folder


def start(checkout, *words, script=None, **environment):
    """Start run.sh; stop and return the running program."""
    path = f"{checkout.parent / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    return subprocess.Popen(
        ["bash", str(script or checkout / "run.sh"), *words], env={"PATH": path, "DISTSGD_GPU": "0", **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=checkout.parent,
    )  # fmt: skip


def installed(checkout, **environment):
    """Start run.sh; return the commands of uv that it used, `pip check` apart, and what it said."""
    log = checkout / "log"
    log.unlink(missing_ok=True)
    program = start(checkout, "list", **environment)
    out, said = program.communicate(timeout=60)
    assert out == ("" if program.returncode else "starts list\n"), said
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if not line.startswith("pip check")], said


def test_programs_started_together_set_the_environment_up_once(checkout):
    """As the tasks of a Slurm job are, on a file system that they share; one of them through a symbolic link."""
    link = checkout.parent / "bin" / "training"
    link.symlink_to("../a checkout/run.sh")
    programs = [start(checkout, "list", script=script) for script in (None, link, None, link)]
    assert [program.communicate(timeout=60)[0].strip() for program in programs] == ["starts list"] * 4
    venv, pip = (checkout / "log").read_text().splitlines()
    assert venv.startswith("venv --quiet --allow-existing --python ")
    assert pip == (
        f"pip install --python {checkout}/.venv/bin/python --constraint {checkout}/constraints.txt --quiet "
        "--editable . --group dev"
    )


def test_an_environment_is_updated_in_place_and_one_with_cuda_libraries_serves_all_machines(checkout):
    login_node, gpu_node, pins = {"DISTSGD_GPU": "0"}, {"DISTSGD_GPU": "1"}, checkout / "constraints.txt"
    assert [line.split()[0] for line in installed(checkout, **login_node)[0]] == ["venv", "pip"]
    assert installed(checkout, **login_node) == ([], "")
    (line,), _ = installed(checkout, **gpu_node)
    assert "--editable .[gpu] " in line
    assert installed(checkout, **gpu_node) == installed(checkout, **login_node) == ([], "")
    pins.write_text(pins.read_text() + "more==1.0\n")
    (line,), _ = installed(checkout, **login_node)  # it keeps the libraries, and makes no new environment
    assert "--editable .[gpu] " in line
    assert installed(checkout, **gpu_node) == ([], "")
    moved = checkout.rename(checkout.parent / "moved")
    assert len(installed(moved)[0]) == 1
    assert installed(moved) == ([], "")


def test_a_set_up_that_fails_is_done_again_and_without_a_network_names_the_gpu(checkout):
    (checkout / "fails").touch()
    assert "CUDA" not in installed(checkout)[1]
    (checkout / "fails").unlink()
    assert installed(checkout)[0]
    (checkout / "fails").touch()
    _, said = installed(checkout, DISTSGD_GPU="1")
    assert said.endswith(
        "error: no CUDA libraries were installed. Install them where there is a network, DISTSGD_GPU=1 bash run.sh list"
        ", or run without a GPU: DISTSGD_GPU=0\n"
    )
    assert installed(checkout) == ([], "")


def test_a_folder_that_cannot_be_set_up_and_a_wrong_choice_are_one_line(checkout):
    assert installed(checkout, DISTSGD_GPU="yes") == ([], "error: DISTSGD_GPU must be 0 or 1. Received: yes\n")
    (checkout / ".venv").touch()  # as good as a folder that only another user may write
    assert installed(checkout)[1] == (
        f"error: {checkout}/.venv is not set up, and cannot be written: its owner can do that by bash run.sh list\n"
    )


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ((), False),
        (("dev/null", "proc/driver/rtc"), False),
        (("proc/driver/nvidia/version",), True),
        (("dev/nvidiactl", "dev/nvidia0"), True),
        (("usr/lib/wsl/lib/libcuda.so.1",), True),
    ],
)
def test_cuda_libraries_are_for_machines_with_a_driver(files, found, tmp_path):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "uname").write_text("#!/bin/sh\necho ${SYSTEM:-Linux x86_64}\n")
    (tmp_path / "uname").chmod(0o755)
    choice = f"source {ROOT}/run.sh; ! has_driver {shlex.quote(str(tmp_path))}"
    for system, expected in (("", found), ("Darwin arm64", False)):
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SYSTEM": system}
        assert subprocess.run(["bash", "-c", choice], env=environment).returncode == expected


def test_the_cuda_libraries_of_tensorflow_are_pinned():
    needed = {re.split("[<>=!;]", line)[0] for line in requires("tensorflow") or () if "and-cuda" in line}
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert needed
    assert needed <= pinned


# Packages of the user's own.


@pytest.fixture
def called(monkeypatch):
    """The commands that would have run."""
    commands = []
    monkeypatch.setattr("subprocess.call", lambda command, **_: commands.append(command) or 0)
    monkeypatch.setattr("subprocess.run", lambda command, **_: commands.append(command))
    return commands


HERE, KEPT = [sys.executable, "-m"], ["--constraint", str(ROOT / "constraints.txt")]


def test_packages_are_installed_by_uv_or_by_pip_which_may_have_to_come_first(called, monkeypatch):
    monkeypatch.setattr(packages.shutil, "which", lambda name: f"/bin/{name}")
    packages.pip(["install", "pandas"])
    packages.pip(["list"])
    packages.pip(["--help"])
    assert called == [
        ["/bin/uv", "pip", "install", "--python", sys.executable, *KEPT, "pandas"],
        ["/bin/uv", "pip", "list", "--python", sys.executable],
        ["/bin/uv", "pip", "--help"],
    ]
    called.clear()
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "23.2.1")
    packages.pip(["install", "pandas"])
    assert [command[2:4] for command in called] == [["ensurepip"], ["pip", "install"], ["pip", "install"]]
    assert called[-1] == [*HERE, "pip", "install", *KEPT, "pandas"]


def test_an_installed_package_keeps_its_requirements(called, monkeypatch, tmp_path):
    monkeypatch.setattr(packages.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(packages, "CONSTRAINTS", tmp_path / "constraints.txt")
    packages.pip(["install", "pandas"])
    assert "tensorflow<2.22,>=2.21" in called[-1]
    assert not [word for word in called[-1] if "extra" in word]


def test_a_cache_that_cannot_be_written_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "a" / "cache"))
    assert "UV_NO_CACHE" not in packages._environment()
    monkeypatch.setattr(packages.os, "access", lambda *_: False)
    assert packages._environment()["UV_NO_CACHE"] == "1"


def test_pip_works_in_an_environment_in_which_nothing_else_does(tmp_path):
    code = "import sys, distsgd.common.packages; print({'numpy', 'rich', 'tensorflow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "set()\n", done.stderr


def test_a_missing_module_names_the_command_that_installs_it():
    def of(name, kind=ModuleNotFoundError):
        return packages.remedy(kind(f"No module named {name!r}"))

    assert packages.INSTALL in ("bash run.sh pip install", "distsgd pip install")
    assert of("no_such.part") == f" (if it is a package: {packages.INSTALL} no_such)"
    assert of("cv2") == f" (if it is a package: {packages.INSTALL} opencv-python-headless)"
    assert of("numpy.no_such") == of("_tkinter") == packages.remedy(ImportError("cannot import name 'x'")) == ""
    assert of("no_such", ValueError) == of("no_such")  # as Keras raises it


def test_files_of_the_user_and_tasks_that_miss_a_module_name_that_command(tmp_path):
    (file := tmp_path / "own.py").write_text("def load():\n    import no_such\nimport no_such_either\n")
    with pytest.raises(UserError, match=f"no_such_either'.*{packages.INSTALL} no_such_either"):
        execute(file, "--import")
    file.write_text("def load():\n    import no_such\n")
    with pytest.raises(UserError, match=f"no_such'.*{packages.INSTALL} no_such"):
        own_data(Options(data=f"{file}:load"), None)
    reports = []
    report_error(
        ModuleNotFoundError("No module named 'no_such'", name="no_such"), lambda **event: reports.append(event)
    )
    assert reports[0]["message"] == f"No module named 'no_such' (if it is a package: {packages.INSTALL} no_such)"
