"""Makes pytest put this folder on the import path: tests of the folders below import `attack_helpers`."""
