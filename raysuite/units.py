"""Binary units, and amounts as text."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def count(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def human_bytes(size: float) -> str:
    """`size` bytes with a binary unit, such as `1.5 GiB`."""
    for limit, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= limit:
            return f"{size / limit:.1f} {unit}"
    return f"{size:.0f} B"


def human_seconds(seconds: float) -> str:
    """`seconds` as human-readable text, such as `1 h 02 min` or `4.2 s`."""
    if seconds < 59.95:  # above, it would round to 60.0
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
