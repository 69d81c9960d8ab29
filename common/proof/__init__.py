"""The proof: a run that is on record against the papers' equations in NumPy.

`reference` is the equations, and imports NumPy alone; the rest finds out from a run directory what they are to
execute, and compares. It imports `problems` and the `contract`, for the data, the model and the hyperparameters of a
run, and `launch` and what is below nowhere else.
"""
