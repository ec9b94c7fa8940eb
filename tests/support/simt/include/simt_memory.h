// Included before everything else in kernel sources: redirects memcpy and similar calls to our
// names.
#pragma once

extern "C" {
void* memcpy(void* __restrict, const void* __restrict, __SIZE_TYPE__) noexcept
    __asm__("simt_memcpy");
void* memmove(void*, const void*, __SIZE_TYPE__) noexcept __asm__("simt_memmove");
void* memset(void*, int, __SIZE_TYPE__) noexcept __asm__("simt_memset");
}
