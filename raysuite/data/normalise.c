/* Convert the pixels of one image to the network's input: normalise them, and write one plane per
 * channel. Each value is rounded after the subtraction and after the multiplication, as in NumPy:
 * raysuite/data/rendering.py compiles with -ffp-contract=off.
 */
#include <stddef.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FASTEST __attribute__((target_clones("avx2", "default")))
#else
#define FASTEST
#endif

/* `pixels`: [height, width, channels]; `shift` and `scale`: [channels]; `out`: [channels, height,
 * width]. */
__attribute__((visibility("default"))) FASTEST void
raysuite_normalise(const unsigned char *restrict pixels, size_t height, size_t width,
                   size_t channels, const float *shift, const float *scale, float *restrict out)
{
    size_t count = height * width;
    if (channels == 3) { /* one pass for all channels takes a third less time than three passes */
        float *restrict green = out + count, *restrict blue = green + count;
        float shifts[] = {shift[0], shift[1], shift[2]}, scales[] = {scale[0], scale[1], scale[2]};
        for (size_t x = 0; x < count; x++, pixels += 3) {
            out[x] = ((float)pixels[0] - shifts[0]) * scales[0];
            green[x] = ((float)pixels[1] - shifts[1]) * scales[1];
            blue[x] = ((float)pixels[2] - shifts[2]) * scales[2];
        }
        return;
    }
    for (size_t c = 0; c < channels; c++, out += count)
        for (size_t x = 0; x < count; x++)
            out[x] = ((float)pixels[x * channels + c] - shift[c]) * scale[c];
}
