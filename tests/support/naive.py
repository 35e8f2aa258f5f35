"""Plain loops in C behind the primitive's C interface, and faulty variants of them: real binaries
for tests of whatever checks, times, wraps or caches binaries."""

from dataclasses import replace
from pathlib import Path

from polysci.ops.convolutions import Conv2d
from polysci.runtime.build.cache import build
from polysci.runtime.source import Source

FAULTS = {
    "wrong": "y[YSIZE / 2] += 1.0f;",
    "unwritten": "{ const unsigned nan = 0x7fc00000u; memcpy(&y[YSIZE - 1], &nan, 4); }",
    "segfault": "*(volatile int *)8 = 1;",
    "abort": "abort();",
    "loop": "for (volatile int i = 1; i;) { }",
    "exit": "_exit(0);",
    "write_after": "y[YSIZE] = 0.0f;",
    "write_before": "y[-1] = 0.0f;",
    "read_after": "{ volatile const float *p = x; y[0] += 0.0f * p[XSIZE]; }",
    "read_before": "{ volatile const float *p = x; y[0] += 0.0f * p[-1]; }",
    "write_input": "((volatile float *)x)[0] = x[0];",
    "workspace_after": "((float *)workspace)[WSSIZE] = 0.0f;",
    "ignores_clamp": "",
    "prints": 'printf("{\\"seconds\\": 1}\\n"); fflush(stdout);',
    "reads_stdin": "y[0] += 0.0f * (float)(getchar() == EOF);",
    "no_isa": "return 1;",
    "bad_status": "return 7;",
    "slow": "for (volatile int i = 0; i < 30000000; i++) { }",
}

_TEMPLATE = """\
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {{ {constants} }};

int64_t {symbol}_workspace_size(void) {{ return WSSIZE * 4; }}
int64_t {symbol}_packed_size(void) {{ return K * CG * R * S * 4; }}

void {symbol}_pack_weights(const float *w, float *packed)
{{
  for (int64_t k = 0; k < K; k++)
    for (int64_t i = 0; i < CG * R * S; i++)
      packed[i * K + k] = w[k * CG * R * S + i];
}}

int {symbol}(const float *x, const float *packed, float *y, const float *bias,
             const float *residual, const float *clamp, void *workspace)
{{
  float *sums = workspace;
  for (int64_t n = 0; n < N; n++)
  for (int64_t p = 0; p < P; p++)
  for (int64_t q = 0; q < Q; q++) {{
    memset(sums, 0, sizeof(float) * K);
    for (int64_t c = 0; c < CG; c++)
    for (int64_t r = 0; r < R; r++)
    for (int64_t s = 0; s < S; s++) {{
      const int64_t h = p * SH + r * DH - PH, v = q * SW + s * DW - PW;
      if (h < 0 || h >= H || v < 0 || v >= W)
        continue;
      for (int64_t k = 0; k < K; k++) {{
        const int64_t channel = k / (K / G) * CG + c;
        sums[k] += x[{x_index}] * packed[((c * R + r) * S + s) * K + k];
      }}
    }}
    for (int64_t k = 0; k < K; k++) {{
      float value = sums[k];
      if (bias) value += bias[k];
      if (residual) value += residual[{y_index}];
      if (clamp && !{ignores_clamp}) value = fminf(fmaxf(value, clamp[0]), clamp[1]);
      y[{y_index}] = value;
    }}
  }}
  {fault}
  return 0;
}}
"""

_INDEX = {
    "nhwc": ("((n * H + h) * W + v) * C + channel", "((n * P + p) * Q + q) * K + k"),
    "nchw": ("((n * C + channel) * H + h) * W + v", "((n * K + k) * P + p) * Q + q"),
}

PEAK = """\
#include <stdint.h>
double peak(int64_t iterations);
double peak(int64_t iterations)
{
  volatile float sink = 0.0f;
  for (int64_t i = 0; i < iterations; i++)
    sink += 2.0f;
  return 1.0 * (double)iterations;
}
"""


def text(problem: Conv2d, symbol: str = "naive", fault: str | None = None) -> str:
    """The C text of a problem; ``fault`` is a key of ``FAULTS``, done after a right result."""
    constants = {name: getattr(problem, name) for name in "NCHWKRSPQ"}
    for name, (along_h, along_w) in zip(
        "SPD", (problem.stride, problem.pad, problem.dilation), strict=True
    ):
        constants |= {f"{name}H": along_h, f"{name}W": along_w}
    constants |= {"G": problem.groups, "CG": problem.C // problem.groups}
    constants |= {"WSSIZE": -(-problem.K // 16) * 16}
    constants |= {"XSIZE": problem.N * problem.C * problem.H * problem.W}
    constants |= {"YSIZE": problem.N * problem.K * problem.P * problem.Q}
    x_index, y_index = _INDEX[problem.layout]
    return _TEMPLATE.format(
        constants=", ".join(f"{name} = {value}" for name, value in constants.items()),
        symbol=symbol,
        x_index=x_index,
        y_index=y_index,
        ignores_clamp=int(fault == "ignores_clamp"),
        fault=FAULTS[fault] if fault else "",
    )


def compiled(problem: Conv2d, symbol: str = "naive", fault: str | None = None) -> Path:
    """The shared object of that text."""
    return build(text(problem, symbol, fault))


def with_text(source: Source, text: str) -> Source:
    """Return the source with C that is not printed from its loops."""
    other = replace(source)
    vars(other)["text"] = text
    return other
