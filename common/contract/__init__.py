"""The contract of an algorithm: the questions that a scheme answers, its rounds, its learning rates, and the update
rules that schemes are made of. It imports `gates`, and what is below.
"""
