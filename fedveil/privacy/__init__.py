"""Privacy: what each seat learns, and the account of it."""
