"""Virtual time: when things would happen on machines that are described, not there. No TensorFlow, no arithmetic.

* what the machines are like: `platform`;
* which event follows which: `order`.

It imports `engine.trace` (what an event on record is), the `contract` of an algorithm, `gates`, and what is below.
"""
