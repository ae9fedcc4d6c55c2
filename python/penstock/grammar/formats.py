"""String formats of JSON Schema, and corrections where llguidance deviates from the standard.

llguidance's dates allow February 29 in every year, its times a 60th second in every minute, its
host names any length. Patterns and bounds replace these formats.
"""

from __future__ import annotations

from typing import Any

# Other formats are annotations.
FORMATS = frozenset(
    (
        "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
        "uri-reference", "uri-template", "json-pointer", "relative-json-pointer",
    )
)  # fmt: skip
# Formats that contain another one, which is enforced instead.
ALIASES = {
    "idn-email": "email", "idn-hostname": "hostname", "host-name": "hostname",
    "iri": "uri", "iri-reference": "uri-reference", "ip-address": "ipv4",
}  # fmt: skip
# RFC 3339, from the year 1 on and without leap seconds: the minutes with one are not predictable.
_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = (
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"  # not 0000
)
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-]{_CLOCK})"
_STEPS = "(?:/(?:[^~/]|~[01])*)*"
# RFC 3986 without user info and empty path segments.
_PLAIN = "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
_LAST = "(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*"
_REFERENCE = (
    "(?:[A-Za-z][A-Za-z0-9+.-]*:)?"
    f"(?://[A-Za-z0-9.-]+(?::[0-9]+)?|{_PLAIN}+)?(?:/{_PLAIN}+)*/?(?:\\?{_LAST})?(?:#{_LAST})?"
)
PATTERNS = {
    "date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}[tT]{_TIME}$",
    "uri-reference": f"^{_REFERENCE}$",
    "uri-template": r"^(?:[A-Za-z0-9._~/:-]|%[0-9A-F]{2}|\{[A-Za-z0-9_]+\})*$",
    "json-pointer": f"^{_STEPS}$",
    "relative-json-pointer": f"^(?:0|[1-9]{{1,3}})(?:#|{_STEPS})$",
}  # fmt: skip
# Patterns of strings that surely violate a format.
OTHERWISE = {
    "date": "^[^-]*$", "time": "^[^:]*$", "date-time": "^[^:]*$", "duration": "^[^P]*$",
    "email": "^[^@]*$", "hostname": "^[^A-Za-z0-9]*$", "ipv4": "^[^.]*$", "ipv6": "^[^:]*$",
    "uuid": "^[^-]*$", "uri": "^[^:]*$",
}  # fmt: skip
HOSTNAME = 253  # characters, RFC 1034


def keep(node: dict[str, Any]) -> None:
    """Replaces a node's `format` if llguidance would not enforce it exactly."""
    form = node.get("format")
    if form in PATTERNS:
        del node["format"]
        pattern = {"pattern": PATTERNS[form]}
        if "pattern" in node:
            node["allOf"] = [*node.get("allOf", []), pattern]
        else:
            node |= pattern
    elif form == "hostname":
        node["maxLength"] = min(node.get("maxLength", HOSTNAME), HOSTNAME)
