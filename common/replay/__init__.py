"""The replay of a recorded run by the papers' equations in NumPy.

The base needs NumPy alone: `recorded` reads a run, `comparison` judges it, and `reference` has what they compute.
Beside it, `adapters` has the catalogue's equations, `with_codec` adds a codec to them, and `replay` reads its runs.
"""
