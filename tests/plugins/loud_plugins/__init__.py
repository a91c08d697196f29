"""A defence, an attack and an accountant for Fedveil, from outside of its package."""
