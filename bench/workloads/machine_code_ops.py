"""PyTorch's operators, each as it is and with its kernels launched from other cubins (bench.machine_code).

python machine_code_ops.py SHIM names START         a line of JSON for each operator: the kernels that it launches
python machine_code_ops.py SHIM compare START LIST MODES   and whether its results are the same, bit by bit, in these

The shim must be loaded before (LD_PRELOAD). A line "begin NUMBER NAME MODE" comes before each run, so that who reads
them knows which one did not end. START: number of the first operator.
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

OWN = ("own", "again")
"""Modes of the program's own launches, which must agree. MODES: further ones of ``NUMBER``, with commas between."""
NUMBER = {"own": 0, "again": 0, "cut": 1, "grown": 2, "identity": 3, "block_sched": 4, "gmem_bytes": 5}
ODD = 1_000_003
LARGE = 1 << 26
TURNS = 7

Operator = Callable[[], Any]


def _normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def operators() -> dict[str, Operator]:
    """The operators by name. Inputs have odd sizes, several types, strides and empty ones; each is made anew."""
    x, y = _normal(ODD), _normal(ODD)
    h, b = x.half(), y.bfloat16()
    d = x.double()
    i = torch.randint(-1000, 1000, (ODD,), device="cuda")
    m = _normal(517, 1023)
    w = _normal(1023, 517).t()
    p = torch.rand(ODD, device="cuda") + 0.1
    image = _normal(3, 17, 65, 67)
    picked = torch.randint(0, 517, (3001,), device="cuda")
    table = _normal(517, 129)
    mask = x > 0
    c = torch.complex(m, m * 2)
    loss = torch.randint(0, 1023, (517,), device="cuda")
    z = torch.empty(0, device="cuda")
    grid = torch.rand(3, 9, 9, 2, device="cuda")
    counts = torch.zeros(517, device="cuda", dtype=torch.long)
    found: dict[str, Operator] = {
        "add": lambda: x + y,
        "add_broadcast": lambda: m + m[:, :1] + m[:1],
        "add_strided": lambda: m + w,
        "add_half": lambda: h + h,
        "add_bfloat16": lambda: b + 1,
        "add_double": lambda: d + d,
        "add_integers": lambda: i + i,
        "add_mixed": lambda: h + i,
        "add_empty": lambda: z + 1,
        "multiply": lambda: x * y,
        "divide": lambda: x / p,
        "floor_divide": lambda: i // 7,
        "remainder": lambda: torch.remainder(i, 13),
        "power": lambda: p**1.7,
        "exp": x.exp,
        "log": p.log,
        "sine": x.sin,
        "tanh": h.tanh,
        "sigmoid": b.sigmoid,
        "square_root": p.rsqrt,
        "gelu": lambda: functional.gelu(x),
        "gelu_tanh": lambda: functional.gelu(b, approximate="tanh"),
        "silu": lambda: functional.silu(h),
        "relu": lambda: functional.relu(x),
        "leaky_relu": lambda: functional.leaky_relu(x),
        "softplus": lambda: functional.softplus(x),
        "clamp": lambda: x.clamp(-0.5, 0.5),
        "where": lambda: torch.where(mask, x, y),
        "less": lambda: x < y,
        "maximum": lambda: torch.maximum(x, y),
        "logical": lambda: mask & ~mask,
        "bits": lambda: (i ^ 5) << 2,
        "to_half": lambda: x.to(torch.float16),
        "to_integer": lambda: x.to(torch.int32),
        "to_bytes": lambda: i.to(torch.uint8),
        "transposed_copy": lambda: m.t().contiguous(),
        "concatenate": lambda: torch.cat([m, m * 2, m], 1),
        "stack": lambda: torch.stack([x, y], 1),
        "flip": lambda: m.flip(1),
        "roll": lambda: m.roll((3, 5), (0, 1)),
        "repeat": lambda: m.repeat(2, 3),
        "arange": lambda: torch.arange(ODD, device="cuda"),
        "linspace": lambda: torch.linspace(0, 1, ODD, device="cuda"),
        "fill": lambda: torch.full((ODD,), 3.5, device="cuda"),
        "zeros": lambda: torch.zeros(ODD, device="cuda"),
        "eye": lambda: torch.eye(517, device="cuda"),
        "triangle": m.tril,
        "diagonal": lambda: m.diagonal().clone(),
        "sum": x.sum,
        "sum_rows": lambda: m.sum(1),
        "sum_columns": lambda: m.sum(0),
        "sum_half": h.sum,
        "mean": lambda: m.mean(1),
        "variance": lambda: m.var(1),
        "norm": lambda: m.norm(dim=1),
        "product": lambda: m.prod(1),
        "largest": lambda: m.max(1),
        "smallest": lambda: m.amin(0),
        "place_of_largest": lambda: m.argmax(1),
        "any": lambda: (m > 3).any(1),
        "logsumexp": lambda: m.logsumexp(1),
        "cumulative_sum": lambda: m.cumsum(1),
        "cumulative_largest": lambda: m.cummax(1),
        "softmax": lambda: m.softmax(1),
        "softmax_long": lambda: _normal(7, 70001).softmax(1),
        "softmax_half": lambda: m.half().softmax(1),
        "log_softmax": lambda: m.log_softmax(1),
        "softmax_columns": lambda: m.softmax(0),
        "cross_entropy": lambda: functional.cross_entropy(m, loss),
        "layer_norm": lambda: functional.layer_norm(m, (1023,)),
        "layer_norm_wide": lambda: functional.layer_norm(m[:, :1020].contiguous(), (1020,)),
        "group_norm": lambda: functional.group_norm(image, 17),
        "batch_norm": lambda: functional.batch_norm(image, None, None, training=True),
        "rms_norm": lambda: functional.rms_norm(m, (1023,)),
        "mse_loss": lambda: functional.mse_loss(x, y),
        "smooth_loss": lambda: functional.smooth_l1_loss(x, y),
        "embedding": lambda: functional.embedding(picked, table),
        "index": lambda: table[picked],
        "index_select": lambda: table.index_select(0, picked),
        "gather": lambda: m.gather(1, (m * 100).long().abs() % 1023),
        "take": lambda: x.take(picked),
        "masked_select": lambda: x[mask],
        "masked_fill": lambda: x.masked_fill(mask, 2.0),
        "index_put": lambda: table.clone().index_put((picked[:517].unique(),), table[0]),
        "scatter": lambda: m.scatter(1, picked[:517, None], 1.0),
        "scatter_add": lambda: counts.scatter_add(0, picked, picked),
        "bincount": lambda: torch.bincount(picked),
        "histogram": lambda: torch.histc(x, 100),
        "nonzero": mask.nonzero,
        "sort": lambda: m.sort(1),
        "sort_long": lambda: x.sort(stable=True),
        "top": lambda: m.topk(7, 1),
        "unique": picked.unique,
        "max_pool": lambda: functional.max_pool2d(image, 3, 2),
        "average_pool": lambda: functional.avg_pool2d(image, 3, 2),
        "adaptive_pool": lambda: functional.adaptive_avg_pool2d(image, 5),
        "upsample": lambda: functional.interpolate(image, scale_factor=1.7, mode="bilinear"),
        "upsample_nearest": lambda: functional.interpolate(image, scale_factor=2),
        "pad": lambda: functional.pad(image, (1, 2, 3, 4), mode="reflect"),
        "grid_sample": lambda: functional.grid_sample(image, grid, align_corners=False),
        "unfold": lambda: functional.unfold(image, 3),
        "dropout": lambda: functional.dropout(x, 0.3),
        "uniform": lambda: torch.rand(ODD, device="cuda"),
        "normal": lambda: torch.randn(ODD, device="cuda"),
        "bernoulli": lambda: torch.bernoulli(p.clamp(0, 1)),
        "random_integers": lambda: torch.randint(0, 99, (ODD,), device="cuda"),
        "permutation": lambda: torch.randperm(10007, device="cuda"),
        "multinomial": lambda: torch.multinomial(p[:1000], 100),
        "complex_multiply": lambda: c * c,
        "complex_size": c.abs,
        "lerp": lambda: torch.lerp(x, y, 0.3),
        "addcmul": lambda: torch.addcmul(x, x, y, value=0.5),
        "nan_to_num": (x / (x - x)).nan_to_num,
        "error_function": lambda: torch.erfinv(x.clamp(-0.9, 0.9)),
        "gamma": lambda: torch.lgamma(p),
        "distances": lambda: torch.cdist(table, table, p=1.0),
        "foreach_add": lambda: torch._foreach_add([x, y, m], 1.0),
        "foreach_norm": lambda: torch._foreach_norm([x, y, m]),
        "gelu_gradient": lambda: _gradient(functional.gelu, x),
        "layer_norm_gradient": lambda: _gradient(lambda v: functional.layer_norm(v, (1023,)), m),
        "softmax_gradient": lambda: _gradient(lambda v: v.softmax(1), m),
        "attention": _attention,
        "adam": lambda: _adam(m),
    }
    return found | _by_type(m)


def _by_type(m: torch.Tensor) -> dict[str, Operator]:
    """Operators of which PyTorch has a kernel for each type, by type. m: a matrix with odd sides."""
    found: dict[str, Operator] = {}
    columns = torch.randint(0, m.shape[1], (m.shape[0], 77), device="cuda")
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        v, word = m.to(dtype), str(dtype).removeprefix("torch.")
        positive = v.abs() + 0.5
        plain: dict[str, Operator] = {
            name: functools.partial(getattr(torch, name), v)
            for name in (
                "cos", "exp2", "expm1", "atan", "sinh", "erf", "sign", "neg", "abs", "ceil", "trunc", "frac", "square",
                "isnan", "isinf", "argmin", "std", "amax", "count_nonzero",
            )
        } | {
            name: functools.partial(getattr(torch, name), positive)
            for name in ("log2", "log1p", "sqrt", "reciprocal", "digamma")
        } | {
            name: functools.partial(getattr(torch, name), v, positive)
            for name in ("sub", "mul", "div", "atan2", "fmod", "minimum", "copysign", "ge", "eq", "hypot")
        }  # fmt: skip
        plain |= {
            "sum_to_one": v.sum,
            "sum_of_columns": functools.partial(v.sum, 0),
            "mean_of_columns": functools.partial(v.mean, 0),
            "cumulative": functools.partial(v.cumsum, 0),
            "cumulative_product": functools.partial(v.cumprod, 1),
            "soft_largest": functools.partial(v.softmax, 1),
            "log_soft_largest": functools.partial(v.log_softmax, 0),
            "layers": functools.partial(functional.layer_norm, v, (m.shape[1],)),
            "elu": functools.partial(functional.elu, v),
            "hard_swish": functools.partial(functional.hardswish, v),
            "log_of_sigmoid": functools.partial(functional.logsigmoid, v),
            "gathered": functools.partial(v.gather, 1, columns),
            "scattered": functools.partial(v.scatter, 1, columns[:, :1], 1.5),
            "sorted": functools.partial(v.sort, 1),
            "seven_largest": functools.partial(v.topk, 7, 1),
            "nearest": functools.partial(functional.pdist, v[:33]) if dtype.itemsize > 2 else v.clone,
            "doubled": functools.partial(torch.cat, [v, v], 0),
        }
        found |= {f"{name}_{word}": operator for name, operator in plain.items()}
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.bool):
        v, word = (m * 50).to(dtype), str(dtype).removeprefix("torch.")
        found |= {
            f"added_{word}": functools.partial(torch.add, v, v),
            f"compared_{word}": functools.partial(torch.eq, v, v.flip(0)),
            f"summed_{word}": functools.partial(v.sum, 1),
            f"to_float_{word}": v.float,
            f"where_{word}": functools.partial(torch.where, v > 0, v, v.flip(0)),
            f"filled_{word}": functools.partial(torch.full_like, v, 1),
            f"indexed_{word}": functools.partial(v.index_select, 1, columns[0]),
            f"all_{word}": functools.partial(v.all, 1),
        }
    return found


def large_operators() -> dict[str, Operator]:
    """Operators whose kernels take 50 µs and more, for times."""
    x, y = _normal(LARGE), _normal(LARGE)
    m = x.view(-1, 4096)
    small = x.view(-1, 1024)
    picked = torch.randint(0, m.shape[0], (8192,), device="cuda")
    return {
        "large_add": lambda: x + y,
        "large_gelu": lambda: functional.gelu(x),
        "large_to_half": x.half,
        "large_softmax": lambda: small.softmax(1),
        "large_softmax_long": lambda: m.softmax(1),
        "large_layer_norm": lambda: functional.layer_norm(m, (4096,)),
        "large_sum_rows": lambda: m.sum(1),
        "large_sum": x.sum,
        "large_transposed": lambda: m.t().contiguous(),
        "large_gather": lambda: m[picked],
        "large_cumulative": lambda: m.cumsum(1),
        "large_random": lambda: torch.rand(LARGE, device="cuda"),
        "large_where": lambda: torch.where(x > 0, x, y),
    }


def _gradient(function: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    leaf = value.detach().clone().requires_grad_()
    function(leaf).square().sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def _attention() -> torch.Tensor:
    q = _normal(2, 4, 129, 64, dtype=torch.float16)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        return functional.scaled_dot_product_attention(q, q, q)


def _adam(value: torch.Tensor) -> torch.Tensor:
    leaf = value.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([leaf], foreach=True)
    leaf.square().sum().backward()
    optimizer.step()
    return leaf.detach()


def _bytes(result: Any) -> list[torch.Tensor]:
    """The result's tensors as bytes."""
    if isinstance(result, torch.Tensor):
        plain = torch.view_as_real(result) if result.is_complex() else result
        return [plain.contiguous().reshape(-1).view(torch.uint8)]
    return [one for part in result for one in _bytes(part)]


def _run(operator: Operator) -> list[torch.Tensor]:
    torch.manual_seed(7)
    torch.cuda.manual_seed(7)
    result = _bytes(operator())
    torch.cuda.synchronize()
    return result


def main() -> None:
    """Run the operators from a number on."""
    shim = ctypes.CDLL(sys.argv[1])
    shim.machine_code_log.restype = ctypes.c_char_p
    what, start = sys.argv[2], int(sys.argv[3])
    modes = OWN[:1] if what == "names" else (*OWN, *sys.argv[5].split(","))
    if what == "compare":
        shim.machine_code_read(sys.argv[4].encode())
    torch.manual_seed(1)
    named = operators()
    everything = [(name, operator, False) for name, operator in named.items()]
    everything += [(name, operator, True) for name, operator in large_operators().items()]
    print(json.dumps({"operators": [name for name, _, _ in everything], "torch": torch.__version__,
                      "device": torch.cuda.get_device_name(),
                      "arch": "sm_{}{}".format(*torch.cuda.get_device_capability())}), flush=True)  # fmt: skip
    for number, (name, operator, is_large) in enumerate(everything):
        if number < start:
            continue
        row: dict[str, Any] = {"number": number, "name": name, "large": is_large, "modes": {}}
        first: list[torch.Tensor] = []
        try:
            for mode in modes:
                print(f"begin {number} {name} {mode}", flush=True)
                shim.machine_code_log()
                shim.machine_code_mode(NUMBER[mode], 0)
                result = _run(operator)
                shim.machine_code_mode(NUMBER[mode], 1)
                for _ in range(TURNS if is_large and what == "compare" else 1):
                    if what == "compare":
                        _run(operator)
                shim.machine_code_mode(0, 0)
                log = shim.machine_code_log().decode().splitlines()
                first = first or result
                same = len(first) == len(result) and all(
                    a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, result, strict=True)
                )
                row["modes"][mode] = {"same": same, "launches": [line.split("\t") for line in log]}
        except RuntimeError as error:
            row["error"] = str(error).splitlines()[0][:200]
            shim.machine_code_mode(0, 0)
        print(json.dumps(row), flush=True)
        if "error" in row and "CUDA" in row["error"]:
            sys.exit(3)


if __name__ == "__main__":
    main()
