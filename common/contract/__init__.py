"""The contract of an algorithm: the questions that a scheme answers.

Besides: the rounds of a worker, learning rates that fall, and the update rules that schemes are made of. It imports
`gates`, and what is below.
"""
