"""The engine: what a worker does in a round, and the atomic events on the parameter server, as TensorFlow graphs.

It imports the `contract` of an algorithm, `gates`, and the packages below.
"""
