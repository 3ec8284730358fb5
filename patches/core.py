"""The nouns: the processes of a run, a patch (what we change upstream) and a contract (what we call upstream)."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Process(str, enum.Enum):
    """The kinds of process of a run."""

    DRIVER = "driver"
    ROLLOUT_MANAGER = "rollout_manager"
    ENGINE = "engine"
    TOKENIZER = "tokenizer"
    SCHEDULER = "scheduler"
    TRAIN_ACTOR = "train_actor"


class Feature(str, enum.Enum):
    """What a user asks for; a patch or a contract serves one of them."""

    HOST = "host"
    """Runs at all: a host beside the pinned SGLang and torch, and the processes' own check of their hooks."""
    APRIL = "april"
    """Active partial rollouts."""
    CORRECTION = "correction"
    """Importance weights in the trainer's loss (``--april-correction tis|decoupled``)."""
    TELEMETRY = "telemetry"
    """The host's metrics in the run directory."""
    CPU = "cpu"
    """Training and serving without a GPU (``--device cpu``)."""
    MEMORY = "memory"
    """Device memory released between the phases (``--offload``, ``--colocate``)."""
    SPECULATION = "speculation"
    """Speculative decoding in the engines (``--specrollout on``)."""
    INTERRUPT = "interrupt"
    """Requests that stay in the engines over a weight update (``--april-interrupt retract|inplace``)."""


@dataclass(frozen=True, slots=True)
class Target:
    """A place in another package: ``module:attribute``, or a module alone where only its presence counts.

    ``places`` are alternatives: upstream has moved it, and the first one that exists is meant.
    """

    places: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Target:
        """From ``module:attribute``, alternatives separated by `` | ``."""
        return cls(tuple(part.strip() for part in text.split("|")))

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.places[0].partition(":")[0].partition(".")[0]

    @property
    def modules(self) -> tuple[str, ...]:
        """The module of each place."""
        return tuple(place.partition(":")[0] for place in self.places)

    def __str__(self) -> str:
        return " | ".join(self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a patch and a contract have in common.

    Attributes:
        name: unique, in lower case with dashes.
        feature: what needs it.
        targets: where upstream it holds.
        versions: a version specifier of the target's package: where it was shown to hold.
        reason: why it is needed.
        link: where to read about it upstream.
        exact: the code of the targets must be one that was verified (``fingerprints.json``). Otherwise their
            presence is enough: they are replaced whole, or only called in ways that every version has.
        optional: without it the feature still works, less well; a line says so.
    """

    name: str
    feature: Feature
    targets: tuple[Target, ...]
    versions: str
    reason: str
    link: str
    exact: bool = True
    optional: bool = False

    @property
    def package(self) -> str:
        """The top-level package whose version counts."""
        return self.targets[0].package


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract(Row):
    """Something upstream that we call, and that must go on to behave as it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch(Row):
    """Something upstream that we change.

    Attributes:
        apply: ``module:function`` of the implementation. Where ``around`` is false it is called with the imported
            module and a :class:`~april.patches.patcher.Patcher`; where it is true it is the wrapper
            ``(original, *args, **kwargs)`` itself, and SGLang's own hook registry puts it in place.
        processes: where it must be live before training may start. Elsewhere it is applied too unless ``scoped``.
        until: when it can go.
        module: the module whose import triggers it, with ``{host}`` for the host's package; by default the targets'.
        hosts: the hosts that need it.
        scoped: apply in ``processes`` only, because it changes what others in the process tree rely on.
    """

    apply: str
    processes: frozenset[Process]
    until: str
    module: str = ""
    around: bool = False
    hosts: frozenset[str] = frozenset({"slime", "miles"})
    scoped: bool = False

    def triggers(self, host: str) -> tuple[str, ...]:
        """The modules whose import triggers it."""
        if self.module:
            return (self.module.format(host=host),)
        return tuple(dict.fromkeys(module for target in self.targets for module in target.modules))


def targets(*texts: str) -> tuple[Target, ...]:
    """Several targets, as written in the tables."""
    return tuple(map(Target.parse, texts))
