"""`replay RUN_DIR`: the record of a run against the NumPy reference, in the hands of users."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from distsgd.algorithms import SCHEMES, AsyncSGD, SignSGDMV
from distsgd.common import UserError
from distsgd.common.cli.main import dispatch
from distsgd.common.contract.rounding import only_takes_gradients
from distsgd.common.data.recipes import Dataset, make
from distsgd.common.record_format import EVENTS, read_config
from distsgd.common.replay import comparison
from distsgd.common.replay.adapters import TRANSCRIPTIONS
from distsgd.common.replay.comparison import CERTAIN, References, Verdict, _disturbed, judge
from distsgd.common.replay.recorded import Hyperparameters, _computed
from distsgd.common.replay.replay import read, replay
from distsgd.common.replay.with_codec import PUSH_GRADIENTS
from distsgd.common.tasks.observer import Observer
from runs import DIGITS, change, record

APART = {"exact": 0.0, "single": 3e-6, "disturbed": 4e-5}  # executions of a run
SMALL = ["--steps", "40", "--model", "mlp:hidden=8", "--seed", "3", "--backend", "threads"]


def run(folder, name, *arguments):
    assert dispatch([name, *SMALL, "--run-dir", str(folder), *arguments]) == 0
    return folder


def shown(folder, capsys):
    """The exit code, and the lines of the command by their names."""
    capsys.readouterr()
    code = dispatch(["replay", str(folder)])
    lines = capsys.readouterr().out.splitlines()
    return code, dict(line.split("  ", 1) for line in lines)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of asynchronous SGD in which three workers have taken turns."""
    folder = tmp_path_factory.mktemp("proof") / "run"
    turns = np.random.default_rng(0).permutation([0, 1, 2] * 20).tolist()
    record(AsyncSGD(), folder, backend="threads", steps=20, hidden=(8,), schedule=turns)
    return folder


@pytest.fixture
def copy(recorded, tmp_path):
    return shutil.copytree(recorded, tmp_path / "copy")


def test_every_scheme_of_the_catalogue_but_hogwild_is_transcribed():
    assert set(TRANSCRIPTIONS) == set(SCHEMES) - {"hogwild"}


@pytest.mark.parametrize("name", TRANSCRIPTIONS)
def test_a_transcription_declares_what_the_scheme_does(name):
    scheme, equations = SCHEMES[name](), TRANSCRIPTIONS[name]
    several = scheme.sync.updates_per_round(3) != 3
    assert equations.kind == ("synchronous" if several else "asynchronous" if scheme.sync.exchanges else "alone")
    if scheme.sync.uses_ps:
        assert (name in PUSH_GRADIENTS) == only_takes_gradients(scheme)


@pytest.mark.parametrize(
    "arguments",
    [
        ["downpour", "--workers", "3", "--l2", "0.01", "--clip-norm", "1", "--skew", "dirichlet:alpha=0.5"],
        ["trimmed_mean", "--workers", "3", "--hostile", "sign-flip:1", "--backend", "threads", "--steps", "20"],
        ["local_sgd", "--workers", "3", "--hostile", "sign-flip:1", "--backend", "simulation", "--steps", "20"],
        ["async_sgd", "--dataset", "sparse:examples=480,features=200,active=5", "--model", "logistic"],
        ["sagn", "--stop-at-version", "3"],
        ["serial", "--model", "softmax"],
        ["hierarchical", "--devices-per-worker", "2", "--ema-decay", "0.9"],
        ["agn", "--backend", "processes", "--ps", "2"],
    ],
    ids=lambda arguments: " ".join(arguments[:3]),
)
@pytest.mark.rotating
def test_the_record_of_a_run_is_what_the_equations_say(arguments, warm, tmp_path, capsys):
    name, *rest = arguments
    folder = run(tmp_path / "run", name, *rest)
    result = json.loads((folder / "result.json").read_text())
    code, lines = shown(folder, capsys)
    assert (code, lines["verdict"].strip()) == (0, "the run did what the paper's equations say")
    assert lines["algorithm"].strip().startswith(f"{name}, {result['workers']} worker")
    assert f"{result['updates']} updates of the center" in lines["events"]
    assert float(lines["relative error"].split()[0]) < 1e-5


@pytest.fixture(scope="module")
def voted(tmp_path_factory):
    """A run of majority votes, so long that votes on gradients near zero take its center elsewhere."""
    folder = tmp_path_factory.mktemp("voted") / "run"
    options = {"workers": 2, "steps": 200, "batch_size": 32, "hidden": (128,), "evaluate_every": 10}
    with pytest.MonkeyPatch.context() as patch:  # on a busy machine some evaluations would have no time
        patch.setattr(Observer, "_in_time", lambda self, points, ended: points)
        record(SignSGDMV(), folder, backend="threads", seed=3, test=DIGITS.test, **options)  # in this process
    assert {*range(10, 200, 10)} <= read(folder, SCHEMES).losses.keys()
    return folder


@pytest.mark.rotating
def test_a_run_that_float32_makes_diverge_is_judged_by_earlier_test_losses(voted, capsys):
    verdict = replay(voted, SCHEMES)
    assert CERTAIN < verdict.error < verdict.limit
    assert (verdict.agrees, verdict.differs) == (True, False)
    code, lines = shown(voted, capsys)
    assert code == 0
    until = f"the run did what the paper's equations say up to update {verdict.until}, by its test losses"
    assert lines["verdict"].strip().startswith(until)
    assert 20 < verdict.until < 200


@pytest.mark.parametrize(
    ("rule", "factor"), [("learning_rate", 1.01), ("learning_rate", 0.99), ("momentum", 0.99), ("momentum", 0.5)]
)
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_such_a_run_differs_from_a_rule_with_another_number(rule, factor, voted):
    run = read(voted, SCHEMES)
    values = Hyperparameters(run.hyperparameters, **{rule: factor * run.hyperparameters[rule]})
    assert judge(replace(run, hyperparameters=values)).differs


@pytest.mark.rotating
def test_such_a_run_differs_if_its_later_losses_are_of_other_versions(voted):
    run = read(voted, SCHEMES)
    losses = {version: run.losses[version - 100 if version > 120 else version] for version in range(10, 200, 10)}
    verdict = judge(replace(run, losses=losses))
    assert verdict.differs
    assert verdict.reason.startswith("the test loss at update 1")


@pytest.mark.rotating
def test_a_run_that_is_resumed_is_replayed_from_its_beginning(warm, tmp_path, capsys):
    run(tmp_path / "run", "async_sgd", "--checkpoint-steps", "30")
    run(tmp_path / "run", "async_sgd", "--checkpoint-steps", "30", "--steps", "60")
    code, lines = shown(tmp_path / "run", capsys)
    assert (code, lines["algorithm"].strip()) == (0, "async_sgd, 2 workers, 60 local steps each")
    # Replay applies one set of settings to all rounds.
    others = {"skew=None": "dirichlet:alpha=1", "clip_norm=None": "1", "l2=0.0": "0.1", "hostile=None": "sign-flip:1"}
    for before, after in others.items():
        option = "--" + before.partition("=")[0].replace("_", "-")
        with pytest.raises(UserError, match=f"holds checkpoints of a run with {before}: resume with the same"):
            run(tmp_path / "run", "async_sgd", "--steps", "80", option, after)


@pytest.mark.rotating
def test_a_replay_without_the_package_of_the_data_names_that_package(copy, monkeypatch):
    """It said that the data were the script's own."""
    monkeypatch.setattr("distsgd.common.data.recipes.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^the data set digits comes with scikit-learn, which is not installed"):
        replay(copy, SCHEMES)


def test_a_verdict_has_the_factors_that_the_docs_name():
    """An error below 0.5 % of what the center has moved, ten times that of float32, noise of 1e-5 of a gradient."""
    assert (comparison.LEAST, comparison.DISTURBED, comparison.WRONG) == (2e-6, 1e-5, 1.01)
    run = SimpleNamespace(equations=SimpleNamespace(jumps=False))
    assert [Verdict(run, error, limit=1.0, moved=0.1).agrees for error in (0.00049, 0.00051)] == [True, False]
    assert [Verdict(run, error, limit=1e-4, moved=1.0).differs for error in (0.99e-4, 1.01e-4)] == [False, True]
    executions = {name: SimpleNamespace(center=np.array([1.0 + off, 0])) for name, off in APART.items()}
    smooth, jumping = (SimpleNamespace(**executions | {"disturbed": own}) for own in (None, executions["disturbed"]))
    assert References.limit.fget(smooth) == pytest.approx(10 * APART["single"])
    assert References.limit.fget(jumping) == pytest.approx(2 * APART["disturbed"])
    at_least = {name: SimpleNamespace(center=np.array([1.0, 0])) for name in APART}
    assert References.limit.fget(SimpleNamespace(**at_least)) == 1e-5
    assert References.limit.fget(SimpleNamespace(**at_least | {"disturbed": None})) == 2e-6
    at_least["disturbed"].center[0] = 1.6  # two chaotic runs
    assert References.limit.fget(SimpleNamespace(**at_least)) == pytest.approx(10 * 0.6)
    noise = _disturbed(lambda x, k, t: np.r_[np.full(10_000, 3.0), np.zeros(10_000)], 1e-5)(None, 0, 0)
    assert noise[:10_000].std() == pytest.approx(1e-5 * 3 / np.sqrt(2), rel=0.05)
    assert not noise[10_000:].any()


def test_a_loss_that_has_vanished_is_compared_with_the_largest():
    """A run of `ef21_muon` with 64 workers had a loss of 6e-5 where the equations had 5e-9."""
    exact = SimpleNamespace(losses=np.array([1.2, 0.3, 5e-9]))
    apart = References._apart(SimpleNamespace(exact=exact), np.array([1.2, 0.6, 6e-5]))
    np.testing.assert_allclose(apart, [0, 1, 0.05], rtol=1e-3)


@pytest.mark.parametrize(
    ("error", "until", "agrees"),
    [
        (9e-6, 0, True),
        (1.1e-5, 0, False),
        (0.004, 80, True),
        (0.004, 100, True),
        (0.006, 80, True),
        (0.006, 100, False),
    ],
)
def test_a_run_with_jumps_agrees_as_far_as_its_losses_do_and_at_its_end_with_its_center(error, until, agrees):
    run = SimpleNamespace(equations=SimpleNamespace(jumps=True), result={"updates": 100})
    assert Verdict(run, error, limit=1.0, until=until).agrees == agrees


@pytest.mark.parametrize(
    ("last", "wrong", "found"),
    [
        (1e-5, 1.01, 40), (1e-5, 1 + 1e-5, 30), (5e-5, 1.01, 30), (9e-3, 1.01, 30),
        (1.1e-2, 1.01, "the test loss at update 40 is 1.1e-02 "),
    ],
)  # fmt: skip
def test_losses_prove_a_run_as_far_as_float32_explains_them_and_a_wrong_rate_would_be_told(
    last, wrong, found, monkeypatch
):
    """In float32 losses are 2e-6 apart, with disturbed gradients 1e-3; those of a wrong rate end with `wrong`."""
    others = SimpleNamespace(losses=np.array([1.01, 1.01, 1.01, wrong]))
    monkeypatch.setattr(comparison, "replace", lambda run, **_: SimpleNamespace(execute=lambda: others))
    references = object.__new__(References)
    references.exact, references.single, references.disturbed = (
        SimpleNamespace(losses=np.full(4, 1 + apart)) for apart in (0, 2e-6, 1e-3)
    )
    losses = {10: 1 + 1.9e-5, 20: 1.0, 30: 1 - 1.9e-5, 40: 1 + last}
    references.run = SimpleNamespace(losses=losses, hyperparameters=Hyperparameters({"learning_rate": 0.1}))
    until, reason = references.course()
    assert reason.startswith(found) if isinstance(found, str) else (until, reason) == (found, "")
    losses[10] = 1 + 2.1e-5  # what follows a difference is no proof
    assert references.course()[0] == 0


def test_a_record_with_more_or_fewer_updates_than_messages_is_refused(recorded):
    run = read(recorded, SCHEMES)
    event = run.trace["event"].copy()
    event[-1] = EVENTS.index("pull")
    fewer = replace(run, trace={**run.trace, "event": event})
    for wrong in (fewer, replace(run, result={**run.result, "updates": 59})):
        with pytest.raises(ValueError, match="how many updates there were"):
            wrong.execute()
    alone = replace(run, equations=replace(run.equations, kind="alone"))  # each step is an update
    with pytest.raises(ValueError, match="how many steps there were"):
        replace(alone, steps=59).execute()
    with pytest.raises(UserError, match="some were left out"):
        replace(alone, steps=61).execute()


@pytest.mark.parametrize(
    ("optimizers", "codec", "jumps"),
    [
        ({}, "float32", False),
        ({"inner_optimizer": "adamw", "server_optimizer": "adam"}, "float32", False),
        ({"inner_optimizer": "lion:weight_decay=0.1"}, "float32", True),
        ({"server_optimizer": "yogi"}, "float32", True),
        ({}, "int8", True),
    ],
)
def test_signs_and_codecs_are_jumps(optimizers, codec, jumps, recorded):
    run = read(recorded, SCHEMES)
    run = replace(run, equations=replace(run.equations, codec=codec), hyperparameters=Hyperparameters(optimizers))
    assert run.has_jumps == jumps


def test_losses_of_averages_prove_nothing_and_a_change_of_gradients_makes_them_dense(recorded, monkeypatch):
    monkeypatch.setattr("distsgd.common.replay.recorded.recorded_losses", lambda folder: {1: 0.5})
    rows = np.zeros((60, 2), np.int32), np.ones((60, 2), np.float32)
    sparse = Dataset((rows, np.zeros(60)), (rows, np.zeros(60)), 2, features=5)
    config = read_config(recorded)
    for changes in ({}, {"ema_decay": 0.9}, {"hostile": "sign-flip:1"}, {"l2": 0.1}):
        losses = _computed(recorded, config | changes, True, make)["losses"]
        assert bool(losses) == ("ema_decay" not in changes)
        of_sparse = _computed(recorded, config | changes | {"model": "logistic"}, True, lambda _: sparse)
        assert of_sparse["sparse"] == (not changes)


def test_an_order_that_was_changed_is_noticed(copy, capsys):
    with np.load(copy / "trace.npz") as file:
        worker = file["worker"]
    assert replay(copy, SCHEMES).agrees
    change(copy, "trace.npz", worker=worker[::-1])
    code, lines = shown(copy, capsys)
    assert code == 1
    assert lines["verdict"].strip().startswith("the run DIFFERS from the paper's equations: row ")
    assert judge(read(copy, SCHEMES)).error > 1e-5  # and so does the center


def test_a_center_that_was_changed_is_noticed(copy, capsys):
    with np.load(copy / "center.npz") as file:
        center = file["center"]
    change(copy, "center.npz", center=center * np.float32(1 + 1e-4))
    assert shown(copy, capsys)[0] == 1
    change(copy, "center.npz", center=center * np.float32(np.nan))
    assert shown(copy, capsys)[0] == 1


@pytest.mark.parametrize(
    "center",
    [lambda c: c * 0 - 2.0**63, lambda c: c * 0 + 3e38, lambda c: c * 0, lambda c: np.append(c[1:], np.inf)],
    ids=["-2^63", "the largest", "zero", "infinite"],
)
def test_an_absurd_center_is_noticed(center, copy):
    """Its norm was infinite in float32, and any distance relative to that is zero."""
    with np.load(copy / "center.npz") as file:
        changed = center(file["center"]).astype(np.float32)
    change(copy, "center.npz", center=changed)
    assert not replay(copy, SCHEMES).agrees


def test_a_center_of_another_kind_is_refused(copy):
    with np.load(copy / "center.npz") as file:
        center = file["center"]
    for other in (center.astype(np.float64), center[None]):
        change(copy, "center.npz", center=other)
        with pytest.raises(UserError, match=r"center must be a vector of float32"):
            replay(copy, SCHEMES)


def test_a_result_with_other_updates_is_noticed(copy):
    for updates in (0, 59, 61, 2**62):
        change(copy, "result.json", updates=updates)
        assert "updates" in (verdict := replay(copy, SCHEMES)).reason
        assert not verdict.agrees


def test_an_empty_record_is_noticed(copy):
    with np.load(copy / "trace.npz") as file:
        change(copy, "trace.npz", **{name: column[:0] for name, column in file.items()})
    assert replay(copy, SCHEMES).reason


def test_shards_other_than_the_recorded_ones_are_noticed(copy):
    change(copy, "config.json", skew="dirichlet:alpha=0.5")
    assert replay(copy, SCHEMES).error > 1e-5


@pytest.mark.parametrize("name", ["downpour", "sync_sgd", "easgd"])
def test_a_record_that_no_run_of_the_scheme_can_make_is_no_traceback(name, copy, capsys):
    config = {"algorithm": name, "hyperparameters": {}}
    change(copy, "config.json", **config)
    code, lines = shown(copy, capsys)
    assert code == 1
    assert lines["verdict"].strip().startswith("the run DIFFERS from the paper's equations")


@pytest.mark.parametrize(
    ("file", "values", "says"),
    [
        ("config.json", {"record": "off"}, "no trace.npz, as the run was recorded with record=off"),
        ("config.json", {"dataset": "own data"}, "a model or data of its own"),
        ("config.json", {"model": "sequential"}, "a model or data of its own"),
        ("config.json", {"model": "cnn"}, "no gradient of the model cnn"),
        ("config.json", {"model": "mlp:hidden=9"}, "parameters"),
        ("config.json", {"algorithm": "hogwild"}, "hogwild has no reference in NumPy: it takes no lock"),
        ("config.json", {"algorithm": "my_scheme"}, "my_scheme has no reference in NumPy: it is not transcribed"),
        ("config.json", {"codec": "int3"}, "unknown codec 'int3'. Did you mean int8"),
        (
            "config.json",
            {"hyperparameters": {"learning_rate": "Schedule(...)"}},
            "replay needs constant rates",
        ),
        (
            "config.json",
            {"algorithm": "agn", "hyperparameters": {}, "earlier_step_targets": [7]},
            "shorter than a period",
        ),
        ("trace.npz", {"worker": np.full(60, 3)}, "worker must be at least 0 and less than 3"),
        ("trace.npz", {"worker": np.zeros(59, int)}, "of one length"),
        ("trace.npz", {"accepted": np.zeros(60, int)}, "were not finite"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_one_line(file, values, says, copy):
    change(copy, file, **values)
    with pytest.raises(UserError, match=says):
        dispatch(["replay", str(copy)])


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("config.json", "not a run directory"),
        ("result.json", "has not ended: it has no result"),
        ("trace.npz", "has no trace.npz"),
        ("center.npz", "has no center.npz"),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_named(file, says, copy):
    (copy / file).unlink()
    with pytest.raises(UserError, match=says):
        dispatch(["replay", str(copy)])
    (copy / file).write_text("no such thing")
    with pytest.raises(UserError, match=file):
        dispatch(["replay", str(copy)])


def test_files_of_something_else_are_no_run(copy):
    (copy / "config.json").write_text("{}")
    with pytest.raises(UserError, match="not those of a run: they have no 'algorithm'"):
        dispatch(["replay", str(copy)])
