"""The site's generated pages; the build itself, with warnings as errors, is a step of `.ci/run`."""

import re
import sys

import pytest
from latex2mathml.converter import convert

from distsgd.algorithms import SCHEMES
from distsgd.benchmarks import algorithm_groups, algorithm_icons, algorithm_pages, algorithm_pictures, equations
from distsgd.common.cli.catalogue import aliases


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("push g,  x ← reply", r"push $g,$&emsp;$x \leftarrow$ reply"),
        ("θ ← θ − η g_k(x)", r"$\theta \leftarrow \theta - \eta g_{k}(x)$"),
        ("c ← (θ_old − θ)/(ε H)", r"$c \leftarrow (\theta_{\mathrm{old}} - \theta)/(\varepsilon H)$"),
        ("λ₀ / √(q + 10⁻⁷)", r"$\lambda_{0}/ \sqrt{q + 10^{-7}}$"),
        ("m⁺_k ← (1 + τ)^−p Δ²", r"$m^{+}_{k} \leftarrow (1 + \tau)^{-p} \Delta^{2}$"),
        ("v = sign(Σ m_k),  then release", r"$v = \operatorname{sign}(\sum m_{k})$,  then release"),
        ("g   (or their sum)", "$g$ &emsp; (or their sum)"),
        ("stop at a multiple of the period", "stop at a multiple of the period"),
        ("a, b ← B", r"$a, b \leftarrow B$"),
    ],
)
def test_equations_become_tex_between_words(written, shown):
    assert equations.markdown(written) == shown


@pytest.mark.parametrize(
    ("name", "task", "lines"),
    [
        ("diloco", "worker, each step", r"x ← AdamW\(.* its moments are kept over periods and never leave the worker"),
        ("sync_sgd", "server", "of W = R .* present θ:|θ ← θ − η .*"),
        ("streaming_diloco", "τ steps before the end of a round", r"push x\[p\], .*"),
        ("halos", "K pushes after the last merge", "send p_r − θ_r to the global server"),
        ("softsync", "then", "reply θ"),
    ],
)
def test_an_equation_that_takes_two_lines_is_one_row(name, task, lines):
    block = algorithm_pages.docstring(sys.modules[SCHEMES[name].__module__]).split("\n\n")[1]
    rows = dict(equations.rows_of(block.splitlines()))
    assert re.fullmatch(lines.replace("|", "\n"), "\n".join(rows[task]))


@pytest.mark.parametrize("kind", SCHEMES.values(), ids=lambda kind: kind.name)
def test_each_algorithm_has_equations_that_render_and_says_when_to_use_it(kind):
    text = "\n".join(algorithm_pages.described(kind))
    found = re.findall(r"\$(.+?)\$", text)
    assert found
    assert all(convert(each).startswith("<math") for each in found)
    assert not [each for each in found if set(each) & {*equations.SIGNS, *equations.GREEK, *"√₀²"}]
    assert "**Use.** " in text
    assert "**Reference.** " in text


def test_the_page_of_an_algorithm_has_its_other_names():
    found = {name: " ".join(algorithm_pages.other_names(kind)) for name, kind in SCHEMES.items()}
    assert found["local_sgd"] == "Also called `fedavg`. It is `diloco --outer-learning-rate 1 --momentum 0`."
    assert "`ddp` (`--buckets 4`)" in found["all_reduce"]
    assert found["ringmaster"].startswith("It is `")
    text = " ".join(found.values())
    assert not [name for name in aliases() if f"`{name}`" not in text]


def test_each_algorithm_has_an_exercise_with_an_answer():
    assert list(algorithm_pages.exercises()) == list(SCHEMES)


def test_the_identities_of_a_page_are_those_of_the_tests():
    found = algorithm_pages.identities()
    assert "* With one worker `EFSGD(learning_rate=ETA, share=1.0)` is `Serial`." in found["ef_sgd"]
    assert "* `SyncSGD()` is `AllReduce()`." in found["all_reduce"]
    assert found["sync_sgd"].count("* `SyncSGD()` is `AllReduce()`.") == 1


def test_the_picture_shows_the_wait_of_a_synchronous_scheme_alone(tmp_path):
    figures = {}
    for name in ("sync_sgd", "async_sgd"):
        scheme = algorithm_pictures.for_the_picture(SCHEMES[name])
        figures[name] = algorithm_pictures.timeline(scheme, tmp_path / f"{name}.svg")
        assert (tmp_path / f"{name}.svg").stat().st_size > 1000
    assert figures["sync_sgd"].waiting > 0.2
    assert figures["async_sgd"].waiting == 0
    assert figures["async_sgd"].staleness > 2


def icon_of(name):
    scheme = algorithm_pictures.for_the_picture(SCHEMES[name])
    schedule, traffic, rounds = algorithm_pictures.schedule_of(scheme)
    tracks = algorithm_pictures.tracks_of(scheme, schedule)
    return algorithm_icons.icon(scheme, tracks, traffic, rounds, 4 * algorithm_pictures.PARAMETERS)


def test_the_icons_of_algorithms_with_different_rules_differ_in_more_than_colour():
    names = [
        "async_sgd",
        "hogwild",
        "downpour",
        "aeasgd",
        "k_batch_sync",
        "hierarchical",
        "ad_psgd",
        "ssp",
        "sync_sgd",
        "k_sync",
    ]
    names += ["signsgd_mv", "local_sgd", "streaming_diloco", "co2", "all_reduce", "powersgd", "d_psgd", "noloco"]
    icons = {name: re.sub(r"#\w{6}", "", icon_of(name)) for name in [*names, "krum"]}
    assert len(set(icons.values())) == len(names)
    assert icons["krum"] == icons["sync_sgd"]
    assert max(map(len, icons.values())) < 10_000


def test_each_algorithm_is_on_the_page_of_all_and_on_that_of_its_group():
    found = dict(algorithm_groups.pages())
    cards = {page: re.findall(r"^:link: (\w+)$", text, re.MULTILINE) for page, text in found.items()}
    everything = cards.pop("index")
    assert sorted(everything) == sorted(SCHEMES)
    assert [name for names in cards.values() for name in names] == everything
    assert max(map(len, cards.values())) <= 20
    assert {"d_psgd", "ad_psgd"} <= {*cards["group-gossip"]}


def test_what_a_command_printed_is_kept_for_each_algorithm():
    outputs = algorithm_pages.read_results("outputs.json")
    assert list(outputs) == list(SCHEMES)
    for name, text in outputs.items():
        assert text.startswith(f"{name}: completed")
        assert "test accuracy" in text
