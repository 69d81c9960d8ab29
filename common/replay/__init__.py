"""The replay of a recorded run by the papers' equations in NumPy.

The base needs NumPy alone: `recorded` reads a run, `comparison` judges it, and `reference` has what they compute.
Beside it, `adapters` has the transcriptions of the catalogue, and `replay` reads a run of it; these import `tasks`.
"""
