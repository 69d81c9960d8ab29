"""The command line: flags, commands and their output.

It may import every other package; only the entry point of the program imports it.
"""
