"""The page that answers by sliders: the grid is that of `advise`, and the page needs no network."""

import json
import re

import pytest

from distsgd.benchmarks import advice, choose_page
from distsgd.benchmarks.advice import Point

POINTS = {point.key: point for point in advice.points()}


@pytest.fixture(scope="module")
def grid():
    return json.loads(advice.FILE.read_text())


def test_the_grid_has_an_answer_for_each_position_of_the_sliders(grid):
    assert list(grid) == list(POINTS)
    for key, point in POINTS.items():
        shown = choose_page.shown(point, grid[key])
        assert shown["bars"]["colour"].count(choose_page.CHOSEN) == 1
        assert shown["bars"]["gradients"] == sorted(shown["bars"]["gradients"], reverse=True)
        assert re.sub("<.*?>", "", shown["command"]) == point.command
    assert len({found["answer"].split()[1] for found in grid.values()}) >= 5


@pytest.mark.rotating("others")
@pytest.mark.parametrize(
    "point",
    [
        Point(workers=4, link=3, step=2, parameters="1M"),
        Point(workers=4, link=1, step=1, parameters="10M"),
        Point(workers=16, link=3, step=1, parameters="1000M"),
    ],
    ids=lambda point: point.key,
)
def test_a_point_of_the_grid_has_the_answer_of_the_command_that_the_page_shows(point, grid, run_main):
    code, said, _ = run_main(*point.command.removeprefix("bash run.sh ").split(), "--json")
    assert code == 0
    found = json.loads(said)
    assert found["recommendation"] == grid[point.key]["answer"], (
        "execute bash run.sh advice --output benchmarks/results again"
    )
    gradients = {f"{row['gradients']:.3g}" for row in found["rows"]}
    assert {f"{rate:.3g}" for _, rate, _ in grid[point.key]["rows"]} <= gradients


def test_the_sliders_need_no_network_and_without_scripts_the_command_is_there(tmp_path):
    page = choose_page.sliders()
    sources = re.findall(r'src="\.\./_static/(\S+?)"', page)
    choose_page.copy_scripts(tmp_path)
    assert sorted(sources) == sorted(str(file.relative_to(tmp_path)) for file in tmp_path.glob("*/*"))
    assert len(re.findall(r"<script[^>]* src=", page)) == len(sources)
    assert choose_page.START.command in re.sub("<.*?>", "", page.partition("<noscript>")[0])
