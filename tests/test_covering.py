"""An executor is tested with the schemes of `COVER`: they have all that the schemes of the catalogue declare."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import pytest
from test_group import ON_THREADS, is_simulated

from covering import CATALOGUE, COVER, COVER_OF_OPTIMIZER, ON_PROCESSES, declares, plays
from distsgd.common.contract import Delay, EachWorker, Period, Scheme

COVERS = pytest.mark.parametrize(("cover", "asks"), [(COVER, declares), (COVER_OF_OPTIMIZER, plays)])


@COVERS
def test_what_a_scheme_of_the_catalogue_asks_a_scheme_of_the_cover_asks(cover: Collection[str], asks: Callable):
    covered = set().union(*(asks(CATALOGUE[name]) for name in cover))
    missing = {name: asks(scheme) - covered for name, scheme in CATALOGUE.items()}
    assert {name: words for name, words in missing.items() if words} == {}, "add one of these to the cover"


@COVERS
def test_no_scheme_of_a_cover_can_be_left_out(cover: Collection[str], asks: Callable):
    for name in cover:
        others = set().union(*(asks(CATALOGUE[other]) for other in cover if other != name))
        assert asks(CATALOGUE[name]) - others, name


def test_the_graph_of_a_run_is_executed_with_all_of_the_cover_that_has_an_order():
    left = {*COVER} - {*ON_THREADS} - {*ON_PROCESSES}
    assert all(is_simulated(CATALOGUE[name]) for name in left), "in virtual time alone, with all of the cover"


def test_declarations_are_found_in_methods_values_and_rules():
    @dataclass(frozen=True, kw_only=True)
    class Own(Scheme):
        """Declares four things."""

        name = "own"
        communication_period: Period = 2
        delay: Delay = 1
        scalars = ("steps",)

        def global_variables(self, center):
            return {"late": EachWorker(0.0)}

    own = {"global_variables", "kept: numbers"}
    assert declares(Own()) == {"local steps", "overlap", "scalars", "sync = Async", *own}
