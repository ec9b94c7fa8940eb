"""List the settings of either side: those that were tried, and those that are compared."""

from __future__ import annotations

_SMALL_BUCKETS = {
    "sub_group_size": 4_000_000,  # Elements of a buffer; data passes through memory in 4 of them.
    "reduce_bucket_size": 4_000_000,
    "overlap_comm": False,
}
_DEEP = {"queue_depth": 32, "intra_op_parallelism": 2}

OURS = {"chunk": "1MiB", "pinned": "64MiB"}
THEIRS = {"zero": _SMALL_BUCKETS}

_SPINNING = {"OMP_WAIT_POLICY": None}
_GLIBC = {"MALLOC_MMAP_THRESHOLD_": None, "MALLOC_ARENA_MAX": None}

# Side, name, settings.
TUNED = [
    ("ours", "as it comes", {}),
    ("ours", "chunk 2 MiB", {"chunk": "2MiB"}),
    ("ours", "chunk 1 MiB, ring 64 MiB", OURS),
    ("ours", "chunk 1 MiB, ring 64 MiB, posix", {**OURS, "io": "posix"}),
    ("ours", "chunk 512 KiB, ring 32 MiB", {"chunk": "512KiB", "pinned": "32MiB"}),
    ("ours", "chunk 1 MiB, ring 64 MiB, torch's threads spin", {**OURS, "environment": _SPINNING}),
    ("ours", "chunk 1 MiB, ring 64 MiB, glibc as it comes", {**OURS, "environment": _GLIBC}),
    ("theirs", "as it comes", {}),
    ("theirs", "groups of 16 M", {"zero": {"sub_group_size": 16_000_000}}),
    ("theirs", "groups of 4 M", {"zero": {"sub_group_size": 4_000_000}}),
    ("theirs", "groups and buckets of 4 M", THEIRS),
    ("theirs", "the same, gradients not contiguous",
     {"zero": {**_SMALL_BUCKETS, "contiguous_gradients": False}}),
    ("theirs", "groups and buckets of 4 M, depth 32, 2 threads", {**THEIRS, "aio": _DEEP}),
    ("theirs", "groups and buckets of 4 M, reads and writes pipelined, 12 buffers",
     {**THEIRS, "pipeline": True, "buffer_count": 12}),
    ("theirs", "groups and buckets of 1 M",
     {"zero": {**_SMALL_BUCKETS, "sub_group_size": 1_000_000, "reduce_bucket_size": 1_000_000}}),
    ("theirs", "groups and buckets of 4 M, torch's threads spin",
     {**THEIRS, "environment": _SPINNING}),
    ("theirs", "groups and buckets of 4 M, glibc as it comes", {**THEIRS, "environment": _GLIBC}),
]  # fmt: skip

COMPARED = [
    ("none", "forward and backward alone", {}),
    ("native", "AdamW of torch, in memory", {}),
    ("ours", "Sluiceway, disk", OURS),
    ("theirs", "DeepSpeed ZeRO-3, NVMe", THEIRS),
    ("theirs", "DeepSpeed ZeRO-3, NVMe, as it comes", {}),
]

# Weights, too, are elsewhere between their uses. All sides recompute each block. DeepSpeed's own
# settings keep weights of up to 10^9 elements in host memory and on the device. Without that it
# fails if all matrices have not a buffer each ("Not enough buffers 32 for swapping 112"), and if it
# fetches ahead ("already assigned swap buffer").
_FEW_LIVE = {
    **_SMALL_BUCKETS,
    "stage3_max_live_parameters": 16_000_000,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
}
_OURS_STREAMED = {**OURS, "pinned": "128MiB", "weights": "streamed"}
_WEIGHT_BUFFERS = {
    "device": "nvme",
    "buffer_count": 128,
    "buffer_size": 1_600_000,
    "max_in_cpu": 0,
}
STREAMED = [
    ("none", "forward and backward alone", {}),
    ("native", "AdamW of torch, in memory", {}),
    ("ours", "Sluiceway, disk", _OURS_STREAMED),
    ("ours", "Sluiceway, disk, 8-bit states", {**_OURS_STREAMED, "state_codec": "8bit"}),
    ("ours", "Sluiceway, host memory", {"tier": "host", "weights": "streamed"}),
    ("theirs", "DeepSpeed ZeRO-3, NVMe", {"zero": _FEW_LIVE, "weights": _WEIGHT_BUFFERS}),
    ("theirs", "DeepSpeed ZeRO-3, NVMe, as it comes", {"weights": {"device": "nvme"}}),
    ("theirs", "DeepSpeed ZeRO-3, host memory",
     {"zero": _FEW_LIVE, "states": "cpu", "weights": {"device": "cpu"}}),
    ("fsdp2", "torch FSDP2, CPU offload", {}),
]  # fmt: skip
