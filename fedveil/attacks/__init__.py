"""Attacks on what a federated training shows, and the bench that scores them against the truth."""
