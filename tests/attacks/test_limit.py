"""The time limit of attacks: what is ended, what is counted, what is given up, and what the verdict says."""

import time
from dataclasses import replace

import numpy as np
import pytest
from attack_helpers import IMAGES, victims

from fedveil.attacks import verdict
from fedveil.attacks.base import Execution, LiveProgress
from fedveil.attacks.games import membership
from fedveil.attacks.guess import guess
from fedveil.attacks.inference.lira import LiRA
from fedveil.attacks.inference.rmia import RMIA
from fedveil.attacks.limit import SECONDS, limited
from fedveil.attacks.orchestrate import attack
from fedveil.attacks.reconstruction.cpl import CPL
from fedveil.attacks.reconstruction.scheduler import Order
from fedveil.attacks.score import RULES
from fedveil.core.errors import ConfigError, RunError

EASY = {
    "data": {"name": "digits", "partition": "iid", "clients": 8, "per_client": 20},
    "model": {"name": "logistic"},
    "train": {"rounds": 1, "per_round": 4, "local_steps": 1, "batch": 1, "noise_seed": 0},
}
NOISED = {**EASY, "defense": {"name": "gradient-noise", "scale": 1.0}}


def reconstruct(execution, **more):
    return CPL(iterations=40, **more).run(victims(6).observation, replace(execution, precision="float64"))


def test_attacks_without_time_are_not_started_and_counted():
    late = reconstruct(Execution(width=1, workers=1, deadline=time.monotonic()))
    assert len(late) == 1 and late.not_started == 5 and late.attack.tolist() == [0]
    assert late.ending.tolist() == ["time limit"] and late.evaluations.tolist() == [1]
    assert all(len(getattr(late, key)) == 1 for key in ("seed", "inputs", "labels", "distance", "trace"))


def test_a_limit_that_is_not_reached_changes_nothing():
    free, bound = reconstruct(Execution()), reconstruct(Execution(deadline=time.monotonic() + 600))
    np.testing.assert_allclose(bound.inputs, free.inputs, rtol=0, atol=1e-6)
    assert bound.ending.tolist() == free.ending.tolist() and bound.not_started == 0


def test_restarts_that_were_not_begun_do_not_hide_those_that_were():
    late = reconstruct(Execution(width=2, workers=1, deadline=time.monotonic()), restarts=2)
    assert late.attack.tolist() == [0] and late.not_started == 5 and np.isfinite(late.objective).all()


def test_a_monitor_may_give_attacks_up():
    seen = []

    def second(inputs, labels, shot):
        seen.append(shot)
        return Order(5, shot.attack == 1)

    done = reconstruct(Execution(width=4, workers=1, monitor=second))
    assert [str(e) for e in done.ending].count("hopeless") == 1 and done.ending[1] == "hopeless"
    assert done.evaluations[1] < min(np.delete(done.evaluations, 1)) and seen[0].idle.tolist() == [0, 0, 0, 0]


def test_noised_messages_are_given_up_long_before_the_last_iteration(monkeypatch):
    """Looked at after every chunk, because this network is so small that all iterations take less than a second."""
    monkeypatch.setattr("fedveil.attacks.watch.BETWEEN", 0.0)
    monkeypatch.setattr("fedveil.attacks.watch.APART", 0.0)
    asked = {"images": 4, "tap": "client", "iterations": 3000, "optimizer": "adam"}
    done = attack({**NOISED, "attack": asked}).as_dict()
    assert done["attacks"] == {
        "planned": 4, "started": 4, "finished": 0, "hopeless": 4, "unfinished": 0, "not_started": 0
    }  # fmt: skip
    assert done["stopped"] == "hopeless" and done["iterations_max"] < 1500 and done["limit"] == SECONDS
    assert done["verdict"].startswith("Nothing was rebuilt in 4 attacks on the update of a client, before it leaves")
    assert "at most 53 % of such messages" in done["verdict"] and "4 of 4 attacks were given up" in done["verdict"]


def test_what_can_be_rebuilt_is_not_given_up():
    done = attack({**EASY, "attack": {"images": 4, "tap": "server"}}).as_dict()
    assert done["success_rate"] == 1.0 and done["attacks"]["finished"] == 4 and done["stopped"] == "done"
    assert "4 of 4 examples rebuilt from the update of a client, as the server receives it" in done["verdict"]
    assert done["guess_rate"] == 0.0 and done["label_guess_rate"] == pytest.approx(0.5, abs=0.3)


def test_the_limit_of_the_config_is_kept_and_said():
    done = attack({**NOISED, "attack": {"images": 8, "seconds": 1e-6, "seeds": 3}}).as_dict()
    counts = done["attacks"]
    assert counts["planned"] == 24 == counts["started"] + counts["not_started"] and counts["unfinished"] >= 1
    assert done["stopped"] == "time limit" and "in the time limit of 1e-06 s" in done["verdict"]
    unlimited = attack({**NOISED, "attack": {"images": 2, "seconds": 0, "iterations": 30}}).as_dict()
    assert unlimited["limit"] is None and unlimited["attacks"]["finished"] == 2
    with pytest.raises(ConfigError, match=r"attack.seconds"):
        attack({**EASY, "attack": {"seconds": -1}})


def test_zero_and_infinity_are_no_limit():
    assert limited(None) == limited(0) == limited(float("inf")) and limited(None).left == np.inf
    assert not limited(None).over and limited(1e-9).left < 1e-3 and 59 < limited(60).left <= 60


def test_progress_hears_the_limit_and_the_best_match():
    class Heard(LiveProgress):
        counts, matches, deadlines = [], [], []

        def __call__(self, done, total):
            self.counts.append((done, total))

        def limit(self, deadline):
            self.deadlines.append(deadline)

        def match(self, best, guess, what):
            self.matches.append((best, guess, what))

    heard = Heard()
    attack({**EASY, "attack": {"images": 3, "seconds": 300}}, progress=heard)
    assert heard.counts[-1] == (3, 3) and heard.deadlines[0] > time.monotonic() + 200
    best, guessed, what = heard.matches[0]
    assert -1 <= best <= 1 and -1 <= guessed <= 1 and what == "SSIM"


def test_a_guess_is_as_good_as_the_data_it_is_taken_from():
    own = victims(4, **IMAGES)
    known = own.x.reshape(-1, 8, 8, 1)
    told = guess(own.x, np.array([[1], [1], [1], [2]]), known, RULES["ssim"])
    assert told.match == pytest.approx(1) and told.rate == pytest.approx(4 / 20) and told.label_rate == 0.75
    assert (
        guess(own.x, own.y, 1 - known, RULES["ssim"]).rate == 0
        and guess(own.x, own.y, known, RULES["distance"]).rate is None
    )


def test_the_verdict_compares_with_the_guess():
    counts = {"planned": 10, "started": 10, "finished": 10, "hopeless": 0, "unfinished": 0, "not_started": 0}
    told = {
        "tap": "example", "rule": "SSIM of at least 0.9", "rebuilt": 3, "examples": 10, "victims": 10,
        "interval": [0.1, 0.6], "guess_rate": 0.0,
        "label_success_rate": 1.0, "label_guess_rate": 1.0, "attacks": counts, "stopped": "done",
    }  # fmt: skip
    said = verdict.of_reconstruction(told)
    assert "3 of 10 examples rebuilt" in said and "a guess from other data reaches that in 0 % of cases" in said
    assert "Labels: 100 % right, no more than one constant guess (100 %)." in said
    assert "no more than a guess" in verdict.of_reconstruction({**told, "guess_rate": 0.4})
    assert verdict.at_most(1) == pytest.approx(0.95) and verdict.at_most(59) == pytest.approx(0.0495, abs=1e-3)


# --- inference attacks


def test_an_inference_attack_says_what_the_limit_left():
    """The first round is always made: without it there would be nothing to look at."""
    settings = {**EASY, "data": {**EASY["data"], "clients": 20}, "train": {**EASY["train"], "rounds": 4}}
    asked = {"name": "client-membership", "seconds": 1e-6, "seeds": 3}
    done = attack({**settings, "attack": asked}).as_dict()
    assert done["not_finished"] == {"rounds": {"made": 1, "planned": 4}, "federations": {"made": 1, "planned": 3}}
    assert done["rounds"] == 1 and done["federations"] == 1 and done["stopped"] == "time limit"
    assert "left 1 of 4 rounds and 1 of 3 federations" in done["verdict"]


def test_shadows_without_time_end_in_one_sentence():
    with pytest.raises(RunError, match=r"attack.seconds: 1e-06 s are too few .* they were at round 1 of 3"):
        attack({**EASY, "train": {**EASY["train"], "rounds": 3}, "attack": {"name": "lira", "seconds": 1e-6}})


def test_shadows_count_in_pairs_and_attacked_federations_as_they_are():
    trained = np.array([0, 2, 3, 5, 6, 7, 8])  # of the attacked ones 0 and 1, and the pairs (2, 3), (4, 5), …
    attacked, used = membership._usable(trained, LiRA(shadows=8), 2, limited(1))
    assert attacked.tolist() == [0] and used.tolist() == [2, 3, 6, 7]
    with pytest.raises(RunError, match="lira needs at least 4 shadows"):
        membership._usable(trained[:4], LiRA(shadows=8), 2, limited(1))
    odd = membership._usable(np.arange(3), RMIA(shadows=1), 2, limited(1))[1]
    assert odd.tolist() == [2]


def test_the_verdict_on_scores():
    told = {
        "tap": "release", "records": 400, "auc": 0.62, "interval": [0.58, 0.66], "epsilon_low": 0.4, "epsilon": 1.5,
        "tpr_at_fpr": {"0.01": {"tpr": 0.042}}, "unit": "example", "adjacency": "add-remove", "delta": 1e-5,
        "beyond": {"0.01": -0.1}, "not_finished": {}, "limit": 60.0,
    }  # fmt: skip
    said = verdict.of_inference(told)
    assert "400 records were trained on, at tap release: the attack tells them apart" in said
    assert "AUC 0.62 (95 %: 0.58 to 0.66), where a coin gets 0.5; with 1 % false alarms it finds 4 % of them" in said
    assert "ε of at least 0.4; certified: at most 1.5 (unit example, add-remove, δ = 1e-05)" in said
    assert "nothing was learned" in verdict.of_inference({**told, "interval": [0.45, 0.66]})
    assert "does not hold" in verdict.of_inference({**told, "beyond": {"0.01": 0.1}})
    assert "no ε is certified" in verdict.of_inference({**told, "epsilon": None, "beyond": None})
    classes = {
        "tap": "release", "ssim": 0.3, "mse": 0.1, "interval": None, "classes": [1, 2], "not_finished": {},
        "controls": {"untrained": {"ssim": 0.1}, "blank": {"ssim": 0.2}},
    }  # fmt: skip
    assert "2 classes is more alike than from an untrained model: SSIM 0.30" in verdict.of_inference(classes)
    assert "Nothing was learned of the victim's 2 classes" in verdict.of_inference({**classes, "ssim": 0.15})
