"""The command line: flags, commands, and what they print.

It may import everything; nothing imports it but the start of the program.
"""
