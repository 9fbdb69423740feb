"""Names and forms of instructions that differ between generations of AMD's processors.

Sources: AMD's manuals of the instruction sets ("CDNA 2", "CDNA 3", "RDNA 2", "RDNA 3", "RDNA 4"), and LLVM, "User Guide
for AMDGPU Backend" and "Syntax of … Instructions".
"""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.gcn.processors import Processor

_PACKED_IDS = ("gfx90a", "gfx94", "gfx95", "gfx11", "gfx12")
_ARCHITECTED_SCRATCH = ("gfx94", "gfx95", "gfx11", "gfx12")
_SHORT_CYCLES = "hwreg(HW_REG_SHADER_CYCLES, 0, 20)"


@dataclass(frozen=True)
class Machine:
    """A processor that kernels with probes run on, and the size of their waves. wave: 32 or 64 lanes."""

    kind: Processor
    wave: int

    @property
    def processor(self) -> str:
        """The processor's name, such as ``gfx942``."""
        return self.kind.name

    @property
    def generation(self) -> int:
        """The processor's generation, 9 to 12, as in ``gfx9`` to ``gfx12``."""
        return self.kind.generation

    @property
    def mask_words(self) -> int:
        """32-bit words of a lane mask: 1 or 2."""
        return self.wave // 32

    @property
    def is_old(self) -> bool:
        """Whether memory instructions have the names that they had until gfx10."""
        return self.generation < 11

    @property
    def packs_ids(self) -> bool:
        """Whether v0 has the work-item's number in its work-group on all three axes, 10 bits each."""
        return self.processor.startswith(_PACKED_IDS)

    @property
    def has_scratch_offset(self) -> bool:
        """Whether an SGPR at a kernel's entry may say where a wave's scratch memory is."""
        return not self.processor.startswith(_ARCHITECTED_SCRATCH)

    @property
    def aligns_vectors(self) -> bool:
        """Whether a value in several VGPRs begins at an even one."""
        return self.kind.is_unified

    @property
    def sgprs(self) -> int:
        """How many SGPRs a kernel may name."""
        return self.kind.sgprs

    @property
    def exec(self) -> str:
        """The name of the register that masks the active lanes: ``exec``, or ``exec_lo`` with waves of 32."""
        return "exec" if self.wave == 64 else "exec_lo"

    @property
    def mask(self) -> str:
        """The suffix of scalar instructions on a whole lane mask, such as ``b64``."""
        return f"b{self.wave}"

    @property
    def and_not(self) -> str:
        """The scalar instruction that takes lanes out of a mask."""
        return f"{'s_and_not1' if self.generation >= 11 else 's_andn2'}_{self.mask}"

    def load(self, destination: str, base: str, offset: int, words: int) -> str:
        """Return the instruction that loads 32-bit words from memory into SGPRs.

        base: SGPRs with an address. offset: from it, in bytes.
        """
        name = (f"dwordx{words}" if words > 1 else "dword") if self.is_old else f"b{32 * words}"
        return f"s_load_{name} {destination}, {base}, {offset:#x}"

    @property
    def wait_scalar(self) -> str:
        """The instruction that waits for scalar loads and messages."""
        return "s_wait_kmcnt 0x0" if self.generation == 12 else "s_waitcnt lgkmcnt(0)"

    @property
    def wait_all_loads(self) -> tuple[str, ...]:
        """The instructions that wait for all loads whose results may still be written to VGPRs."""
        if self.generation < 12:
            return ("s_waitcnt vmcnt(0) lgkmcnt(0)",)
        return ("s_wait_loadcnt 0x0", "s_wait_samplecnt 0x0", "s_wait_bvhcnt 0x0", "s_wait_dscnt 0x0")

    @property
    def wait_vector(self) -> tuple[str, ...]:
        """The instructions that wait for results of vector memory instructions."""
        return ("s_wait_loadcnt 0x0",) if self.generation == 12 else ("s_waitcnt vmcnt(0)",)

    @property
    def wait_shared(self) -> str:
        """The instruction that waits for results of LDS instructions."""
        return "s_wait_dscnt 0x0" if self.generation == 12 else "s_waitcnt lgkmcnt(0)"

    def store(self, bits: int) -> str:
        """Return the mnemonic of a store to global memory of 8 to 128 bits."""
        if bits < 32:
            return {8: "global_store_byte", 16: "global_store_short"}[bits] if self.is_old else f"global_store_b{bits}"
        words = bits // 32
        name = (f"dwordx{words}" if words > 1 else "dword") if self.is_old else f"b{bits}"
        return f"global_store_{name}"

    def fetch(self, bits: int) -> str:
        """Return the mnemonic of a load from global memory of 32 to 128 bits."""
        return self.store(bits).replace("store", "load")

    def atomic(self, name: str, bits: int) -> str:
        """The mnemonic of an atomic on global memory. name: add, sub, umax, umin, or, cmpswap."""
        if self.is_old:
            return f"global_atomic_{name}" + ("_x2" if bits == 64 else "")
        kind = "b" if name in ("or", "cmpswap") else "u"
        return f"global_atomic_{name.lstrip('u') if name in ('umax', 'umin') else name}_{kind}{bits}"

    @property
    def returns(self) -> str:
        """The modifier by which an atomic gives the old value."""
        if self.generation == 12:
            return " th:TH_ATOMIC_RETURN"
        return " sc0" if self.processor.startswith(("gfx94", "gfx95")) else " glc"

    @property
    def of_device(self) -> str:
        """The modifier by which an atomic is one for all of the device."""
        return " scope:SCOPE_DEV" if self.generation == 12 else ""

    @property
    def adds_doubles(self) -> bool:
        """Whether there is an atomic that adds an f64."""
        return self.processor.startswith(("gfx90a", "gfx94", "gfx95"))

    @property
    def coherent(self) -> str:
        """The modifier by which a load sees what atomics of the device wrote."""
        if self.generation == 12:
            return " scope:SCOPE_DEV"
        if self.processor.startswith(("gfx94", "gfx95")):
            return " sc1"
        return " glc" if self.generation == 9 else " glc dlc"

    @property
    def add(self) -> str:
        """The mnemonic of a scalar addition that sets the carry and does not add one."""
        return "s_add_co_u32" if self.generation == 12 else "s_add_u32"

    @property
    def add_carry(self) -> str:
        """The mnemonic of a scalar addition that adds the carry and sets it."""
        return "s_add_co_ci_u32" if self.generation == 12 else "s_addc_u32"

    @property
    def subtract(self) -> str:
        """The mnemonic of a scalar subtraction that sets the borrow and does not take one."""
        return "s_sub_co_u32" if self.generation == 12 else "s_sub_u32"

    @property
    def subtract_borrow(self) -> str:
        """The mnemonic of a scalar subtraction that takes the borrow and sets it."""
        return "s_sub_co_ci_u32" if self.generation == 12 else "s_subb_u32"

    def clock(self, low: str, high: str, both: str, scratch: str) -> list[str]:
        """Read the counter of cycles into two SGPRs. On gfx11 it has 20 bits. scratch: an SGPR."""
        if self.generation <= 10:
            return [f"s_memtime {both}", self.wait_scalar]
        if self.generation == 11:
            return [f"s_getreg_b32 {low}, {_SHORT_CYCLES}", f"s_mov_b32 {high}, 0"]
        # The two halves are two reads: the lower one is of use if the upper one was the same before and after, else
        # 2 ** 32 has just been reached, and 0 is a value that the counter had.
        upper = "s_getreg_b32 {}, hwreg(HW_REG_SHADER_CYCLES_HI)"
        return [
            upper.format(scratch), f"s_getreg_b32 {low}, hwreg(HW_REG_SHADER_CYCLES_LO)", upper.format(high),
            f"s_cmp_eq_u32 {scratch}, {high}", f"s_cselect_b32 {low}, {low}, 0",
        ]  # fmt: skip

    @property
    def clock_bits(self) -> int:
        """How many bits the counter of cycles has."""
        return 20 if self.generation == 11 else 64

    def time(self, both: str) -> list[str]:
        """Read the counter of 100 MHz into two SGPRs."""
        if self.generation <= 10:
            return [f"s_memrealtime {both}", self.wait_scalar]
        return [f"s_sendmsg_rtn_b64 {both}, sendmsg(MSG_RTN_GET_REALTIME)", self.wait_scalar]

    @property
    def permuted(self) -> int:
        """Among how many lanes ``ds_bpermute_b32`` moves values: a half of a wave's where that runs in two."""
        return 64 if self.generation == 9 else 32

    @property
    def most_units(self) -> int:
        """How many numbers of compute units there may be, see ``unit``."""
        if self.generation == 9:
            return 1 << (11 if self._is_late_gfx9 else 8)
        return 1 << 8

    def unit(self, destination: str, scratch: str) -> list[str]:
        """Read the number of the compute unit, dense: unit, array and engine, and on gfx94x the die, in 8 bits and 3.

        gfx9: ``HW_ID`` has CU_ID in bits 8 to 11, SH_ID in 12 and SE_ID in 13 to 15. From gfx10 on ``HW_ID1`` has
        WGP_ID in bits 10 to 13, SA_ID in 16 and SE_ID in 18 to 20.
        """
        if self.generation == 9:
            lines = [f"s_getreg_b32 {destination}, hwreg(HW_REG_HW_ID, 8, 8)"]
            if self.processor.startswith(("gfx94", "gfx95")):
                lines += [
                    f"s_getreg_b32 {scratch}, hwreg(HW_REG_XCC_ID, 0, 4)", f"s_lshl_b32 {scratch}, {scratch}, 8",
                    f"s_or_b32 {destination}, {destination}, {scratch}",
                ]  # fmt: skip
            return lines
        register = "HW_REG_HW_ID1"
        return [
            f"s_getreg_b32 {destination}, hwreg({register}, 18, 3)", f"s_lshl_b32 {destination}, {destination}, 1",
            f"s_getreg_b32 {scratch}, hwreg({register}, 16, 1)", f"s_or_b32 {destination}, {destination}, {scratch}",
            f"s_lshl_b32 {destination}, {destination}, 4", f"s_getreg_b32 {scratch}, hwreg({register}, 10, 4)",
            f"s_or_b32 {destination}, {destination}, {scratch}",
        ]  # fmt: skip

    @property
    def ahead_of_lanes(self) -> tuple[str, ...]:
        """Waiting instructions to put before the first of those that keep SGPRs in lanes (``v_writelane``).

        gfx94x and later ones of gfx9 want two instructions between two of the vector unit that write and read an SGPR.
        """
        return ("s_nop 1",) if self._is_late_gfx9 else ()

    @property
    def before_read_of_lane(self) -> tuple[str, ...]:
        """Waiting instructions to put between one that writes a VGPR, and a ``v_readlane`` of it."""
        return ("s_nop 0",) if self._is_late_gfx9 else ()

    @property
    def after_read_of_lane(self) -> tuple[str, ...]:
        """Waiting instructions to put between a ``v_readlane``, and whatever reads the SGPR.

        gfx9 wants 5 instructions before a vector memory instruction has it as an address, and fewer before others.
        """
        return ("s_nop 4",) if self.generation == 9 else ()

    @property
    def _is_late_gfx9(self) -> bool:
        """Whether this is gfx94x or gfx95x, whose hardware waits less by itself than other processors of gfx9 do."""
        return self.processor.startswith(("gfx94", "gfx95"))

    def lane(self, destination: str) -> list[str]:
        """Return the instructions that write each lane's number, from 0, into a VGPR."""
        low = f"v_mbcnt_lo_u32_b32 {destination}, -1, 0"
        return [low] if self.wave == 32 else [low, f"v_mbcnt_hi_u32_b32 {destination}, -1, {destination}"]
