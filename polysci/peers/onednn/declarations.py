"""Declarations of oneDNN's C API, version 3: handles are opaque, enumerations are ints."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FUNCTIONS: Final = """
typedef struct {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
} dnnl_version_t;
typedef struct { int arg; void *memory; } dnnl_exec_arg_t;

const dnnl_version_t *dnnl_version(void);
int dnnl_engine_create(void **engine, int kind, size_t index);
int dnnl_engine_destroy(void *engine);
int dnnl_stream_create(void **stream, void *engine, unsigned flags);
int dnnl_stream_destroy(void *stream);
int dnnl_memory_desc_create_with_strides(
    void **md, int ndims, const int64_t *dims, int type, const int64_t *strides);
int dnnl_memory_desc_create_with_tag(
    void **md, int ndims, const int64_t *dims, int type, int tag);
int dnnl_memory_desc_destroy(void *md);
size_t dnnl_memory_desc_get_size(const void *md);
int dnnl_memory_desc_equal(const void *left, const void *right);
int dnnl_memory_create(void **memory, const void *md, void *engine, void *handle);
int dnnl_memory_get_memory_desc(const void *memory, const void **md);
int dnnl_memory_destroy(void *memory);
int dnnl_primitive_attr_create(void **attr);
int dnnl_primitive_attr_destroy(void *attr);
int dnnl_primitive_attr_set_scratchpad_mode(void *attr, int mode);
int dnnl_primitive_attr_set_post_ops(void *attr, const void *post_ops);
int dnnl_post_ops_create(void **post_ops);
int dnnl_post_ops_destroy(void *post_ops);
int dnnl_post_ops_append_eltwise(void *post_ops, int alg, float alpha, float beta);
int dnnl_primitive_attr_set_scales_mask(void *attr, int arg, int mask);
int dnnl_convolution_forward_primitive_desc_create(
    void **pd, void *engine, int prop, int alg, const void *src, const void *weights,
    const void *bias, const void *dst, const int64_t *strides, const int64_t *dilates,
    const int64_t *padding_l, const int64_t *padding_r, const void *attr);
int dnnl_convolution_backward_data_primitive_desc_create(
    void **pd, void *engine, int alg, const void *diff_src, const void *weights,
    const void *diff_dst, const int64_t *strides, const int64_t *dilates,
    const int64_t *padding_l, const int64_t *padding_r, const void *hint, const void *attr);
int dnnl_convolution_backward_weights_primitive_desc_create(
    void **pd, void *engine, int alg, const void *src, const void *diff_weights,
    const void *diff_bias, const void *diff_dst, const int64_t *strides, const int64_t *dilates,
    const int64_t *padding_l, const int64_t *padding_r, const void *hint, const void *attr);
int dnnl_matmul_primitive_desc_create(
    void **pd, void *engine, const void *src, const void *weights, const void *bias,
    const void *dst, const void *attr);
int dnnl_reorder_primitive_desc_create(
    void **pd, const void *src, void *src_engine, const void *dst, void *dst_engine,
    const void *attr);
int dnnl_primitive_desc_query(const void *pd, int what, int index, void *result);
const void *dnnl_primitive_desc_query_md(const void *pd, int what, int index);
int dnnl_primitive_desc_destroy(void *pd);
int dnnl_primitive_create(void **primitive, const void *pd);
int dnnl_primitive_destroy(void *primitive);
int dnnl_primitive_execute(
    const void *primitive, void *stream, int nargs, const dnnl_exec_arg_t *args);
"""
STATUSES: Final = (
    *("success", "out of memory", "invalid arguments", "unimplemented"),
    *("last implementation reached", "runtime error", "not required"),
)
TYPES: Final[Mapping[str, int]] = MappingProxyType(
    {"f16": 1, "bf16": 2, "f32": 3, "s32": 4, "s8": 5, "u8": 6}
)
ALGORITHMS: Final[Mapping[str, int]] = MappingProxyType({"direct": 1, "winograd": 2, "auto": 3})
# Of activations: the algorithm, alpha and beta.
ELTWISE: Final[Mapping[str, tuple[int, float, float]]] = MappingProxyType(
    {
        "relu": (0x20, 0.0, 0.0), "tanh": (0x21, 0.0, 0.0), "softplus": (0x27, 1.0, 0.0),
        "sigmoid": (0x29, 0.0, 0.0), "gelu_tanh": (0x2B, 0.0, 0.0), "silu": (0x2C, 1.0, 0.0),
        "gelu": (0x31, 0.0, 0.0), "mish": (0x33, 0.0, 0.0), "hard_swish": (0x34, 1 / 6, 0.5),
    }
)  # fmt: skip
OPENMP: Final = 2  # of the runtimes
RUNTIMES: Final[Mapping[int, str]] = MappingProxyType(
    {0: "no CPU", 1: "one thread", 4: "TBB", 8: "a thread pool"}
)
ANY: Final = 1  # the format tag
FORWARD_INFERENCE: Final = 96
CPU_ENGINE, IN_ORDER = 1, 1
LIBRARY_SCRATCHPAD, USER_SCRATCHPAD = 0, 1
SRC, DST, WEIGHTS, SCRATCHPAD = 1, 17, 33, 80
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS = 129, 145, 161
SCALES = 4096  # added to an argument
IMPLEMENTATION = 8  # queries of a primitive descriptor
SCRATCHPAD_MD = 136
FORMATS: Final[Mapping[int, int]] = MappingProxyType(  # queries of memory descriptors, by argument
    {SRC: 129, DIFF_SRC: 130, WEIGHTS: 131, DIFF_WEIGHTS: 132, DST: 133, DIFF_DST: 134}
)
