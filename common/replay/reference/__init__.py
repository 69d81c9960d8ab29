"""Every scheme in NumPy, float64, transcribed from the paper's equations. Imports NumPy alone, nothing of the package.

A recorded run is a total order of events on the server: (version, worker, staleness, accepted). Each transcription
executes the paper's equations in a given order and returns the center after every event.
"""
