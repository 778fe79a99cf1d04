/* Convert the pixels of one image to the network's input: mirror them if requested, normalise them,
 * and write one plane per channel. Each value is rounded after the difference and after the product,
 * for the same bits as NumPy: raysuite/data/rendering.py compiles with -ffp-contract=off.
 */
#include <stddef.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FASTEST __attribute__((target_clones("avx2", "default")))
#else
#define FASTEST
#endif

enum { BLOCK = 256 }; /* values of a row that are mirrored together */

static inline __attribute__((always_inline)) void
values_of(const unsigned char *pixels, size_t count, size_t channels, float shift, float scale,
          float *restrict out)
{
    for (size_t x = 0; x < count; x++)
        out[x] = ((float)pixels[x * channels] - shift) * scale;
}

static inline __attribute__((always_inline)) void
plane(const unsigned char *pixels, size_t height, size_t width, size_t channels, int mirrored,
      float shift, float scale, float *restrict out)
{
    if (!mirrored) {
        values_of(pixels, height * width, channels, shift, scale, out);
        return;
    }
    for (size_t y = 0; y < height; y++)
        for (size_t x = 0; x < width; x += BLOCK) {
            float block[BLOCK], *last = out + (y + 1) * width - x - 1;
            size_t count = width - x < BLOCK ? width - x : BLOCK;
            values_of(pixels + (y * width + x) * channels, count, channels, shift, scale, block);
            for (size_t i = 0; i < count; i++)
                last[-(ptrdiff_t)i] = block[i];
        }
}

/* `pixels`: [height, width, channels]; `shift` and `scale`: [channels]; `out`: [channels, height,
 * width]. */
__attribute__((visibility("default"))) FASTEST void
raysuite_normalise(const unsigned char *pixels, size_t height, size_t width, size_t channels,
                   int mirrored, const float *shift, const float *scale, float *out)
{
    for (size_t c = 0; c < channels; c++) {
        float *values = out + c * height * width;
        if (channels == 3)
            plane(pixels + c, height, width, 3, mirrored, shift[c], scale[c], values);
        else
            plane(pixels + c, height, width, channels, mirrored, shift[c], scale[c], values);
    }
}
