"""Completion in a shell."""

import dataclasses
import io
import subprocess
import sys
from importlib import import_module
from importlib.util import resolve_name
from unittest.mock import Mock

import pytest
from argcomplete.finders import CompletionFinder

from distsgd.algorithms import SCHEMES
from distsgd.common.cli import completion
from distsgd.common.cli import main as cli
from distsgd.common.cli.flag_groups import flag_parser
from distsgd.common.cli.flags import in_source
from distsgd.common.sources import Names


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
        ("distsgd ringl", ["ringleader"]),
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


@pytest.mark.parametrize(("module", "table"), completion.NAMES.values())
def test_the_names_in_the_source_of_a_table_are_its_keys(module, table):
    module = resolve_name(module, completion.__package__)
    assert [*Names(module)[table]] == [*getattr(import_module(module), table)]


def test_the_first_word_is_a_command_or_an_algorithm(completed):
    for program in ("distsgd", "bash run.sh", "./run.sh"):
        assert {"train", "sweep", "downpour", "fedavg", "soak"} <= set(completed(f"{program} "))


@pytest.mark.rotating
def test_options_read_from_the_source_are_those_of_the_classes():
    def shown(parser):
        words = {tuple(action.option_strings): action for action in parser._actions}
        return {
            flags: (action.nargs, action.completer() if hasattr(action, "completer") else None)
            for flags, action in words.items()
            if flags != ("--help-all",)
        }

    for name, kind in SCHEMES.items():
        assert [*in_source(kind.__module__, kind.__name__)] or not dataclasses.fields(kind)
        assert shown(completion.parser_of(name)) == shown(flag_parser(name, kind)), name


def test_options_that_the_source_does_not_say_plainly_are_those_of_the_classes(monkeypatch):
    monkeypatch.setattr(completion, "in_source", Mock(side_effect=LookupError))
    assert "--learning-rate" in completion.parser_of("downpour").format_help()


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
