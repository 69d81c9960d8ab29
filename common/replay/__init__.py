"""The proof: a replay of a recorded run by the papers' equations in NumPy.

`reference` holds the equations, and imports NumPy alone. The other modules read from a run directory what is to be
executed, and compare the result. They import `data` and `contract`, for the data, the model and the hyperparameters
of a run, and otherwise `launch` and the packages below.
"""
