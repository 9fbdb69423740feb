"""The counter of cycles that has 20 bits on gfx11, beside the clock of 100 MHz: differences are exact, or too long by
what they say."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from neutrino.emulator.gcn.wave import Wave
from neutrino.verification import check_probes
from tests.gcn.objects import compiled, need_llvm
from tests.gcn.operation_trace import probed
from tests.gcn.probe_model import Shape

PROBE = str(Path(__file__).parents[2] / "examples" / "amd" / "elapsed.toml")
SHAPE = Shape((16, 1, 1), (128, 1, 1))
TOO_LONG = 2**32 - 1
SOURCE = """
__attribute__((global)) void doubled(unsigned *x) {
  unsigned i = __builtin_amdgcn_workitem_id_x() + __builtin_amdgcn_workgroup_id_x() * 128;
  x[i] *= 2;
}
"""


def test_a_difference_is_exact_or_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_llvm()
    import numpy as np

    chance, usual = random.Random(3), Wave.tick

    def tick(wave: Wave) -> int:
        # Around the limit, and where the counter comes round.
        jump = chance.choice((1, 1, 1, 9, 300, 4_000, 8_700, 13_050, 26_100, 26_190, 40_000, 1 << 20, 3 << 20))
        if chance.random() < 0.1:
            jump = (-wave.memory.clock - 4 * wave.count - 500) % (1 << 20)
        wave.memory.clock += jump
        return usual(wave)

    monkeypatch.setattr(Wave, "tick", tick)
    data = compiled(SOURCE, tmp_path, "--offload-arch=gfx1100", "-O2").read_bytes()
    arguments = (np.arange(2048, dtype=np.uint32),)
    found = probed(data, "gfx1100", "_Z7doubledPj", PROBE, SHAPE, arguments, tmp_path / "run", seed=None)
    assert found.same
    view = found.views["Elapsed"]
    places, records = view.places(), view.valid()
    kinds, came_round = [0, 0], 0
    for block, warp, row in zip(places["block"], places["warp"], records, strict=True):
        began, first, last, ended = found.ticks[(int(block), 0, 0), int(warp)]
        assert int(row["ticks"]) == ended - began
        is_long = ended - began > 26_213
        assert int(row["cycles"]) == (TOO_LONG if is_long else last - first)
        kinds[is_long] += 1
        came_round += not is_long and (last & 0xFFFFF) < (first & 0xFFFFF)
    assert len(records) == 64
    assert min(kinds) > 5
    assert came_round


@pytest.mark.parametrize(
    ("snippet", "code"),
    [
        ("s_sendmsg_rtn_b64 PD0, sendmsg(MSG_RTN_GET_REALTIME)", ""),
        ("S_SENDMSG_RTN_B64 PD0, SENDMSG(MSG_RTN_GET_REALTIME)", ""),
        ("s_sendmsg_rtn_b64 PD0, sendmsg(MSG_RTN_GET_DOORBELL)", "not-an-operand"),
        ("s_sendmsg_rtn_b64 PD0, hwreg(HW_REG_HW_ID1)", "not-an-operand"),
        ("s_sendmsg_rtn_b64 PD0", "operand-count"),
        ("s_sendmsg_rtn_b32 P0, sendmsg(MSG_RTN_GET_REALTIME)", "synchronises"),
        ("s_sendmsg sendmsg(MSG_INTERRUPT)", "synchronises"),
    ],
)
def test_messages_in_snippets(tmp_path: Path, snippet: str, code: str) -> None:
    path = tmp_path / "message.toml"
    path.write_text(
        'platform = "hip"\n[map.M]\ntype = "array"\nlevel = "warp"\ndata = { t = "u64" }\n[probe.p]\n'
        'position = "kernel"\nlevel = "warp"\nregister = { u32 = 1, u64 = 1 }\n'
        f'before = """\n{snippet}\nSAVE [ M ] {{ PD0 }}\n"""\n'
    )
    found = [one.code for one in check_probes([str(path)]).diagnostics if one.severity == "error"]
    assert found == ([code] if code else [])


@pytest.mark.parametrize(("processor", "warned"), [("gfx1100", ["clock-unit"]), ("gfx942", []), ("gfx1201", [])])
def test_what_the_clock_counts_is_said(processor: str, warned: list[str]) -> None:
    probes = check_probes(["block_sched"], platform="hip", device=processor).diagnostics
    assert [(one.code, one.severity) for one in probes] == [(code, "warning") for code in warned]
