"""Virtual time: when things would happen on machines that are described, not there. No TensorFlow, no arithmetic.

* what the machines are like: `platform`, by name in `presets`, with quantities as in `units`; how long a step takes,
  `models` and `durations`; what is shared, `sharing` and `network`; `failures`; and `chance`, by which all is drawn;
* which event follows which: `order`, from the `course` of a run: the `plans` of its workers, a `clock`, the `books` of
  the ps with who is `waiting` for whom, who comes and goes (`presence`), and the `stamps` of each round; a `forecast`
  is made from the order of some rounds.

It imports `engine.trace` (what an event on record is), the `contract` of an algorithm, `gates`, and what is below.
"""
