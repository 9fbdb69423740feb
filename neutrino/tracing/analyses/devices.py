"""What devices can do at most, by their vendors' data sheets: multiprocessors, memory, arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceFigures:
    """Peaks of a device. name: a part of what the driver calls it, by which it is found. multiprocessors: also compute
    units. memory: bytes per second. single: operations of FP32 per second without tensor cores; tensor: of FP16 with
    them, dense; a fused multiplication and addition is two.
    """

    name: str
    multiprocessors: int
    memory: float
    single: float
    tensor: float

    @property
    def ridge(self) -> float:
        """Operations of FP32 per byte from which on arithmetic limits a kernel, and no longer memory."""
        return self.single / self.memory

    @property
    def tensor_ridge(self) -> float:
        """The same for FP16 on tensor cores."""
        return self.tensor / self.memory


DEVICES = (
    DeviceFigures("H200", 132, 4.8e12, 66.9e12, 989e12),
    DeviceFigures("H100 PCIe", 114, 2.0e12, 51.2e12, 756e12),
    DeviceFigures("H100 NVL", 132, 3.9e12, 60e12, 835e12),
    DeviceFigures("H100", 132, 3.35e12, 66.9e12, 989e12),
    DeviceFigures("A100-SXM4-80GB", 108, 2.039e12, 19.5e12, 312e12),
    DeviceFigures("A100 80GB", 108, 1.935e12, 19.5e12, 312e12),
    DeviceFigures("A100", 108, 1.555e12, 19.5e12, 312e12),
    DeviceFigures("L40S", 142, 0.864e12, 91.6e12, 362e12),
    DeviceFigures("L4", 58, 0.3e12, 30.3e12, 121e12),
    DeviceFigures("V100", 80, 0.9e12, 15.7e12, 125e12),
    DeviceFigures("MI300X", 304, 5.3e12, 163.4e12, 1307e12),
)
"""The first one whose name is in the driver's name counts."""


def device_figures(name: str) -> DeviceFigures | None:
    """Return the peaks of a device by the driver's name of it; None of one that is not in the table."""
    return next((device for device in DEVICES if device.name in name), None)


def ridges() -> tuple[float, float]:
    """Return the least and the greatest operations of FP32 per byte at which any device's limit changes."""
    found = [device.ridge for device in DEVICES]
    return min(found), max(found)
