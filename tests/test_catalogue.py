"""What every entry of the catalogue must have."""

import ast
import importlib
import json
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from distsgd.algorithms import SCHEMES, AsyncSGD, LocalSGD
from distsgd.common import Cluster, UserError, sources, train
from distsgd.common.cli import flags
from distsgd.common.cli import train as train_command
from distsgd.common.cli.catalogue import Card, _card_from_source, aliases, card, meant_by
from distsgd.common.cli.flag_groups import parse_flags, scheme_of
from distsgd.common.cli.main import dispatch
from distsgd.common.contract.scheme import idea_of
from distsgd.common.data.models import ModelRecipe
from runs import DIGITS

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", SCHEMES)
def test_the_docstring_has_equations_reference_departures_and_limits(name):
    text = importlib.import_module(f"distsgd.algorithms.{name}").__doc__ or ""
    assert "←" in text
    for section in ("Reference:", "Departures:", "Limits:"):
        assert f"\n{section}" in text


@pytest.mark.parametrize("name", SCHEMES)
def test_the_module_has_at_most_sixty_lines_of_code(name):
    source = (ROOT / "algorithms" / f"{name}.py").read_text()
    tree = ast.parse(source)
    documented: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code = [i for i, line in enumerate(source.splitlines(), 1) if line.strip() and i not in documented]
    assert len(code) <= 60


def test_every_module_is_in_the_index():
    modules = {path.stem for path in (ROOT / "algorithms").glob("*.py")} - {"__init__"}
    assert modules == set(SCHEMES)
    for name, scheme in SCHEMES.items():
        assert scheme.__module__ == f"distsgd.algorithms.{name}"


def test_the_catalogue_in_the_source_is_that_of_the_classes(monkeypatch):
    monkeypatch.setattr(SCHEMES, "imported", lambda name: None)
    for name, kind in SCHEMES.items():
        assert card(name) == Card(
            kind().sync.label, idea_of(kind), kind.paper, vars(kind).get("aliases", ()), vars(kind).get("equals", "")
        )
        assert f"from .{name} import {kind.__name__} as" in (ROOT / "algorithms" / "__init__.pyi").read_text()


def test_an_algorithm_whose_source_says_it_in_another_way_is_imported(monkeypatch):
    monkeypatch.setattr(SCHEMES, "imported", lambda name: None)
    for text in ("", "from distsgd.common.contract import Scheme\nclass AGN(Scheme):\n    paper = str(1)"):
        tree = ast.parse(text)
        monkeypatch.setattr(
            sources, "tree", lambda name, of=sources.tree, tree=tree: of(name) if "agn" not in name else tree
        )
        _card_from_source.cache_clear()
        assert card("agn") == Card("asynchronous", idea_of(SCHEMES["agn"]), SCHEMES["agn"].paper, (), "")


def test_the_package_of_algorithms_has_their_classes():
    package = importlib.import_module("distsgd.algorithms")
    assert {kind.__name__ for kind in SCHEMES.values()} | {"SCHEMES", "Scheme"} == set(package.__all__)
    assert all(getattr(package, kind.__name__) is kind for kind in SCHEMES.values())
    with pytest.raises(AttributeError, match="has no attribute 'Downpouring'"):
        package.Downpouring  # noqa: B018


@pytest.mark.parametrize("name", SCHEMES)
def test_bad_hyperparameters_are_refused(name):
    for field in fields(SCHEMES[name]):
        with pytest.raises(UserError, match=field.name):
            SCHEMES[name](**{field.name: -1})


def test_the_options_of_other_names_are_those_of_their_papers():
    texts = (text.partition(" ") for scheme in SCHEMES.values() for text in scheme.aliases)
    assert {name: options for name, _, options in texts if options} == {
        "median": "--trim 0.5",
        "multi_krum": "--chosen 2",
        "fedadam": "--server-optimizer adam",
        "fedyogi": "--server-optimizer yogi",
        "fedadagrad": "--server-optimizer adagrad --beta-1 0",
        "fedavgm": "--form classical --block-momentum 0.9",
        "lookahead": "--workers 1 --momentum 0 --outer-learning-rate 0.5",
        "snoo": "--workers 1",
        "muloco": "--inner-optimizer muon --learning-rate 0.02 --communication-period 30 --momentum 0.6",
        "local_adam": "--first-moment-every 1 --second-moment-every 1",
        "overlapped_all_reduce": "--buckets 4",
        "ddp": "--buckets 4",
        "one_step_delay": "--delay 1",
        "pipe_sgd": "--delay 1",
        "d2": "--form d2",
    }


@pytest.mark.parametrize(("alias", "command"), aliases().items())
def test_another_name_is_an_algorithm_with_options(alias, command, capsys):
    assert alias not in SCHEMES
    assert meant_by(alias) == command
    assert capsys.readouterr().err == f"{alias} is {' '.join(command)}\n"
    name, *options = command
    parse_flags(SCHEMES[name], options)
    assert dispatch(["explain", alias]) == 0
    assert capsys.readouterr().out.endswith(f"To run it: bash run.sh {alias}\n")


def test_an_installed_package_names_its_own_command(monkeypatch, capsys):
    monkeypatch.setattr(flags, "PROGRAM", "distsgd")
    assert dispatch(["explain", "agn"]) == 0
    assert capsys.readouterr().out.endswith("To run it: distsgd agn\n")
    for arguments, usage in (
        (["agn", "--help"], "distsgd agn [options]"),
        (["launch", "--help"], "distsgd launch [opt"),
    ):
        with pytest.raises(SystemExit):
            dispatch(arguments)
        assert capsys.readouterr().out.startswith(f"usage: {usage}")
    with pytest.raises(UserError, match="unknown option --x of agn"):
        dispatch(["agn", "--x"])


def test_each_name_has_one_meaning():
    texts = [text.split()[0] for scheme in SCHEMES.values() for text in scheme.aliases]
    assert len(texts) == len(aliases())


@pytest.fixture
def started(monkeypatch):
    """The runs that commands start, as algorithm and workers; none is executed."""
    runs = []

    def performed(scheme, options, *_, **more):
        runs.append((scheme, options.workers))
        return SimpleNamespace(rows=[], finish=lambda error: {"exit_code": 2}), UserError("not executed")

    monkeypatch.setattr(train_command, "performed", performed)
    return runs


@pytest.mark.parametrize(
    "command",
    [
        "FedAdam",
        "simulate fedadam",
        "simulate --workers 2 fedadam",
        "simulate --compare fedadam",
        "train --config toml",
    ],
)
def test_each_command_that_takes_an_algorithm_takes_its_other_names(command, started, tmp_path):
    (tmp_path / "toml").write_text('algorithm = "fedadam"\nlearning_rate = 0.01\n')
    dispatch(command.replace("toml", str(tmp_path / "toml")).split())
    ((scheme, workers),) = started
    assert (scheme.name, scheme.server_optimizer, workers) == ("fedopt", "adam", 2)


def test_bandwidth_takes_other_names_and_options_besides(capsys):
    assert dispatch(["bandwidth", "muloco:communication_period=60", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["muloco:communication_period=60"]
    assert scheme_of("muloco:momentum=0.5") == replace(scheme_of("muloco"), momentum=0.5)
    with pytest.raises(UserError, match="unknown option --workers of diloco"):
        scheme_of("snoo")  # means an option of a run


def test_sweep_takes_other_names_with_their_options(capsys):
    assert dispatch(["sweep", "snoo", "--seeds", "2", "--dry-run"]) == 0
    assert capsys.readouterr().err == "snoo is diloco --workers 1\n"


@pytest.mark.parametrize(
    ("name", "text"), [("my.toml", 'algorithm = "fedavgg"'), ("my.json", '{"algorithm": "fedavgg"}')]
)
def test_a_file_with_an_unknown_algorithm_is_named(name, text, tmp_path):
    """As that of a run whose algorithm no `--import` brings."""
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=rf"{name}: unknown algorithm 'fedavgg'. Did you mean fedavg"):
        dispatch(["train", "--config", str(tmp_path / name)])


@pytest.mark.parametrize(("own", "base", "meant"), [("mine", LocalSGD, "local_sgd"), ("fedavg", AsyncSGD, "fedavg")])
def test_an_imported_algorithm_takes_over_no_other_name_and_keeps_its_own(own, base, meant, monkeypatch):
    class Mine(base):
        name = own

    monkeypatch.setitem(SCHEMES, own, Mine)
    assert meant_by("fedavg") == [meant]


@pytest.mark.parametrize("name", SCHEMES)
def test_algorithms_import_nothing_but_the_contract(name):
    tree = ast.parse((ROOT / "algorithms" / f"{name}.py").read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {module for module in imported if module.startswith("common.")}
    assert all(module.split(".")[1] in ("contract", "errors", "messages", "sync") for module in ours), ours
    own = {SCHEMES[name].__bases__[0].__module__.rpartition(".")[2]} & {*SCHEMES}  # of the algorithm that it extends
    assert imported - ours - own <= {"__future__", "collections.abc", "dataclasses", "typing"}


def test_the_readme_has_the_table_of_algorithms():
    rows = ["| algorithm | idea | paper |", "|---|---|---|"]
    for label, rule in {
        "one process": "one process",
        "asynchronous": "asynchronous: no worker waits",
        "bounded": "bounded: a worker waits if it is too far ahead",
        "synchronous": "synchronous: all workers wait for each other",
    }.items():
        rows += [f"| **{rule}** | | |"]
        of_them = {name: scheme for name, scheme in SCHEMES.items() if scheme().sync.label == label}
        same = {name: f" (= `{s.equals}`)" if s.equals else "" for name, s in of_them.items()}
        rows += [
            f"| [`{name}`](algorithms/{name}.py) | {idea_of(s)}{same[name]} | {s.paper} |"
            for name, s in of_them.items()
        ]
    assert "\n".join(rows) in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    "name", [name if name == "sync_sgd" else pytest.param(name, marks=pytest.mark.rotating) for name in SCHEMES]
)
@pytest.mark.rotating
def test_an_algorithm_trains_digits_and_keeps_shapes_and_type(name, tmp_path):
    scheme = SCHEMES[name]()
    model = ModelRecipe.named("mlp:hidden=32-16", (64,), 10, 0).build()
    shapes = [w.shape for w in model.get_weights()]
    result = train(
        model, DIGITS.train, scheme,
        cluster=Cluster.local(workers=2 if scheme.sync.exchanges else 1, backend="simulation"), epochs=20,
        validation_data=DIGITS.test, run_dir=tmp_path / "run", verbose=False,
    )  # fmt: skip
    assert [w.shape for w in model.get_weights()] == shapes
    assert {w.dtype.name for w in model.get_weights()} == {"float32"}
    assert result.metrics["test_accuracy"] > 0.9


def test_list_and_explain_print_json(capsys):
    assert dispatch(["list", "--json"]) == 0
    cards = {row["algorithm"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(cards) == list(SCHEMES)
    assert dispatch(["explain", "agn", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["idea"] == cards["agn"]["idea"]
    assert found["hyperparameters"]["learning_rate"]["default"] == str(SCHEMES["agn"]().learning_rate)
