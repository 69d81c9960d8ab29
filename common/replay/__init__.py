"""The replay of a recorded run by the papers' equations in NumPy.

The base needs NumPy alone: `recorded` reads a run, `comparison` executes it and gives the verdict, and `reference` has
what they compute. `adapters` has the transcriptions of the catalogue, and `replay` reads a run of the catalogue, with
its data and hyperparameters. It imports `tasks` and the packages below, for these two.
"""
