"""What a buffer holds, in numbers."""

from __future__ import annotations

from typing import Any

from april.buffer.reader import Reader


def of(buffer: Reader) -> dict[str, Any]:
    """Totals, the rounds that are kept, and the groups of each oldest policy version (None: prompts)."""
    kinds = {"finished": 0, "partial": 0, "prompts": 0}
    versions: dict[int | None, dict[str, int]] = {}
    payload = 0
    for entry in buffer.index.entries():
        kinds["finished" if entry.ended else "partial" if entry.tokens else "prompts"] += 1
        row = versions.setdefault(entry.oldest, {"groups": 0, "tokens": 0})
        row["groups"] += 1
        row["tokens"] += entry.tokens
        payload += entry.place.size
    return {
        "path": str(buffer.folder),
        "groups": sum(kinds.values()),
        **kinds,
        "tokens": sum(row["tokens"] for row in versions.values()),
        "payload_bytes": payload,
        "disk_bytes": sum(path.stat().st_size for path in buffer.folder.iterdir() if path.is_file()),
        "rounds": [end.rollout_id for end in buffer.index.rounds()],
        "state": (last := buffer.last_round()) and last.state,
        "versions": [{"version": version, **row} for version, row in sorted(versions.items(), key=_none_last)],
    }


def _none_last(item: tuple[int | None, Any]) -> tuple[bool, int]:
    return item[0] is None, item[0] or 0


def text(found: dict[str, Any]) -> str:
    """The same for people."""
    lines = [
        f"{found['path']}",
        f"groups   {found['groups']}: {found['finished']} finished, {found['partial']} partial, "
        f"{found['prompts']} prompts",
        f"tokens   {found['tokens']}",
        f"size     {found['payload_bytes'] / 1e6:.1f} MB of payload, {found['disk_bytes'] / 1e6:.1f} MB on disk",
        f"rounds   {', '.join(map(str, found['rounds'])) or 'none ended yet'}",
    ]
    if found["versions"]:
        lines.append("oldest policy version   groups    tokens")
    for row in found["versions"]:
        version = "-" if row["version"] is None else row["version"]
        lines.append(f"{version:>21} {row['groups']:>8} {row['tokens']:>9}")
    return "\n".join(lines)
