// Included before everything else in sources of kernels: memcpy and its like get names of ours.
#pragma once

extern "C" {
void* memcpy(void* __restrict, const void* __restrict, __SIZE_TYPE__) noexcept
    __asm__("simt_memcpy");
void* memmove(void*, const void*, __SIZE_TYPE__) noexcept __asm__("simt_memmove");
void* memset(void*, int, __SIZE_TYPE__) noexcept __asm__("simt_memset");
}
