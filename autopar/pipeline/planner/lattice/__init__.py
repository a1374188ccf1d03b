"""Splits of a branching graph into stages of least load: chains in the lattice of its downsets.

Imported only where a workload is solved: numba takes a while to load.
"""
