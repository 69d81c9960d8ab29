"""The commands `simulate`, `advise` and `bandwidth`.

They import all other folders of this package, and `common/`.
"""
