"""Virtual time: when things would happen on machines that are described, not there. No TensorFlow, no arithmetic.

* what the machines are like: `platform`, by name in `presets`, with quantities as in `units`; how long a step takes,
  `step_times` and `durations`; shared links, `resources` and `network`; `crashes`; and `draws`, the random numbers;
* which event follows which: `order`, from the `schedule` of a run: the `plans` of its workers, a `clock`, the `server`
  with the rules of `release`, workers that leave and return (`churn`), and the `stamps` of each round; a `forecast`
  is made from the order of some rounds.

It imports `server.trace` (what an event on record is), the `contract` of an algorithm, `sync`, and what is below.
"""
