"""Machines that are fitted to a recorded run.

It imports `virtual_time` of this package, and `common/`.
"""
