"""The record of a run, and its display.

Run directory, trace of events, metrics, checkpoints, terminal display, plot and callbacks. It imports `cluster` and the
packages below.
"""
