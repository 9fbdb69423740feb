"""Runs a case on the embedded device."""

from __future__ import annotations

from functools import cache

import numpy as np

from neutrino.emulator.device import Device
from neutrino.emulator.launch import Statistics
from neutrino.emulator.state import Observer
from tests.kernels.cases import cases
from tests.kernels.model import Array, Case


def run_case(
    case: Case, device: Device, text: str | None = None, observer: Observer | None = None
) -> tuple[dict[int, Array], Statistics]:
    """Every array argument after the launch, by its place, and what the launch took.

    text: other PTX with the same entry, in place of the case's own. Raises PtxRefusedError, DeviceFaultError.
    """
    module = device.load(case.path.read_text() if text is None else text)
    for name, values in case.constants.items():
        address, size = module.variables[name]
        if values.nbytes > size:
            raise ValueError(f"{case.name}: {name} has {size} bytes, not {values.nbytes}")
        device.write(address, values)
    addresses = {}
    for place, argument in enumerate(case.arguments):
        if isinstance(argument, np.ndarray):
            addresses[place] = device.allocate(argument.nbytes)
            device.write(addresses[place], argument)
    values = [addresses.get(place, argument) for place, argument in enumerate(case.arguments)]
    statistics = device.launch(
        module.functions[case.kernel], case.grid, case.block, values, shared=case.shared, observer=observer
    )
    results = {}
    for place, address in addresses.items():
        like = np.asarray(case.arguments[place])
        results[place] = np.frombuffer(device.read(address, like.nbytes), like.dtype).reshape(like.shape)
        device.free(address)
    return results, statistics


@cache
def fixed_results(name: str) -> dict[int, Array]:
    """The results of the case of that name under the fixed schedule, computed once a session."""
    (case,) = (case for case in cases() if case.name == name)
    return run_case(case, Device())[0]
