"""What can be wrong with a probe file: the codes of its diagnostics, those of the snippets' assembly apart."""

from __future__ import annotations

FAULTS: dict[str, str] = {
    "unreadable-file": "a file that cannot be read, or is none; said at line 0, by `check`",
    "too-large": "a file that is too large to be a probe file",
    "not-utf-8": "bytes that are no text",
    "not-toml": "what TOML does not allow",
    "nested-too-deeply": "tables or arrays that are nested too deeply",
    "unknown-key": "a key or a table that means nothing there",
    "not-a-table": "a value, or nothing, where there is to be a table with a name",
    "missing-key": "a table without a key that it needs",
    "platform": "a `platform` that is not known, not the run's, or not that of the other files",
    "script": "an `analyze_hook` or `callback` that is no text",
    "no-map": "a file without a map",
    "no-probe": "a file without a probe",
    "map-name": "a name that a map cannot have",
    "map-type": "a `type` that maps do not have",
    "map-option": "a key of a map's type with a value that it cannot have",
    "map-exists": "a second map of a name, in this file or in another one of the run",
    "map-count": "more maps than a run has room for, in this file or in all of the run",
    "level": "a `level` that there is not, or one beside a `datamodel`",
    "cap": "a `cap` that is no number of records",
    "fields": "`data` without fields",
    "field-name": "a name that a field cannot have",
    "field-type": "a type that a field, or a field of such a map, cannot have",
    "record-size": "a size that is not what the fields take",
    "datamodel": "a `datamodel` of no form that there is",
    "probe-name": "a name that a probe cannot have",
    "position": "a `position` that is none",
    "lanes": "`lanes` that there are not",
    "snippet": "a `before` or `after` that is no text",
    "empty-probe": "a probe without an instruction",
    "register-note": "a `register` that is no count of registers",
    "no-semicolon": "a statement without its semicolon",
    "open-comment": "a comment that does not end",
    "declaration": "a `.reg` that cannot be read",
    "declared-type": "a type that registers of a probe do not have",
    "register-name": "a name that registers do not have",
    "register-count": "a `%name<N>` of no or of too many registers",
    "register-clash": "one name for registers of two types, said at both",
    "special-register-declared": "a register called as a special one",
    "initial-value": "a first value that the register cannot have, or a second one",
    "save-form": "a `SAVE` that cannot be read",
    "typed-save": "a type that the older `SAVE.type` does not have",
    "save-operands": "a `SAVE` of too few or too many operands",
    "save-level": "a `SAVE` to a map of another level than the probe's",
    "save-without-map": "a `SAVE.type` without a `datamodel`",
    "records-differ": "`before` and `after` of an older probe that save records of different forms",
    "unknown-map": "a `SAVE` to a map that there is not",
}
"""Code → what it is about, in one line."""

WARNINGS: dict[str, str] = {
    "colon-for-equals": '`{ "start": "u64" }`, read as `{ start = "u64" }`',
    "size-in-quotes": '`size = "16"`, read as a number',
    "pos": "`pos`, read as `position`",
    "register-range": "`%P2` after `.reg %P<2>`, declared",
    "special-register-saved": "a special register inside `SAVE`, read into a register first",
    "map-spelling": "`block_sched` for a map `BlockSched`",
    "script-missing": "an `analyze_hook` or `callback` that is not there",
    "padding": "a record of which bytes lie idle",
    "unused-map": "a map that nothing is saved to",
    "one-record": "two saves of an older probe where a slot keeps one record",
}
"""Of what is accepted all the same."""

DECLARATION_FAULTS = frozenset(
    {"open-comment", "declaration", "declared-type", "register-name", "register-count", "register-clash"}
)
"""Faults after which registers of the file, or their types, are not known."""
