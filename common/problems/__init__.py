"""Data and models: those that have a name, and the user's own, checked and cut into shards.

It imports `engine` and what is below.
"""
