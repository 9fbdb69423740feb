"""Lines of machine instructions, as ``nvdisasm -gp`` prints them."""

import re
import subprocess
from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.errors import FormatError, ToolMissingError
from neutrino.sass.lines import SECTION, sass_lines
from neutrino.toolchain.location import find_tool
from neutrino.toolchain.tool_choice import find_assembler

TEXT = """.version 8.0
.target sm_80
.address_size 64
.func (.reg .f32 r) scale(.reg .f32 x)
{
.reg .f32 %t;
sin.approx.f32 %t, x;
mul.f32 r, %t, 0f40400000; ret; }
""" + "\n".join(
    f"""
.visible .entry kernel{number}(.param .u64 p)
{{
.reg .u64 %a; .reg .f32 %f<9>; .reg .pred %p; .reg .b32 %r<3>;
ld.param.u64 %a, [p]; mov.u32 %r1, 0;
LOOP:
ld.global.f32 %f1, [%a];
{"sqrt.rn.f32 %f1, %f1;" * number}
{chr(10) * 300 * number}call.uni (%f2), scale, (%f1);
add.f32 %f3, %f2, %f1;
st.global.f32 [%a+4], %f3;
add.u32 %r1, %r1, 1;
setp.lt.u32 %p, %r1, 5; @%p bra LOOP;
ret; }}"""
    for number in range(4)
)


@pytest.fixture(scope="module")
def cubin() -> bytes:
    try:
        find_tool("nvdisasm")
        return find_assembler().assemble(TEXT, "sm_80", ("-lineinfo",)).cubin
    except ToolMissingError as error:
        pytest.skip(str(error))


def test_lines_are_those_that_nvdisasm_prints(cubin, tmp_path):
    path = tmp_path / "lines.cubin"
    path.write_bytes(cubin)
    listing = subprocess.run([find_tool("nvdisasm"), "-gp", "-c", path], capture_output=True, text=True, check=True)
    found = sass_lines(cubin, "lines.cubin")
    assert {f"kernel{number}" for number in range(4)} <= found.keys()
    function, line, seen = "", 0, 0
    for text in listing.stdout.splitlines():
        if section := re.match(r"\s*\.section\s+\.text\.([\w$]+)", text):
            function, line = section[1], 0
        elif told := re.search(r'## File "\.nv_debug_ptx_txt", line (\d+)', text):
            line = int(told[1])
        elif (place := re.search(r"/\*([0-9a-f]{4,})\*/\s+\S.*;", text)) and line:
            offsets = [offset for offset, _ in found[function]]
            assert found[function][bisect_right(offsets, int(place[1], 16)) - 1][1] == line
            seen += 1
    assert seen > 100


def test_nothing_without_line_information(cubin):
    assert sass_lines(find_assembler().assemble(TEXT, "sm_80").cubin, "plain") == {}


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_programs_are_refused_or_read(cubin, data):
    """The section's bytes are changed, so that nothing else of the cubin is."""
    from neutrino.sass.cubin import open_cubin

    section = open_cubin(cubin, "x").section(SECTION)
    changed = bytearray(cubin)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(section.offset, section.offset + section.size - 1))
        changed[at] = data.draw(st.integers(0, 255))
    found, offset = {}, section.offset
    try:
        found = sass_lines(bytes(changed), "x")
    except FormatError as error:
        offset = error.offset
    assert section.offset <= offset <= section.offset + section.size
    assert sum(map(len, found.values())) <= section.size
