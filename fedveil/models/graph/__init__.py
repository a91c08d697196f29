"""Models as graphs of operations: data, not code, so that a run folder can keep them and any process can run them."""
