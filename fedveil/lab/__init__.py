"""The lab: a local web page to play in. What one clicks there is a config that one can script.

The web server (`app`, `guard`, `serve`) never imports JAX: whatever computes runs in worker processes (`pool`, `worker`,
`tasks`), so that the page answers while they compile, train or die.
"""
