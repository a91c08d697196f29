"""The hazards of differential privacy in practice, as NIST SP 800-226 sorts them, and what a run shows of each.

`held`: the run itself shows that the condition is met. `not held`: the run shows that it is not. `not known`: no file
of a run shows it, so a person has to answer. The wording is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedveil.report.gather import Run
from fedveil.report.glossary import delta_text, weak
from fedveil.report.summary import joined
from fedveil.report.tables import number
from fedveil.report.verdict import verdicts

HELD, NOT_HELD, NOT_KNOWN = "held", "not held", "not known by this run"


@dataclass(frozen=True)
class Hazard:
    """One hazard, its state in a run, and why."""

    name: str
    state: str
    why: str


def hazards(run: Run) -> list[Hazard]:
    """Every hazard, in the order: the guarantee, the algorithm, the implementation, the deployment."""
    of_account = [_epsilon(run), _delta(run), _unit(run), _trust(run), _bounds(run), _composition(run)]
    floats = _floats(run)
    if run.account_lost:  # without an account nothing follows from the absence of certificates
        why = "the account of this run cannot be computed here"
        of_account = [Hazard(one.name, NOT_KNOWN, why) for one in of_account]
        floats = Hazard(floats.name, NOT_KNOWN, why)
    return [
        *of_account,
        Hazard("Other releases from the same data are counted", NOT_KNOWN, "a run knows of itself alone"),
        _tuned(run),
        _secret(run),
        floats,
        Hazard("Run times reveal nothing of the data", NOT_KNOWN, "timing is not measured"),
        _evaluation(run),
        Hazard(
            "The data is guarded where it is kept, and was collected sparingly", NOT_KNOWN, "outside of any training"
        ),
    ]


def _proofs(run: Run) -> list[tuple[str, float, float]]:
    found = [(one.adversary.inside, row) for one in verdicts(run) for row in one.proofs]
    return [(name, row.epsilon or 0.0, row.delta or 0.0) for name, row in found]


def _epsilon(run: Run) -> Hazard:
    name, proofs = "ε is small enough to rule something out", _proofs(run)
    loose = list(dict.fromkeys(who for who, epsilon, delta in proofs if weak(epsilon, delta)))
    if not proofs:
        return Hazard(name, NOT_HELD, "there is no certified ε")
    if loose:
        return Hazard(name, NOT_HELD, f"it is too large for some unit against {joined(loose)}")
    return Hazard(
        name, HELD, f"certified against {joined(list(dict.fromkeys(who for who, _, _ in proofs)))}, no one else"
    )


def _delta(run: Run) -> Hazard:
    name, proofs = "δ is far below one in the number of people", _proofs(run)
    if not proofs:
        return Hazard(name, NOT_HELD, "there is no certified δ")
    largest, held = max(delta for _, _, delta in proofs), run.config.data.clients
    told = f"δ is {delta_text(largest)}; there are {held} clients, and how many people they hold is in no file"
    return Hazard(name, NOT_HELD, told) if largest * held >= 1 else Hazard(name, NOT_KNOWN, told)


def _unit(run: Run) -> Hazard:
    name = "The unit that is protected is a person, with all that is theirs"
    if any(run.best(one.tap, "client") for one in verdicts(run)):
        why = "some certificate is for all of one client: whether a person is in one client only is in no file"
        return Hazard(name, NOT_KNOWN, why)
    if _proofs(run):
        return Hazard(name, NOT_KNOWN, "certificates are for one record: whether a person has one only is in no file")
    return Hazard(name, NOT_HELD, "nothing is certified for any unit")


def _trust(run: Run) -> Hazard:
    name = "Nobody has to be trusted with raw updates"
    open_to = [one.adversary.inside for one in verdicts(run) if not one.proofs]
    if open_to:
        return Hazard(name, NOT_HELD, f"nothing is certified against {joined(open_to)}")
    return Hazard(name, HELD, "every adversary on this page has a certificate")


def _bounds(run: Run) -> Hazard:
    name = "The influence of one unit is bounded before noise is added"
    if not _proofs(run):
        return Hazard(name, NOT_HELD, "no mechanism of this run has a certificate")
    return Hazard(name, HELD, "the clip that ran is part of the mechanism that is accounted")


def _composition(run: Run) -> Hazard:
    name = "Losses of all rounds are added up"
    if not _proofs(run):
        return Hazard(name, NOT_HELD, "there is no certified loss to add up")
    told = (
        f"the account is of the {number(run.rounds)} rounds that the run recorded, lost and repeated answers included"
    )
    return Hazard(name, HELD, told)


def _tuned(run: Run) -> Hazard:
    name = "Settings were not tuned on the same data"
    if run.info.get("tuned_on_data"):
        return Hazard(name, NOT_HELD, "they were: no ε here counts what that gave away")
    return Hazard(name, NOT_KNOWN, "a run does not know what was tried before it")


def _secret(run: Run) -> Hazard:
    name = "Noise and samples are drawn from a secret"
    if run.config.train.noise_seed is not None:
        return Hazard(name, NOT_HELD, "train.noise_seed is set: anyone with the config can compute the noise")
    if (run.path / "secret.key").is_file():
        why = "drawn from a secret of the operating system, kept in secret.key: delete it after the last attack"
        return Hazard(name, HELD, why)
    return Hazard(name, NOT_KNOWN, "there is no secret.key beside the run")


def _floats(run: Run) -> Hazard:
    name = "Noise is drawn in a way that rounding does not undo"
    if not _proofs(run):
        return Hazard(name, NOT_HELD, "there is no certified noise")
    if all(getattr(d, "arithmetic", None) == "integer" for d in run.config.defense):
        return Hazard(name, HELD, "noise in whole numbers, accounted as it is drawn")
    return Hazard(name, NOT_HELD, "the noise is of floating-point numbers, and the proofs are for real ones")


def _evaluation(run: Run) -> Hazard:
    name = "Nothing else leaves that was computed from the data without noise"
    if run.scores[2] is None:
        return Hazard(name, NOT_KNOWN, "the run folder has no measurement; whether others were made is in no file")
    return Hazard(
        name, NOT_HELD, "accuracy and loss are measured on held-out records without noise, and are on this page"
    )
