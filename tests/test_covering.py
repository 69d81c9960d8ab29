"""An executor is tested with the schemes of `COVER`: they have all that the schemes of the catalogue declare."""

from dataclasses import dataclass

from covering import CATALOGUE, COVER, declares
from distsgd.common.contract import Delay, Period, Scheme


def test_what_a_scheme_of_the_catalogue_declares_a_scheme_of_the_cover_declares():
    covered = set().union(*(declares(CATALOGUE[name]) for name in COVER))
    missing = {name: declares(scheme) - covered for name, scheme in CATALOGUE.items()}
    assert {name: words for name, words in missing.items() if words} == {}, "add one of these to COVER"


def test_no_scheme_of_the_cover_can_be_left_out():
    for name in COVER:
        others = set().union(*(declares(CATALOGUE[other]) for other in COVER if other != name))
        assert declares(CATALOGUE[name]) - others, name


def test_declarations_are_found_in_methods_values_and_rules():
    @dataclass(frozen=True, kw_only=True)
    class Own(Scheme):
        """Declares four things."""

        name = "own"
        communication_period: Period = 2
        delay: Delay = 1
        scalars = ("steps",)

        def worker_numbers(self):
            return {"late": 0.0}

    assert declares(Own()) == {"local steps", "overlap", "scalars", "sync = Async", "worker_numbers"}
