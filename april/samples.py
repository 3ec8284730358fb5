"""The hosts' samples as trajectories: reading their state, recording a leg, checking lengths, starting again.

Works on any object with the fields that slime's and miles' Sample share. Ours is kept in ``sample.metadata["april"]``:
``{"legs": [{"policy_version", "start", "length", "rollout_id"}, ...]}`` and, for fan-out, ``"origin"``: the sample that
a custom generate function made several of.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from april.core import Group, Leg, Trajectory, TrajectoryState, legs_fault
from april.errors import AprilError

KEY = "april"
REQUEST = "request"
SIBLINGS = "siblings"
VERSIONS = "versions"
STATES = {
    "pending": TrajectoryState.PENDING,
    "aborted": TrajectoryState.PARTIAL,
    "completed": TrajectoryState.FINISHED,
    "truncated": TrajectoryState.TRUNCATED,
    "failed": TrajectoryState.FAILED,
}
# What a prompt keeps when it starts again; all other fields of a sample go back to their defaults.
IDENTITY = frozenset(
    {
        "group_index",
        "index",
        "prompt",
        "multimodal_inputs",
        "multimodal_train_input_id",
        "apply_chat_template_kwargs",
        "label",
        "metadata",
        "generate_function_path",
        "custom_rm_path",
        "session_id",
    }
)
# Keeps a resumed response from looking new to a host that goes by its text; never left on a sample.
NO_TEXT = "\0"


@dataclass(frozen=True, slots=True)
class Request:
    """What the request for a sample asks for: at most so many tokens now, a priority, and its name in the engine.

    None: not said.
    """

    tokens: int | None = None
    priority: int | None = None
    rid: str | None = None


def ask(sample: Any, request: Request) -> None:
    """Put ``request`` on a sample, for the request that the host will send; an empty one takes it off again."""
    asked = {name: value for name, value in dataclasses.asdict(request).items() if value is not None}
    if asked or REQUEST in (sample.metadata or {}).get(KEY, {}):
        note(sample, **{REQUEST: asked or None})


def request_of(sample: Any) -> Request:
    """What ``ask`` put there."""
    return Request(**(sample.metadata or {}).get(KEY, {}).get(REQUEST, {}))


def note_versions(sample: Any, versions: Iterable[Any]) -> None:
    """Put on a sample which weights wrote each token of the answer that it just got."""
    pieces = [[version, len(list(run))] for version, run in itertools.groupby(versions)]
    note(sample, **{VERSIONS: pieces})


def versions_known(sample: Any) -> bool:
    """Whether ``note_versions`` told of the answer that a leg is to be recorded for."""
    return VERSIONS in (sample.metadata or {}).get(KEY, {})


def leaves(member: Any) -> Iterator[Any]:
    """The samples of a member, which is one or a (nested) list of them."""
    if isinstance(member, list):
        for part in member:
            yield from leaves(part)
    else:
        yield member


def legs_of(sample: Any) -> tuple[Leg, ...]:
    """The legs recorded so far."""
    return tuple(Leg.from_dict(leg) for leg in (sample.metadata or {}).get(KEY, {}).get("legs", ()))


def note(sample: Any, **fields: Any) -> None:
    """Set fields of our metadata; None removes one. The dictionary is replaced: copies of a sample may share it."""
    metadata = dict(sample.metadata or {})
    ours = {**metadata.get(KEY, {}), **fields}
    metadata[KEY] = {name: value for name, value in ours.items() if value is not None}
    sample.metadata = metadata


def state_of(member: Any) -> TrajectoryState:
    """A member's state; of a fan-out, PARTIAL where any of its samples is."""
    if not isinstance(member, list):
        state = STATES[member.status.value]
        resumed = state is TrajectoryState.PENDING and member.response_length > 0
        return TrajectoryState.PARTIAL if resumed else state
    states = {state_of(leaf) for leaf in leaves(member)}
    for state in (TrajectoryState.PARTIAL, TrajectoryState.PENDING, TrajectoryState.FAILED, TrajectoryState.TRUNCATED):
        if state in states:
            # Some samples of it have ended, so it has begun.
            begun = state is TrajectoryState.PENDING and len(states) > 1
            return TrajectoryState.PARTIAL if begun else state
    return TrajectoryState.FINISHED


def trajectory(member: Any) -> Trajectory:
    """A member as the round sees it."""
    samples = list(leaves(member))
    return Trajectory(
        payload=member,
        state=state_of(member),
        legs=tuple(leg for sample in samples for leg in legs_of(sample)),
        length=sum(sample.response_length for sample in samples),
        rewarded=bool(samples) and all(sample.reward is not None for sample in samples),
    )


def group_of(members: list[Any]) -> Group:
    """A host's group as the round sees it. Raises AprilError where no sample of it knows its group."""
    samples = list(leaves(members))
    known = (sample.group_index for sample in (*samples, *map(origin_of, samples)) if sample is not None)
    index = next((number for number in known if number is not None), None)
    if index is None:
        raise AprilError("a group whose samples have no group_index: keep the one that the data source gave")
    earlier = len(siblings_of(samples[0]))
    return Group(index=index, members=[trajectory(member) for member in members], earlier=earlier)


def siblings_of(sample: Any) -> list[Any]:
    """The rewards of the members of its group that other rounds train."""
    return list((sample.metadata or {}).get(KEY, {}).get(SIBLINGS, ()))


def split(group: Group, count: int) -> tuple[Group, Group]:
    """The first ``count`` finished members, and the others; each part learns the rewards that the other has."""
    finished = [member for member in group.members if member.finished]
    now, left = finished[:count], finished[count:]
    rest = [member for member in group.members if not any(member is other for other in now)]
    for members, others in ((now, left), (rest, now)):
        told = [sample.reward for member in others for sample in leaves(member.payload)]
        for member in members:
            for sample in leaves(member.payload):
                note(sample, **{SIBLINGS: [*siblings_of(sample), *told] or None})
    return Group(group.index, now, earlier=group.earlier), Group(group.index, rest, earlier=group.earlier + count)


def origin_of(sample: Any) -> Any:
    """The sample that a custom generate function made this one of, or None."""
    return (sample.metadata or {}).get(KEY, {}).get("origin")


def forget_origin(member: Any) -> None:
    """Drop what only a restart would need."""
    for sample in leaves(member):
        if origin_of(sample) is not None:
            note(sample, origin=None)


def payload(group: Group) -> list[Any]:
    """The host's group."""
    return [member.payload for member in group.members]


@dataclass(frozen=True, slots=True)
class Mark:
    """What a sample had before a leg: response length, all token ids, entries in ``weight_versions``, legs.

    ``no_text``: its response was given ``NO_TEXT`` for the time of the leg.
    """

    length: int
    tokens: tuple[int, ...]
    versions: int
    legs: tuple[Leg, ...]
    no_text: bool


def mark(sample: Any) -> Mark:
    """Remember a sample before it is submitted."""
    tokens = tuple(sample.tokens) if sample.response_length else ()
    no_text = sample.response == NO_TEXT
    return Mark(sample.response_length, tokens, len(sample.weight_versions), legs_of(sample), no_text)


def record_leg(sample: Any, before: Mark, wrote: Callable[[list[Any]], tuple[int, int]], custom: bool) -> int:
    """Add the legs that brought ``sample`` from ``before`` to what it is now; returns tokens thrown away.

    There is one, but for a request that outlived a weight update (``note_versions``). ``wrote`` tells our policy
    version and the round of a leg from the engine's versions that were reported in it. A ``custom`` generate function
    may start over: then its response is one new leg. Raises AprilError where the host's own lost tokens, or where
    tokens, log probabilities, loss mask and versions disagree in length.
    """
    if before.no_text:
        sample.response = sample.response.removeprefix(NO_TEXT)
    kept = sample.response_length >= before.length and tuple(sample.tokens[: len(before.tokens)]) == before.tokens
    if not kept and not custom:
        raise AprilError(f"sample {sample.index}: a resumed response lost or changed tokens that it had before")
    legs, start = (list(before.legs), before.length) if kept else ([], 0)
    for reported, length in _pieces(sample, before, sample.response_length - start):
        version, rollout_id = wrote(reported)
        legs.append(Leg(version, start, length, rollout_id))
        start += length
    note(sample, legs=[leg.to_dict() for leg in legs], **{REQUEST: None, VERSIONS: None})
    check(sample, custom)
    return 0 if kept else before.length


def _pieces(sample: Any, before: Mark, length: int) -> list[tuple[list[Any], int]]:
    """The new tokens in pieces of one weight version each; in one piece where that is not known."""
    pieces = (sample.metadata or {}).get(KEY, {}).get(VERSIONS)
    if pieces and sum(count for _, count in pieces) == length:
        return [([version], count) for version, count in pieces]
    reported = [version for version, _ in pieces] if pieces else sample.weight_versions[before.versions :]
    return [(list(reported), length)] if length > 0 else []


def check(sample: Any, custom: bool = False) -> None:
    """Tokens, log probabilities, loss mask and versions of a response have equal length. Raises AprilError."""
    length = sample.response_length
    log_probs, mask = sample.rollout_log_probs, sample.loss_mask
    fault = legs_fault(legs_of(sample), length)
    if fault is None and len(sample.tokens) < length:
        fault = f"{len(sample.tokens)} token ids in all for a response of {length}"
    if fault is None and log_probs is None and length and not custom:
        fault = f"no log probabilities for a response of {length} tokens"
    if fault is None and log_probs is not None and len(log_probs) != length:
        fault = f"{len(log_probs)} log probabilities for a response of {length} tokens"
    if fault is None and mask is not None and len(mask) != length:
        fault = f"a loss mask of {len(mask)} for a response of {length} tokens"
    if fault is not None:
        raise AprilError(f"sample {sample.index}: {fault}")


def pristine(sample: Any) -> Any:
    """The sample with its prompt only, as the data source made it: a new object."""
    fresh = copy.copy(sample)
    for field in dataclasses.fields(sample):
        if field.name not in IDENTITY:
            setattr(fresh, field.name, _default(field))
    ours = (KEY, "start_rollout_id")
    fresh.metadata = {key: value for key, value in (sample.metadata or {}).items() if key not in ours}
    if siblings := siblings_of(sample):
        note(fresh, **{SIBLINGS: siblings})
    return fresh


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def restart(member: Any) -> Any:
    """The prompt that a member was generated from."""
    first = next(leaves(member))
    origin = origin_of(first)
    return pristine(first if origin is None else origin)


def stand_in(member: Any, reward: Any) -> Any:
    """A copy of an ended member for the host to pass over; what the host does to it does not reach the member.

    The hosts pass over completed and truncated samples, but would send a failed one, fail on a list or on a missing
    reward, and (masking off-policy tokens) clear the loss mask.
    """
    first = next(leaves(member))
    copied = copy.copy(first)
    if copied.status.value not in ("completed", "truncated"):
        copied.status = type(copied.status)("completed")
    if copied.reward is None:
        copied.reward = reward
    return copied
