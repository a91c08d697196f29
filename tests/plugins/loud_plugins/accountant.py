"""`doubled`: twice the ε of privacy loss distributions."""

from fedveil.accounting.accountants import epsilon


class Doubled:
    """Twice the ε of accountant `pld`."""

    name = "doubled"
    certifies = False

    def epsilon(self, rounds, delta):
        found = epsilon(rounds, delta, "pld")
        return None if found is None else 2 * found
