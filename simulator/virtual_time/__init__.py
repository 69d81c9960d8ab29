"""Virtual time: the times of events on described machines, which need not exist. No TensorFlow, no arithmetic.

* the computing times of workers, `durations`, on the machines of `common/cluster/platform.py`; shared links,
  `resources`, `links` and `network`;
* the order of events: `schedule`, an event loop with a `simulated_server`, and the rules of
  `common/sequencer.py`; a `forecast` is made from the schedule of some rounds; `layers` computes the time of a step
  whose messages travel while it computes.

It imports `common/` alone: `server.traffic` and `server.trace`, the `contract` of an algorithm, `sync`, and what is
below them.
"""
