"""Virtual time: the times of events on described machines, which need not exist. No TensorFlow, no arithmetic.

* the machines: `platform`, by name in `presets`, with quantities as in `units`; the time of a step,
  `step_times` and `durations`; shared links, `resources` and `network`; `crashes`; and `draws`, the random numbers;
* the order of events: `order`, from the `schedule` of a run: the `plans` of its workers, a `clock`, the `server`
  with the rules of `release`, workers that leave and return (`churn`), and the `stamps` of each round; a `forecast`
  is made from the order of some rounds.

It imports `server.trace` (the columns of a recorded event), the `contract` of an algorithm, `sync`, and lower packages.
"""
