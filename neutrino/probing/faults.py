"""The codes of diagnostics for probe files, except those for the assembly in snippets."""

from __future__ import annotations

FAULTS: dict[str, str] = {
    "unreadable-file": "a file that does not exist or cannot be read; reported at line 0, by `check`",
    "too-large": "a file above the maximum size",
    "not-utf-8": "the file is not UTF-8",
    "not-toml": "the file is not valid TOML",
    "nested-too-deeply": "tables or arrays that are nested too deeply",
    "unknown-key": "an unknown key or table",
    "not-a-table": "something else where a named table is expected",
    "missing-key": "a table lacks a required key",
    "platform": "a `platform` that is unknown, not the run's, or not that of the other files",
    "script": "an `analyze_hook` or `callback` that is not a string",
    "no-map": "a file without a map",
    "no-probe": "a file without a probe",
    "map-name": "an invalid name for a map",
    "map-type": "an unknown `type` of a map",
    "map-option": "an invalid value for a key of a map's type",
    "map-exists": "a second map with the same name, in this file or in another one of the run",
    "map-count": "more maps than a run has room for, in this file or in the whole run",
    "level": "an unknown `level`, or one beside a `datamodel`",
    "per": "an unknown `per`, or one that a map of such a type or level cannot have",
    "cap": "a `cap` that is not a number of records",
    "fields": "`data` without fields",
    "field-name": "an invalid name for a field",
    "field-type": "an unknown type, or one that fields of such a map cannot have",
    "record-size": "a `size` that does not match the fields",
    "datamodel": "a `datamodel` of unknown form",
    "probe-name": "an invalid name for a probe",
    "position": "an invalid `position`",
    "lanes": "an unknown value of `lanes`",
    "snippet": "a `before` or `after` that is not a string",
    "empty-probe": "a probe without an instruction",
    "register-note": "a `register` that is not a count of registers",
    "no-semicolon": "a statement without its semicolon",
    "open-comment": "a comment that does not end",
    "declaration": "a `.reg` that cannot be read",
    "declared-type": "a type that registers of a probe cannot have",
    "register-name": "an invalid name for a register",
    "register-count": "a `%name<N>` with zero or too many registers",
    "register-clash": "registers of two types with the same name; reported at both",
    "special-register-declared": "a register with the name of a special register",
    "initial-value": "an initial value that the register cannot have, or a second one",
    "save-form": "a `SAVE` that cannot be read",
    "typed-save": "an unknown type in the older `SAVE.type`",
    "save-operands": "a `SAVE` with too few or too many operands",
    "save-level": "a `SAVE` to a map of another level than the probe's",
    "save-without-map": "a `SAVE.type` without a `datamodel`",
    "records-differ": "an older probe whose `before` and `after` save different records",
    "unknown-map": "a `SAVE` to a map that does not exist",
}
"""Code of an error → its meaning."""

WARNINGS: dict[str, str] = {
    "colon-for-equals": '`{ "start": "u64" }`, read as `{ start = "u64" }`',
    "size-in-quotes": '`size = "16"`, read as a number',
    "pos": "`pos`, read as `position`",
    "register-range": "`%P2` after `.reg %P<2>`, declared",
    "special-register-saved": "a special register inside `SAVE`, read into a register first",
    "map-spelling": "`block_sched` for a map `BlockSched`",
    "script-missing": "an `analyze_hook` or `callback` that does not exist",
    "padding": "a record with unused bytes",
    "unused-map": "a map that nothing is saved to",
    "one-record": "two saves of an older probe whose slots keep one record",
    "first-lane": "a probe that sees a warp, or a block, through its first thread alone; `neutrino-probe check` has it",
}
"""Code of a warning → its meaning; the file is accepted."""

DECLARATION_FAULTS = frozenset(
    {"open-comment", "declaration", "declared-type", "register-name", "register-count", "register-clash"}
)
"""Faults after which registers of the file, or their types, are not known."""
