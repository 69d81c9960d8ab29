"""Completion in a shell."""

import io
import subprocess
import sys

import pytest
from argcomplete.finders import CompletionFinder

from distsgd.common.cli import completion
from distsgd.common.cli import main as cli


@pytest.fixture
def completed(monkeypatch):
    def complete(line):
        monkeypatch.setenv("_ARGCOMPLETE", "1")
        monkeypatch.setenv("_ARGCOMPLETE_IFS", "\n")
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setenv("COMP_POINT", str(len(line)))
        monkeypatch.setattr(CompletionFinder, "_init_debug_stream", lambda self: None)  # it takes descriptor 9
        out = io.StringIO()
        completion.complete([*cli.COMMANDS], output_stream=out, exit_method=lambda code: None)
        return [word.strip() for word in out.getvalue().split("\n")]

    return complete


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("distsgd sw", ["sweep"]),
        ("distsgd ringm", ["ringmaster"]),
        ("distsgd downpour --learning-r", ["--learning-rate"]),
        ("distsgd sweep diloco --inner-opt", ["--inner-optimizer"]),
        ("distsgd simulate downpour --workers 4 --upl", ["--uplink"]),
        ("distsgd downpour --backend th", ["threads"]),
        ("distsgd fedavg --communication-p", ["--communication-period"]),
        ("distsgd explain downp", ["downpour"]),
        ("distsgd downpour --dataset di", ["digits"]),
        ("distsgd simulate downpour --network one", ["one-rack"]),
        ("distsgd help swee", ["sweep"]),
        ("distsgd replay la", ["latest"]),
        ("distsgd compare latest runs/agn/20", ["runs/agn/20260101"]),
        ("distsgd train --config sett", ["settings.toml"]),
        ("bash run.sh sw", ["sweep"]),
        ("bash ../run.sh downpour --learning-r", ["--learning-rate"]),
        ("./run.sh simulate downpour --workers 4 --upl", ["--uplink"]),
    ],
)
def test_words_are_completed_where_they_stand(line, found, completed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "agn" / "20260101").mkdir(parents=True)
    (tmp_path / "settings.toml").touch()
    assert [word for word in completed(line) if word not in ("downpour_easy", "downpour_easgd")] == found


def test_the_first_word_is_a_command_or_an_algorithm(completed):
    for program in ("distsgd", "bash run.sh", "./run.sh"):
        assert {"train", "sweep", "downpour", "fedavg", "soak"} <= set(completed(f"{program} "))


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_shell_gets_its_code(shell, capsys):
    assert cli.dispatch(["completion", shell]) == 0
    assert "distsgd" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("bash run.sh swe", ["sweep"]),
        ("./run.sh downpour --learning-r", ["--learning-rate"]),
        ("bash run.s", []),
        ("bash other.sh swe", []),
    ],
)
def test_bash_completes_the_script_of_a_checkout(words, found, tmp_path, capsys):
    """The script itself, which would set up a fresh checkout, is not executed."""
    (tmp_path / "run.sh").write_text("touch executed\n")
    program = tmp_path / ".venv" / "bin" / "distsgd"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m distsgd.common.cli.main "$@"\n')
    program.chmod(0o755)
    cli.dispatch(["completion", "bash"])
    array = " ".join(f"'{word}'" for word in words.split())
    line = (
        f"COMP_WORDS=({array}); COMP_CWORD={len(words.split()) - 1}; COMP_LINE='{words}'; COMP_POINT={len(words)}; "
        "_distsgd_of_checkout; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    code = f"{capsys.readouterr().out}\n{line}\n"
    done = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert [word.strip() for word in done.stdout.split()] == found
    assert not (tmp_path / "executed").exists()
