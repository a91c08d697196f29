"""The one error of the protocol: a party stops, and says why."""

from __future__ import annotations

from fedveil.core.errors import FedveilError


class Abort(FedveilError):
    """The protocol ends here for this party; the text is the reason and contains no secret."""
