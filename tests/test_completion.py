"""Completion in a shell."""

import io

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
    ],
)
def test_words_are_completed_where_they_stand(line, found, completed):
    assert [word for word in completed(line) if word not in ("downpour_easy", "downpour_easgd")] == found


def test_the_first_word_is_a_command_or_an_algorithm(completed):
    assert {"train", "sweep", "downpour", "fedavg", "soak"} <= set(completed("distsgd "))


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_shell_gets_its_code(shell, capsys):
    assert cli.dispatch(["completion", shell]) == 0
    assert "distsgd" in capsys.readouterr().out
