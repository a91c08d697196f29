"""A mechanism: clip, noise, sensitivity and privacy event in one frozen object.

A defence places mechanisms at stages of the round. What runs (`clip_one`, `clip_examples`, `add_noise`) and what is
accounted (`multiplier_at`: the noise over the sensitivity) are computed from the same fields by the same methods: `scale`
and `sensitivity` take the point of the run, with traced numbers when a round is compiled and plain ones in an account.

Sensitivity is the norm that one unit's contribution can have in the value that is noised, zero-out adjacency: L2 for
Gaussian, L1 for Laplace noise.

With a `grid` contributions are rounded to whole numbers and the noise is a whole number (docs/integer-noise.md): the
sensitivity is that of the integers.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from fedveil.core.events import Release
from fedveil.core.setting import Setting
from fedveil.core.stage import AccountPoint, Point, StageContext
from fedveil.core.system import check_memory
from fedveil.mechanisms.grid import Grid

if TYPE_CHECKING:
    from types import ModuleType

    import jax

Tree = Any
Scalar = Any  # a float, a numpy array over rounds, or a traced scalar


Shape = Literal["linear", "staircase", "exponential", "cosine"]
ROUND = 400  # bytes that the account of one round takes where rounds differ
STAIRS = 5  # steps of the staircase
COINS = 0x636F696E  # keeps the coins of the rounding apart from the noise


@dataclass(frozen=True)
class Schedule:
    """A value that is `start` in the first round and `end` in the last. Without an end it stays at `start`."""

    start: float
    end: float | None = None
    shape: Shape = "linear"
    rounds: int = 1

    @property
    def varies(self) -> bool:
        return self.end is not None and self.end != self.start and self.rounds > 1

    def at(self, round_: Any) -> Any:
        """The value in a round: a whole number, a numpy array of rounds, or a round that is traced under jit."""
        if not self.varies or self.end is None:
            return self.start
        xp = _arrays_of(round_)
        share = xp.minimum(round_ / (self.rounds - 1), 1.0)
        if self.shape == "exponential":
            return self.start * (self.end / self.start) ** share
        if self.shape == "cosine":
            share = (1.0 - xp.cos(math.pi * share)) / 2.0
        if self.shape == "staircase":
            share = xp.minimum(xp.floor(share * STAIRS), STAIRS - 1) / (STAIRS - 1)
        return self.start + (self.end - self.start) * share


def _arrays_of(round_: Any) -> ModuleType:
    """numpy for plain numbers, so that an account does not wait for JAX; else JAX's."""
    import numpy as np

    if isinstance(round_, int | np.integer | np.ndarray):
        return np
    import jax.numpy as jnp

    return jnp


WHOLE = "*"  # among medians by layer: that of the whole gradient's norm


@dataclass(frozen=True)
class Clip:
    """What bounds one contribution: its L2 norm, as a whole (`flat`) or for each layer, its L1 norm, or each value."""

    bound: Schedule
    scope: Literal["flat", "layerwise"] = "flat"
    norm: Literal["l2", "l1", "value"] = "l2"
    follows_lr: bool = False  # the bound falls with the learning rate, which is public
    median: bool = False  # the bound is a median of private norms where that is smaller: of the batch, or `at.medians`

    def at(self, at: Point) -> Scalar:
        """The bound in this round; with `follows_lr`, scaled as the learning rate is."""
        bound = self.bound.at(at.round)
        return bound * at.lr / at.setting.lr if self.follows_lr else bound

    def reach(self, setting: Setting, order: int) -> float:
        """The largest norm of a clipped contribution over the bound; `order` 1 or 2: the L1 or the L2 norm.

        M layers clipped apart have √M together. d values of ±1 have an L1 norm of d and an L2 norm of √d.
        """
        if self.norm == "value":
            if not setting.values:
                raise ValueError("a bound of each value needs Setting.values: let the defence's counts_values be True")
            return float(setting.values ** (1.0 / order))
        return math.sqrt(setting.layers) if self.scope == "layerwise" else 1.0

    def one(self, value: Tree, at: StageContext) -> Tree:
        """Clips one contribution."""
        from fedveil.mechanisms import clip

        if self.norm == "l2":
            return clip.clip_one(value, self.at(at), self.scope)
        return (clip.clip_l1 if self.norm == "l1" else clip.clamp)(value, self.at(at))

    def bounds(self, each: Tree, mask: jax.Array, at: StageContext) -> dict[str, Scalar]:
        """The bound of each layer: the same for all, or the median norm of batch or client where that is smaller."""
        bound = self.at(at)
        if not self.median:
            return dict.fromkeys(each, bound)
        import jax.numpy as jnp

        from fedveil.mechanisms import clip

        if at.medians is not None:
            of = {name: at.medians[WHOLE if self.scope == "flat" else name] for name in each}
            return {name: jnp.where(m > 0, jnp.minimum(m, bound), bound) for name, m in of.items()}
        norms = clip.layer_norms(each)
        if self.scope == "flat":
            norms = dict.fromkeys(norms, jnp.sqrt(jnp.stack([jnp.square(n) for n in norms.values()]).sum(axis=0)))
        # An empty batch has no median: the largest bound stands in.
        medians = {name: jnp.nanmedian(jnp.where(mask & jnp.isfinite(n), n, jnp.nan)) for name, n in norms.items()}
        return {name: jnp.where(m > 0, jnp.minimum(m, bound), bound) for name, m in medians.items()}

    def examples(self, each: Tree, bounds: dict[str, Scalar]) -> Tree:
        """Every example's gradient clipped; a leading axis over examples."""
        from fedveil.mechanisms import clip

        return clip.clip_examples(each, bounds, self.scope)


@dataclass(frozen=True)
class Mechanism:
    """Noise on a value to which clipped contributions add up.

    The noise has standard deviation (Gaussian) or scale (Laplace) σ·bound·`spread`; one contribution enters the value
    with a factor of at most `weight`.
    """

    clip: Clip
    noise_multiplier: Schedule  # σ
    distribution: Literal["gaussian", "laplace"] = "gaussian"
    spread: float = 1.0
    weight: float = 1.0
    grid: Grid | None = field(default=None, repr=False)  # of integer noise; None: noise in floating point

    @property
    def noisy(self) -> bool:
        return self.noise_multiplier.start > 0

    # --- what both sides read

    def scale(self, at: Point) -> Scalar:
        """The standard deviation (Laplace: the scale) of the noise on every coordinate."""
        return self.noise_multiplier.at(at.round) * self.clip.at(at) * self.spread

    def sensitivity(self, at: Point) -> Scalar:
        """The largest norm of one contribution in the value that is noised."""
        if self.grid is None:
            return self.reach(at)
        square = self.grid.accounted_square(self.scale(at) / self.reach(at))
        return self.scale(at) / self.grid.sigma * square**0.5

    def reach(self, at: Point) -> Scalar:
        """The largest norm of one contribution after the clip, before it is rounded."""
        return self.weight * self.clip.at(at) * self.clip.reach(at.setting, 1 if self.distribution == "laplace" else 2)

    def on_grid(self, setting: Setting, summed: bool = False) -> Self:
        """This mechanism with noise in whole numbers. `summed`: what it makes is sent into a sum over clients."""
        if not setting.values:
            raise ValueError("integer noise needs Setting.values: let the defence's counts_values be True")
        if self.distribution != "gaussian" or self.weight != 1.0 or self.clip.median:
            raise ValueError(
                "integer noise is Gaussian, on contributions of weight one that are clipped to a public bound"
            )
        ends = (AccountPoint(setting, number, setting.lr_at(number)) for number in (0, max(0, setting.rounds - 1)))
        multipliers = [float(self.scale(at) / self.reach(at)) for at in ends]
        loudest = max(multipliers) * self.loudness
        if loudest <= 0:
            return self
        grid = Grid.fitting(loudest, setting.values)
        if summed and min(multipliers) > 0:
            grid = grid.in_sums(min(multipliers), setting.most, setting.most * setting.batch)
        return replace(self, grid=grid)

    @property
    def loudness(self) -> float:
        """The largest noise of any client over the smallest, which is accounted."""
        return 1.0

    # --- what runs

    def clip_one(self, value: Tree, at: StageContext) -> Tree:
        return self.clip.one(value, at)

    def noise(
        self, like: Tree, at: StageContext, key: jax.Array | None = None, bounds: dict[str, Scalar] | None = None
    ) -> Tree:
        """Independent noise in the shape of `like`; with a median clip by the `bounds` that were found for each layer."""
        from fedveil.random import noise

        key = at.key if key is None else key
        if not self.clip.median or bounds is None:
            return noise.draw(self.distribution, key, like, self.scale(at))
        unit, sigma = noise.draw(self.distribution, key, like, 1.0), self.noise_multiplier.at(at.round) * self.spread
        return {name: {k: a * sigma * bounds[name] for k, a in layer.items()} for name, layer in unit.items()}

    def add_noise(self, value: Tree, at: StageContext, key: jax.Array | None = None) -> Tree:
        from fedveil.random import noise

        if self.grid is not None:
            raise ValueError("integer noise is added to contributions that were rounded one by one: use noised_sum")
        return noise.add(value, self.noise(value, at, key)) if self.noisy else value

    def apply(self, value: Tree, at: StageContext) -> Tree:
        """One contribution, clipped and noised."""
        if self.grid is None:
            return self.add_noise(self.clip_one(value, at), at)
        import jax

        return self.noised_sum(jax.tree.map(lambda a: a[None], self.clip_one(value, at)), at)

    # --- what runs on a grid

    def noised_sum(self, clipped: Tree, at: StageContext) -> Tree:
        """The sum of clipped contributions, a leading axis of them, with integer noise: added up in whole numbers."""
        assert self.grid is not None
        return self.in_units(self.noised_integers(clipped, at), clipped, at, self.grid.step)

    def noised_integers(self, clipped: Tree, at: StageContext) -> Tree:
        """The same sum in steps of the grid, int32."""
        import jax
        import jax.numpy as jnp

        whole = self.rounded(clipped, at)
        drawn = self.integer_noise(jax.tree.map(lambda a: a[0], whole), at)
        total = jax.tree.map(lambda a, n: a.sum(axis=0, dtype=jnp.int32) + n, whole, drawn)
        return jax.tree.map(self.in_steps, total)

    def in_steps(self, whole: jax.Array) -> jax.Array:
        """Whole numbers as the nearest multiples of the grid's step, which is odd: none is in the middle."""
        assert self.grid is not None
        step = self.grid.step
        return whole if step == 1 else (whole + step // 2) // step

    def rounded(self, clipped: Tree, at: StageContext) -> Tree:
        """Each clipped contribution in grid widths, int32, within the bound of its sum of squares."""
        import jax
        import jax.numpy as jnp

        from fedveil.mechanisms import rounding
        from fedveil.random import noise

        assert self.grid is not None
        width, reach = self.width(at), jnp.float32(self.grid.sigma) * self.reach(at) / self.scale(at)
        most = rounding.largest_square(reach, self.grid.values)
        coins = noise.quick(jax.random.fold_in(at.key, COINS))
        return rounding.to_integers(jax.tree.map(lambda a: a / width, clipped), coins, most)

    def integer_noise(self, like: Tree, at: StageContext, key: jax.Array | None = None) -> Tree:
        """Noise in grid widths, int32, in the shape of `like`."""
        from fedveil.random import noise

        assert self.grid is not None
        return noise.rounded_gaussian(at.key if key is None else key, like, self.grid.sigma)

    def in_units(self, whole: Tree, like: Tree, at: StageContext, step: int = 1) -> Tree:
        """Whole numbers, of `step` grid widths, as values of the type of `like`."""
        import jax

        width = self.width(at) * step
        return jax.tree.map(lambda a, of: (a.astype(of.dtype) * width).astype(of.dtype), whole, like)

    def width(self, at: Point) -> Scalar:
        """The width of the grid."""
        assert self.grid is not None
        return self.scale(at) / self.grid.sigma

    # --- what is accounted

    def multiplier_at(self, setting: Setting, round_: Any, lr: Any = None) -> Any:
        """z: the noise over the sensitivity in a round, or in each of an array of rounds."""
        at = AccountPoint(setting, round_, setting.lr_at(round_) if lr is None else lr)
        return self.scale(at) / self.sensitivity(at)

    def multipliers(self, setting: Setting) -> tuple[float, ...]:
        """z in every round of the run."""
        import numpy as np

        rounds = np.arange(setting.rounds)
        return tuple(float(z) for z in np.broadcast_to(self.multiplier_at(setting, rounds), rounds.shape))

    @property
    def varies(self) -> bool:
        """Whether the multiplier z changes between rounds. A scheduled clip changes noise and sensitivity alike."""
        return self.noise_multiplier.varies

    @property
    def digest(self) -> str:
        """What names this mechanism in a transcript: all of its fields."""
        told = repr(self) if self.grid is None else repr((self, self.grid))
        if self.grid is not None and self.grid.bits:  # what is sent into a sum
            told += repr((self.grid.step, self.grid.bits))
        return hashlib.sha256(told.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ClientMechanism(Mechanism):
    """A mechanism at a client whose noise is σ times the client's own factor, `factors[k mod n]` for client k.

    The account is that of the smallest factor, and so is the noise where no client is known.
    """

    factors: tuple[float, ...] = (1.0,)

    def scale(self, at: Point) -> Scalar:
        return super().scale(at) * self._factor(getattr(at, "client", None))

    @property
    def loudness(self) -> float:
        return max(self.factors) / min(self.factors)

    def _factor(self, client: Any) -> Scalar:
        if client is None:
            return min(self.factors)
        import jax.numpy as jnp

        return jnp.asarray(self.factors)[client % len(self.factors)]


@dataclass(frozen=True)
class LayerLaplace(Mechanism):
    """Laplace noise whose budget ε is divided among the layers: scale Δf/(ε·share), Δf = 2·η·bound (dpfl, Algorithm 2).

    η is that of the first round: with a falling rate the noise would fall below what is accounted. Only even shares have
    an account: shares that are measured on private data have none.
    """

    budget: float = 1.0  # ε
    lr: float = 1.0  # η

    def spread_of(self, at: Point) -> Scalar:
        """The scale of the noise on a layer that has the whole budget, Δf/ε."""
        return 2.0 * self.lr * self.clip.at(at) / self.budget

    def scale(self, at: Point) -> Scalar:
        return self.spread_of(at) * at.setting.layers

    def noise_by_share(self, value: Tree, shares: Tree, at: StageContext) -> Tree:
        """The value with noise by share; `shares`: for each noised layer its part of ε, or a tree of parts."""
        from fedveil.random import noise

        unit = noise.laplace(at.key, value, 1.0)
        noised = dict(value)
        for layer, share in shares.items():
            of = share if isinstance(share, dict) else dict.fromkeys(value[layer], share)
            noised[layer] = {
                k: a + self.spread_of(at) / of[k] * unit[layer][k] for k, a in value[layer].items()
            }  # fmt: skip
        return noised


@dataclass(frozen=True)
class BroadcastNoise(Mechanism):
    """Noise on the model that clients receive, σ·S/U: it covers what one client moved the model by in the round before.

    A client's `steps` local steps at learning rate η move its model by at most S = η·steps·bound (times `excess`, where a
    batch can hold more than its nominal size), and the mean of the models by at most `share` of that. The model was made
    with the learning rate of the round before, so that is the one in S.
    """

    steps: int = 1
    receivers: int = 1  # U
    share: float = 1.0
    excess: float = 1.0

    def moved(self, at: Point) -> Scalar:
        """S: a bound on how far the local steps of one client moved its model in the previous round."""
        before = at.setting.lr_at(_before(at.round))
        return before * self.steps * self.clip.at(at)

    def scale(self, at: Point) -> Scalar:
        return self.noise_multiplier.at(at.round) * self.moved(at) / self.receivers

    def sensitivity(self, at: Point) -> Scalar:
        return self.share * self.excess * self.moved(at)


def _before(round_: Any) -> Any:
    """The round before; the first round's model holds no contribution, and is treated like the second's."""
    if isinstance(round_, int):
        return max(0, round_ - 1)
    return (round_ - 1).clip(min=0)


@dataclass(frozen=True)
class Placed:
    """A mechanism placed in the round: the first tap behind its noise, and the unit that it protects."""

    mechanism: Mechanism
    tap: str
    unit: Literal["example", "client"]
    uses: Literal["step", "round"]
    clip_stage: str
    stage: str
    on_each: bool = False  # the noise is on single examples, not on their sum
    client_noise_sums: bool = False
    on_sum: bool = False
    every_round: bool = False
    reason: str = ""  # why no certificate covers it
    assumes: tuple[str, ...] = field(default=())

    def multiplier_at(self, setting: Setting, round_: int, lr: float) -> float:
        return float(self.mechanism.multiplier_at(setting, round_, lr))

    def why_none(self, setting: Setting) -> str:
        """Why no certificate covers it under this setting; empty if one does."""
        grid = self.mechanism.grid
        if grid is not None and not self.reason and grid.too_fine(min(self.mechanism.multipliers(setting))):
            return "the noise is too small to be drawn in whole numbers: raise it, or set defense.arithmetic = 'float'"
        if self.reason or self.unit != "example" or setting.batching != "with-replacement":
            return self.reason
        return (
            "batches are drawn with replacement: a record may be in a batch several times, and the clip bounds each of its "
            "gradients, not their sum"
        )

    def release(self, setting: Setting) -> Release:
        """What the ledger is told: z of every round, read off the mechanism."""
        mechanism, reason = self.mechanism, self.why_none(setting)
        if mechanism.varies:
            instead = "lower it, or keep clip and noise constant"
            check_memory("train.rounds", setting.rounds, ROUND * setting.rounds, instead)
        by_round = mechanism.multipliers(setting) if mechanism.varies else ()
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("mechanism", "reason")}
        grid = mechanism.grid
        return Release(
            arithmetic="float" if grid is None else "integer",
            slip=0.0 if grid is None else grid.slip,
            sum_slip=0.0 if grid is None else grid.sum_slip(setting.clients),
            distribution=mechanism.distribution,
            multiplier=min(by_round) if by_round else float(mechanism.multiplier_at(setting, 0)),
            by_round=by_round,
            certifiable=not reason,
            reason=reason,
            digest=mechanism.digest,
            **own,
        )
