// CUDA's vector types, with its sizes and alignments: a misaligned load of one of them is an error.
#pragma once

// Never a call: the compiler does not report the store of a structure that a call returns.
#define SLUICEWAY_MAKE __attribute__((always_inline)) constexpr
#define SLUICEWAY_VECTOR1(name, type) \
  struct name##1 {                    \
    type x;                           \
  };                                  \
  SLUICEWAY_MAKE name##1 make_##name##1(type x) { return {x}; }
#define SLUICEWAY_VECTOR2(name, type)        \
  struct alignas(2 * sizeof(type)) name##2 { \
    type x, y;                               \
  };                                         \
  SLUICEWAY_MAKE name##2 make_##name##2(type x, type y) { return {x, y}; }
#define SLUICEWAY_VECTOR3(name, type) \
  struct name##3 {                    \
    type x, y, z;                     \
  };                                  \
  SLUICEWAY_MAKE name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }
#define SLUICEWAY_VECTOR4(name, type)                                     \
  struct alignas(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) name##4 { \
    type x, y, z, w;                                                      \
  };                                                                      \
  SLUICEWAY_MAKE name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
#define SLUICEWAY_VECTORS(name, type) \
  SLUICEWAY_VECTOR1(name, type)       \
  SLUICEWAY_VECTOR2(name, type)       \
  SLUICEWAY_VECTOR3(name, type)       \
  SLUICEWAY_VECTOR4(name, type)

SLUICEWAY_VECTORS(char, signed char)
SLUICEWAY_VECTORS(uchar, unsigned char)
SLUICEWAY_VECTORS(short, short)
SLUICEWAY_VECTORS(ushort, unsigned short)
SLUICEWAY_VECTORS(int, int)
SLUICEWAY_VECTORS(uint, unsigned int)
SLUICEWAY_VECTORS(longlong, long long)
SLUICEWAY_VECTORS(ulonglong, unsigned long long)
SLUICEWAY_VECTORS(float, float)
SLUICEWAY_VECTORS(double, double)

#undef SLUICEWAY_MAKE
#undef SLUICEWAY_VECTORS
#undef SLUICEWAY_VECTOR1
#undef SLUICEWAY_VECTOR2
#undef SLUICEWAY_VECTOR3
#undef SLUICEWAY_VECTOR4

struct dim3 {
  unsigned int x = 1, y = 1, z = 1;
  constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1)
      : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
