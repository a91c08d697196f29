"""Attacks that rebuild examples from gradients: by gradient matching, or in closed form."""
