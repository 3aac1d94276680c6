/* What the native ops share: how threads divide the work, and how numbers of either type are read. */

#pragma once

#include <float.h>
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef int64_t i64;

INLINE i64 smaller(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 larger(i64 a, i64 b) { return a > b ? a : b; }
INLINE i64 pieces_of(i64 size, i64 piece) { return (size + piece - 1) / piece; }

/* How often a thread looks for what it waits for before it lets others run: some ten microseconds. */
enum { LOOKS = 1000 };

INLINE void pause_thread(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* The entry point of the OpenMP runtime that torch has loaded, so that both share one pool of threads. */
typedef void (*Parallel)(void (*body)(void *), void *state, unsigned threads, unsigned flags);

/* What a phase's time is counted as. */
typedef enum { PRODUCTS, ATTENTION, OTHER_OPS } Kind;

/* Work for `count` items, which threads take one by one. */
typedef struct {
    void (*item)(const void *arguments, i64 index);
    const void *arguments;
    i64 count, next, done;
    i64 ended; /* when the last item was done, in nanoseconds, if time is counted */
    Kind kind;
} __attribute__((aligned(64))) Phase;

/* Phases that run one after the other. A thread enters a phase when all items of the one before are done, so
 * a thread that the system has paused holds the others up only while it has an item. */
typedef struct {
    Phase *phases;
    i64 count;
    double *seconds; /* of each kind, which are added to; or null */
} Program;

INLINE Phase phase(Kind kind, i64 count, void (*item)(const void *, i64), const void *arguments) {
    return (Phase){item, arguments, count, 0, 0, 0, kind};
}

void run(Parallel parallel, int threads, const Program *program);

/* Reading and writing one number of either type. */

INLINE float from_bits(uint32_t bits) {
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

INLINE uint32_t to_bits(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

INLINE float get(const void *row, i64 index, int is_bf16) {
    return is_bf16 ? from_bits((uint32_t)((const uint16_t *)row)[index] << 16) : ((const float *)row)[index];
}

INLINE void put(void *row, i64 index, float number, int is_bf16) {
    if (!is_bf16) {
        ((float *)row)[index] = number;
        return;
    }
    /* Round to the nearest, ties to even; a NaN stays one. */
    uint32_t bits = to_bits(number), rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    ((uint16_t *)row)[index] = (uint16_t)(number == number ? rounded : 0x7fc0u);
}

INLINE void *at(const void *base, i64 index, int is_bf16) {
    return (char *)base + index * (is_bf16 ? 2 : 4);
}

/* The processor's vectors. */

#if defined(__AVX512F__)
enum { WIDTH = 16 };
#elif defined(__AVX2__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
typedef float Vector __attribute__((vector_size(WIDTH * 4)));
typedef uint32_t VectorBits __attribute__((vector_size(WIDTH * 4)));
typedef int32_t VectorInts __attribute__((vector_size(WIDTH * 4)));
typedef uint16_t VectorHalves __attribute__((vector_size(WIDTH * 2)));

INLINE VectorBits widened(const uint16_t *row) {
    VectorHalves halves;
    memcpy(&halves, row, sizeof halves);
    return __builtin_convertvector(halves, VectorBits);
}

INLINE Vector get_vector(const void *row, i64 index, int is_bf16) {
    Vector numbers;
    if (is_bf16) return (Vector)(widened((const uint16_t *)row + index) << 16);
    memcpy(&numbers, (const float *)row + index, sizeof numbers);
    return numbers;
}

INLINE Vector filled(float number) { return (Vector){0} + number; }

/* Where the condition's bits are all set `a`, where they are 0 `b`. */
INLINE Vector either(VectorInts condition, Vector a, Vector b) {
    return (Vector)(((VectorBits)a & (VectorBits)condition) | ((VectorBits)b & ~(VectorBits)condition));
}

/* Where neither is larger, `b`: a NaN among them stays one if it is in `b`. */
INLINE Vector larger_of(Vector a, Vector b) {
#if defined(__AVX512F__)
    return (Vector)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Vector)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return either(a > b, a, b);
#endif
}

INLINE Vector smaller_of(Vector a, Vector b) {
#if defined(__AVX512F__)
    return (Vector)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Vector)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return either(a < b, a, b);
#endif
}

INLINE VectorHalves to_bf16(Vector numbers) {
#if defined(__AVX512BF16__)
    return (VectorHalves)_mm512_cvtneps_pbh((__m512)numbers);
#else
    VectorBits bits = (VectorBits)numbers;
    return __builtin_convertvector((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, VectorHalves);
#endif
}

INLINE void put_vector(void *row, i64 index, Vector numbers, int is_bf16) {
    if (is_bf16) {
        VectorHalves halves = to_bf16(numbers);
        memcpy((uint16_t *)row + index, &halves, sizeof halves);
    } else {
        memcpy((float *)row + index, &numbers, sizeof numbers);
    }
}

/* Parts of a row: `count` numbers, which are WIDTH except at the row's end, where the others are 0. */
INLINE Vector get_part(const void *row, i64 index, i64 count, int is_bf16) {
    uint32_t words[WIDTH] = {0};
    if (count == WIDTH) return get_vector(row, index, is_bf16);
    memcpy(words, at(row, index, is_bf16), (size_t)count * (is_bf16 ? 2 : 4));
    return get_vector(words, 0, is_bf16);
}

INLINE void put_part(void *row, i64 index, i64 count, Vector numbers, int is_bf16) {
    uint32_t words[WIDTH];
    if (count == WIDTH) {
        put_vector(row, index, numbers, is_bf16);
        return;
    }
    put_vector(words, 0, numbers, is_bf16);
    memcpy(at(row, index, is_bf16), words, (size_t)count * (is_bf16 ? 2 : 4));
}

INLINE Vector rounded_vector(Vector numbers, int is_bf16) {
    uint16_t halves[WIDTH];
    if (!is_bf16) return numbers;
    put_vector(halves, 0, numbers, 1);
    return get_vector(halves, 0, 1);
}

/* 2^x by a Taylor polynomial around the nearest whole number: 0 from -127 down, infinity from 128 up. */
INLINE Vector exp2_of(Vector x) {
    const Vector magic = filled(12582912.0f); /* 1.5 * 2^23: what is added to it is rounded to a whole number */
    x = smaller_of(filled(128.0f), larger_of(filled(-127.0f), x));
    Vector shifted = x + magic, rest = x - (shifted - magic);
    Vector sum = filled(1.5403530e-4f);
    sum = sum * rest + 1.3333558e-3f;
    sum = sum * rest + 9.6181291e-3f;
    sum = sum * rest + 5.5504109e-2f;
    sum = sum * rest + 2.4022651e-1f;
    sum = sum * rest + 6.9314718e-1f;
    sum = sum * rest + 1.0f;
    /* The whole number is in the last bits of `shifted`; as an exponent it counts from 127. */
    return sum * (Vector)(((VectorBits)shifted << 23) + (127u << 23));
}

#define LOG2_E 1.44269504f

/* LOW interleaves the first halves of two vectors, HIGH the second ones; SWAPPED exchanges pieces of n numbers. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLES
#endif
#endif
#if defined(SHUFFLES) && defined(__AVX512F__)
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define SWAPPED(a, n)                                                                                        \
    __builtin_shufflevector(a, a, 0 ^ n, 1 ^ n, 2 ^ n, 3 ^ n, 4 ^ n, 5 ^ n, 6 ^ n, 7 ^ n, 8 ^ n, 9 ^ n, 10 ^ n, \
                            11 ^ n, 12 ^ n, 13 ^ n, 14 ^ n, 15 ^ n)
#elif defined(SHUFFLES) && defined(__AVX2__)
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define SWAPPED(a, n) __builtin_shufflevector(a, a, 0 ^ n, 1 ^ n, 2 ^ n, 3 ^ n, 4 ^ n, 5 ^ n, 6 ^ n, 7 ^ n)
#elif defined(SHUFFLES)
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define SWAPPED(a, n) __builtin_shufflevector(a, a, 0 ^ n, 1 ^ n, 2 ^ n, 3 ^ n)
#endif

INLINE Vector both_of(Vector a, Vector b) { return a + b; }

/* Combines the halves of a vector, then the halves of that, and so on. */
#if defined(SHUFFLES)
#define COMBINE(combine, vector)                             \
    if (WIDTH > 8) vector = combine(vector, SWAPPED(vector, (8 % WIDTH))); \
    if (WIDTH > 4) vector = combine(vector, SWAPPED(vector, (4 % WIDTH))); \
    vector = combine(vector, SWAPPED(vector, 2));            \
    vector = combine(vector, SWAPPED(vector, 1));
#else
#define COMBINE(combine, vector)                                               \
    for (int half = WIDTH / 2; half; half /= 2) {                              \
        Vector other = vector;                                                 \
        for (int i = 0; i < half; i++) other[i] = vector[i + half];            \
        vector = combine(vector, other);                                       \
    }
#endif

INLINE float sum_of(Vector vector) {
    COMBINE(both_of, vector)
    return vector[0];
}

INLINE float largest_of(Vector vector) {
    COMBINE(larger_of, vector)
    return vector[0];
}

/* Whether any number is larger; a NaN is not. */
INLINE int any_above(Vector vector, float limit) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)vector, (__m512)filled(limit), _CMP_GT_OQ) != 0;
#else
    return largest_of(vector) > limit;
#endif
}
