"""Virtual time: the times of events on described machines, which need not exist. No TensorFlow, no arithmetic.

* the machines: `platform`, with quantities as in `units`; random numbers and the `distributions` of step times; the
  computing times of workers, `durations`; shared links, `resources` and `network`;
* the order of events: `schedule`, an event loop with a simulated `server`, and the waiting rules of `sync.release`; a
  `forecast` is made from the schedule of some rounds.

It imports `server.traffic` and `server.trace`, the `contract` of an algorithm, `sync`, and lower packages.
"""
