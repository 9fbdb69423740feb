"""Where generic addresses are: LDS and a lane's scratch memory have 4 GiB of them each, all others are global."""

from __future__ import annotations

from neutrino.gcn.instrument.code import Code, Mask, Scalar, Vector

_WINDOWS = ("src_shared_base", "src_private_base")
_WORD = (1 << 32) - 1


def find_global(code: Code, destination: Mask, address: Vector, added: int = 0) -> None:
    """Append code that finds the lanes whose generic address is in neither window, without a VGPR.

    address: two VGPRs. added: a number to be added to each address first.
    """
    machine = code.machine
    with code.scope():
        carry = code.mask() if added else None
        if carry is not None:
            # Whether the lower half overflows: then the upper one is another by 1.
            limit = code.scalar()
            code.emit(f"s_mov_b32 {limit.text}, {~added & _WORD if added > 0 else -added:#x}")
            code.emit(f"v_cmp_{'lt' if added > 0 else 'gt'}_u32_e64 {carry.text}, {limit.text}, {address.word(0)}")
        parts = [code.mask() for _ in _WINDOWS]
        for name, outside in zip(_WINDOWS, parts, strict=True):
            with code.scope():
                _find_outside(code, outside, name, address, carry, 1 if added > 0 else -1)
        code.emit(f"s_and_{machine.mask} {destination.text}, {parts[0].text}, {parts[1].text}")


def _find_outside(
    code: Code, outside: Mask, name: str, address: Vector, carry: Mask | None, by: int
) -> None:  # fmt: skip
    """Append code that finds the lanes whose address is not in a window.

    name: of the register with the window's beginning. carry: lanes whose upper half is another one, None for no lanes.
    by: how much it is more there.
    """
    machine, window = code.machine, code.scalar(2)
    code.emit(f"s_mov_b64 {window.text}, {name}")
    code.emit(f"v_cmp_ne_u32_e64 {outside.text}, {window.word(1)}, {address.word(1)}")
    if carry is None:
        return
    other = code.mask()
    high: Scalar = Scalar(window.first + 1)
    code.emit(
        f"{machine.subtract if by > 0 else machine.add} {high.text}, {high.text}, 1",
        f"v_cmp_ne_u32_e64 {other.text}, {high.text}, {address.word(1)}",
        f"s_and_{machine.mask} {other.text}, {other.text}, {carry.text}",
        f"{machine.and_not} {outside.text}, {outside.text}, {carry.text}",
        f"s_or_{machine.mask} {outside.text}, {outside.text}, {other.text}",
    )
