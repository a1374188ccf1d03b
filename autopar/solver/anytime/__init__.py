"""TimedProblem -> assignment and bound, better the longer it runs.

Nothing here is imported by `autopar.solver`: numba takes a while to load.
"""
