"""A worker's local variables and its round, as TensorFlow graphs.

It imports `server` and the folders below.
"""
