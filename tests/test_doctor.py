"""`doctor`: what a bug report says about the machine."""

import json
from importlib.metadata import version

from distsgd.common.cli import doctor
from distsgd.common.cli import main as cli


def test_doctor_describes_the_machine_on_one_screen_and_as_json(monkeypatch, tmp_path, capsys):
    asked = []
    monkeypatch.setattr(doctor, "_ask", lambda code, empty: asked.append(code) or empty)
    monkeypatch.setenv("TF_CONFIG", '{"task": {}}')
    monkeypatch.chdir(tmp_path)
    assert cli.dispatch(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 20
    assert cli.dispatch(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == [line.split("  ")[0] for line in shown.splitlines()]
    assert (found["distsgd"], found["tensorflow"]) == (version("distsgd"), version("tensorflow"))
    assert (found["gpu"], found["private network"]) == ("none", "possible")
    assert "GB free of" in found["memory"]
    assert str(tmp_path) in found["current folder"]
    assert found["role"] == 'TF_CONFIG={"task": {}}'
    assert len(asked) == 4


def test_a_probe_in_its_own_process_prints_its_answer_or_error():
    assert doctor._ask(doctor.PRIVATE_NETWORK, empty="possible").startswith(("possible", "no: "))
    assert doctor._ask("raise OSError('not here')", empty="") == "no: OSError: not here"
    assert doctor._ask("print('a GPU')", empty="none") == "a GPU"
