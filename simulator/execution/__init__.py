"""The simulation: a run whose order of events comes from virtual time, and whose arithmetic is real.

It imports `virtual_time` of this package, and `common/`.
"""
