"""Bounds that the papers state, each as a small function that a simulation can be held against.

`fed_cdp`: how far weights may move before a decision changes. `two_dp`: how far clients' models drift apart, what a
preimage tells, how noise slows convergence. `cpl`: how fast gradient descent converges on a convex objective. Names that
end in `printed` are a paper's own form where it does not hold or can be sharpened; the others are proved in docs/bounds.md
or in their docstrings. NumPy and SciPy only: nothing here is part of a compiled round.
"""
