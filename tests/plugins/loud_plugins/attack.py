"""`grey`: a reconstruction that looks at nothing and answers with a grey picture of class 0."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedveil.attacks.base import ONCE, Reconstruction, ReconstructionAttack


@dataclass(frozen=True)
class Grey(ReconstructionAttack):
    """Answers with one shade for every pixel."""

    shade: float = 0.5

    name: ClassVar[str] = "grey"
    summary: ClassVar[str] = "one shade for every pixel"

    def run(self, observation, execution=ONCE):
        seeds, attacks = execution.seeds, len(observation)
        count, none = attacks * len(seeds), np.zeros(attacks * len(seeds))
        return Reconstruction(
            attack=np.tile(np.arange(attacks), len(seeds)),
            seed=np.repeat(np.asarray(seeds), attacks),
            inputs=np.full((count, observation.examples, *observation.shape), self.shade),
            labels=np.zeros((count, observation.examples), int),
            objective=none,
            distance=none,
            iterations=np.zeros(count, int),
            evaluations=np.zeros(count, int),
            ending=np.full(count, "converged"),
            trace=none[:, None],
            seconds=0.0,
            compile_seconds=0.0,
        )
