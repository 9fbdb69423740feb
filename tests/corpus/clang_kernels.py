"""OpenCL C of many small kernels, over types, operations and shapes of control flow, for clang's NVPTX back end."""

from __future__ import annotations

from collections.abc import Iterator

INTEGERS = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
FLOATS = ("half", "float", "double")
VECTORS = ("float2", "float4", "int4", "half2", "uchar4", "double2")

_PROLOGUE = """
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define ID (__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x())
#define TID __nvvm_read_ptx_sreg_tid_x()
#define BARRIER __syncthreads()
constant int table[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
typedef struct { char c; int i; double d; float f[3]; } record;
__attribute__((noinline)) int called(int x, global int *p) { return x * 3 + p[x & 7]; }
__attribute__((noinline)) float polynomial(float x, float a, float b) { return x * x * a + x * b + 1.0f; }
"""

_ANY = {
    "copy": "kernel void {n}(global {t} *a, global {t} *b) {{ b[ID] = a[ID]; }}",
    "arithmetic": "kernel void {n}(global {t} *a, global {t} *b, {t} s) {{ int i = ID; "
    "b[i] = a[i] * s + a[i + 1] - s; }}",
    "bounded": "kernel void {n}(global {t} *a, global {t} *b, int n) {{ int i = ID; if (i < n) b[i] = a[i] + b[i]; }}",
    "loop": "kernel void {n}(global {t} *a, global {t} *b, int n) {{ {t} r = 0; for (int i = ID; i < n; i += 64) "
    "r += a[i] * b[i]; b[ID] = r; }}",
    "generic": "void {n}_to({t} *p, {t} v) {{ *p = v; }} kernel void {n}(global {t} *a, local {t} *l) {{ "
    "{n}_to(ID & 1 ? ({t} *)&a[ID] : ({t} *)&l[TID], a[ID + 1]); }}",
    "volatile": "kernel void {n}(global volatile {t} *a) {{ {t} v = a[ID]; a[ID + 1] = v; a[ID + 2] = a[ID]; }}",
}
_SCALAR = {
    "shared": "kernel void {n}(global {t} *a) {{ local {t} s[128]; s[TID] = a[ID]; BARRIER; a[ID] = s[127 - TID]; }}",
    "early": "kernel void {n}(global {t} *a, int n) {{ if (ID >= n) return; {t} v = a[ID]; if (v == 0) return; "
    "a[ID] = v + v; if (v > 9) {{ a[ID + 1] = v; return; }} a[ID + 2] = 1; }}",
    "divide": "kernel void {n}(global {t} *a, global {t} *b) {{ b[ID] = a[ID] / b[ID]; }}",
    "convert": "kernel void {n}(global {t} *a, global float *f, global int *i) {{ f[ID] = a[ID]; i[ID] = a[ID]; "
    "a[ID] = ({t})(f[ID + 1] + i[ID + 1]); }}",
    "stack": "kernel void {n}(global {t} *a, int n) {{ {t} s[32]; for (int i = 0; i < n; i++) s[(i * 7) & 31] = a[i]; "
    "{t} r = 0; for (int i = 0; i < n; i++) r += s[(i * 5) & 31]; a[ID] = r; }}",
}
_INTEGER = {
    "bits": "kernel void {n}(global {t} *a, int k) {{ {t} v = a[ID]; "
    "a[ID] = ((v << (k & 7)) | (v >> 3)) ^ (v & 0x55); }}",
    "remainder": "kernel void {n}(global {t} *a, {t} m) {{ a[ID] = a[ID] % m + a[ID + 1] % 10; }}",
    "switch": "kernel void {n}(global {t} *a) {{ int i = ID; switch (a[i] & 7) {{ case 0: a[i] = 1; break; "
    "case 1: a[i + 1] = 5; break; case 2: a[i] = a[i + 3]; break; case 3: return; case 4: a[i] = 77; "
    "case 5: a[i + 2] += 3; break; case 6: a[i] *= 9; break; default: a[i + 5] = a[i + 6]; }} a[i + 7] = 1; }}",
}
_ATOMIC = {
    "atomic_on": "kernel void {n}(global {t} *a, local {t} *l) {{ __atomic_fetch_add(&a[ID & 31], ({t})3, 0); "
    "a[40] = __atomic_exchange_n(&a[41], ({t})TID, 0); }}",
}
_FLOAT = {
    "pair": "kernel void {n}(global {t} *a, global {t} *b, global {t} *c) {{ int i = ID; {t} p = a[i] * b[i]; "
    "b[i] = p + c[i]; c[i] = a[i] * c[i + 1] - b[i + 2]; }}",
    "pair_read_twice": "kernel void {n}(global {t} *a, global {t} *b, global {t} *c) {{ int i = ID; "
    "{t} p = a[i] * b[i]; c[i] = p + c[i]; b[i] = p; }}",
    "horner": "kernel void {n}(global {t} *a, {t} x) {{ {t} r = a[0]; for (int i = 1; i < 12; i++) r = r * x + a[i]; "
    "a[ID] = r; }}",
    "compare": "kernel void {n}(global {t} *a, global {t} *b) {{ {t} x = a[ID], y = b[ID]; "
    "a[ID] = x < y ? x * y : x + y; }}",
}
_SINGLE = """
kernel void records(global record *r, record by_value) {
    r[ID].i += by_value.i; r[ID].d *= by_value.d; r[ID].f[2] = by_value.f[0]; }
kernel void constants(global int *a) { a[ID] = table[a[ID] & 15] + table[TID & 15]; }
kernel void calls(global int *a) { a[ID] = called(a[ID], a) + called(a[ID + 1], a + 8); }
kernel void calls_float(global float *a) { a[ID] = polynomial(a[ID], a[1], a[2]) + polynomial(a[3], 2.0f, a[ID]); }
kernel void nested(global float *a, int n, int m) { for (int i = 0; i < n; i++) for (int j = i; j < m; j++) {
    if (a[j] > a[i]) { float t = a[i]; a[i] = a[j]; a[j] = t; } else if (a[j] < 0) break; } }
kernel void empty(global int *a) { }
kernel void no_parameters(void) { }
kernel void forever(global volatile int *flag) { while (!*flag) { } flag[1] = 2; }
kernel void trap_on_zero(global int *a) { if (!a[ID]) __builtin_trap(); a[ID] = 10 / a[ID]; }
kernel void ends(global int *a) { if (a[0]) { a[1] = 2; __nvvm_exit(); } a[ID] = 3; }
kernel void many(global int *a, char c, short s, int i, long l, float f, double d, int4 v, float2 w, uchar u) {
    a[ID] = c + s + i + l + (int)f + (int)d + v.x + v.w + (int)w.y + u; }
"""


def _kernels() -> Iterator[str]:
    groups = (
        (_ANY, INTEGERS + FLOATS + VECTORS), (_SCALAR, INTEGERS + FLOATS), (_INTEGER, INTEGERS),
        (_ATOMIC, ("int", "uint", "long", "ulong")), (_FLOAT, (*FLOATS, "half2", "float2")),
    )  # fmt: skip
    for templates, types in groups:
        for name, template in templates.items():
            for kind in types:
                if name in ("compare",) and kind[-1].isdigit():
                    continue
                yield template.format(n=f"{name}_{kind}", t=kind)


def source() -> str:
    """One OpenCL C file with all kernels."""
    return _PROLOGUE + "\n".join(_kernels()) + _SINGLE
