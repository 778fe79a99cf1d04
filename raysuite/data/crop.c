/* Decode the crop of a JPEG with libjpeg-turbo, and resize it on request. Columns left and right of
 * the crop and rows above it are only entropy-decoded; rows below it are not decoded at all.
 *
 * Each row is resized while it is in the CPU cache. The result has the same bits as torch's
 * antialiased bilinear resize of uint8 (ATen/native/cpu/UpSampleKernel.cpp): rows are resized
 * first, then columns. Both use weights of 16 bits, and both round to uint8.
 *
 * Compiled on first use by raysuite/data/decoders.py.
 */
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <jpeglib.h>
#include <string.h>

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001000
#error "libjpeg-turbo 2.1 or newer is needed"
#endif

struct failure {
    struct jpeg_error_mgr base;
    jmp_buf back;
};

static void fail(j_common_ptr info)
{
    longjmp(((struct failure *)info->err)->back, 1);
}

static void fail_on_warning(j_common_ptr info, int level)
{
    if (level < 0)
        fail(info);
}

/* Memory that is freed with `image`. */
static void *allocated(j_decompress_ptr image, size_t bytes)
{
    return (*image->mem->alloc_large)((j_common_ptr)image, JPOOL_IMAGE, bytes);
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2")))
#define CAN_RESIZE __builtin_cpu_supports("avx2")

enum { STEP = 16 }; /* bytes computed or read at once; the last of a row may be beyond its end */

/* Resizing in one direction: output `i` is the weighted sum of the 2 * pairs inputs from first[i]
 * on, divided by 2^precision. `weights`: [out, pairs], with two 16-bit weights in each int. */
struct resize {
    int *first, *weights, pairs, precision;
};

static struct resize resize_of(j_decompress_ptr image, int in, int out)
{
    double scale = (double)in / out, support = scale > 1 ? scale : 1, largest = 0;
    int most = 2 * ((int)support + (support > (int)support)) + 2, longest = 0;
    struct resize to = {.first = allocated(image, sizeof(int) * out)};
    double *all = allocated(image, sizeof(double) * out * most);
    memset(all, 0, sizeof(double) * out * most);
    for (int i = 0; i < out; i++) {
        double centre = scale * (i + 0.5), total = 0, *weights = all + i * most;
        int begin = centre - support + 0.5 > 0 ? (int)(centre - support + 0.5) : 0;
        int end = centre + support + 0.5 < in ? (int)(centre + support + 0.5) : in;
        int count = end - begin < most - 1 ? end - begin : most - 1;
        for (int k = 0; k < count; k++) {
            double x = (k + begin - centre + 0.5) * (1 / support), weight = 1 - (x < 0 ? -x : x);
            weights[k] = weight > 0 ? weight : 0;
            total += weights[k];
        }
        for (int k = 0; k < count; k++) {
            weights[k] /= total;
            largest = weights[k] > largest ? weights[k] : largest;
        }
        to.first[i] = begin;
        longest = count > longest ? count : longest;
    }
    while (to.precision < 22 && (int)(0.5 + largest * (2 << to.precision)) < 1 << 15)
        to.precision++;
    to.pairs = (longest + 1) / 2;
    to.weights = allocated(image, sizeof(int) * out * to.pairs);
    for (int i = 0; i < out; i++)
        for (int k = 0; k < to.pairs; k++) {
            const double *two = all + i * most + 2 * k;
            int second = (int)(0.5 + two[1] * (1 << to.precision));
            to.weights[i * to.pairs + k] = (int)(0.5 + two[0] * (1 << to.precision)) | second << 16;
        }
    return to;
}

/* Resize two rows of RGB to `size` pixels each, with the same weights. */
static inline __attribute__((always_inline)) AVX2 void
across(JSAMPARRAY in, size_t begin, const struct resize *by, int pairs, int size, int mirrored,
       JSAMPARRAY out)
{
    const __m256i spread = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const __m256i half = _mm256_set1_epi32(1 << (by->precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(by->precision);
    for (int x = 0, i = mirrored ? size - 1 : 0; x < size; x++, i += mirrored ? -1 : 1) {
        const unsigned char *one = in[0] + begin + 3 * by->first[i];
        const unsigned char *two = in[1] + begin + 3 * by->first[i];
        __m256i sums = half;
        for (int k = 0; k < pairs; k++) {
            __m256i pixels = _mm256_inserti128_si256(
                _mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)(one + 6 * k))),
                _mm_loadl_epi64((const __m128i *)(two + 6 * k)), 1);
            __m256i weights = _mm256_set1_epi32(by->weights[i * pairs + k]);
            pixels = _mm256_shuffle_epi8(pixels, spread);
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pixels, weights));
        }
        sums = _mm256_shuffle_epi8(_mm256_sra_epi32(sums, shift), _mm256_set1_epi32(0x0C080400));
        int upper = _mm256_extract_epi32(sums, 0), lower = _mm256_extract_epi32(sums, 4);
        memcpy(out[0] + 3 * x, &upper, sizeof upper); /* the next pixel overwrites byte 4 */
        memcpy(out[1] + 3 * x, &lower, sizeof lower);
    }
}

static AVX2 void resize_across(JSAMPARRAY in, size_t begin, const struct resize *by, int size,
                               int mirrored, JSAMPARRAY out)
{
    if (by->pairs == 1) /* a constant number of pairs takes a third less time */
        across(in, begin, by, 1, size, mirrored, out);
    else if (by->pairs == 2)
        across(in, begin, by, 2, size, mirrored, out);
    else
        across(in, begin, by, by->pairs, size, mirrored, out);
}

/* The latest rows that were resized across: row `y` is at (y & mask) * stride. */
struct ring {
    unsigned char *rows;
    size_t stride;
    int mask;
};

/* Write row `y` of the result, `width` bytes. */
static inline __attribute__((always_inline)) AVX2 void
down(struct ring ring, const struct resize *by, int pairs, int y, size_t width, unsigned char *out)
{
    const __m256i half = _mm256_set1_epi32(1 << (by->precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(by->precision);
    for (size_t x = 0; x < width; x += STEP) {
        __m256i low = half, high = half;
        for (int k = 0, at = by->first[y]; k < pairs; k++, at += 2) {
            const unsigned char *one = ring.rows + (at & ring.mask) * ring.stride + x;
            const unsigned char *two = ring.rows + ((at + 1) & ring.mask) * ring.stride + x;
            __m256i weights = _mm256_set1_epi32(by->weights[y * pairs + k]);
            __m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)one));
            __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)two));
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weights));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weights));
        }
        low = _mm256_packus_epi32(_mm256_sra_epi32(low, shift), _mm256_sra_epi32(high, shift));
        __m128i upper = _mm256_extracti128_si256(low, 1);
        __m128i done = _mm_packus_epi16(_mm256_castsi256_si128(low), upper);
        memcpy(out + x, &done, width - x < STEP ? width - x : STEP);
    }
}

static AVX2 void resize_down(struct ring ring, const struct resize *by, int y, size_t width,
                             unsigned char *out)
{
    if (by->pairs == 1)
        down(ring, by, 1, y, width, out);
    else if (by->pairs == 2)
        down(ring, by, 2, y, width, out);
    else
        down(ring, by, by->pairs, y, width, out);
}

/* Read the crop's rows, and resize them to `out`. In each row, the crop begins at byte `begin`.
 * `in`: memory for two rows. */
static void resize_rows(j_decompress_ptr image, JSAMPARRAY in, size_t begin, int width, int height,
                        int size, int mirrored, unsigned char *out)
{
    struct resize columns = resize_of(image, width, size), rows = resize_of(image, height, size);
    size_t line = (size_t)size * 3;
    struct ring ring = {.stride = line + STEP, .mask = 1};
    while (ring.mask < 2 * rows.pairs)
        ring.mask = 2 * ring.mask + 1;
    ring.rows = allocated(image, (ring.mask + 1) * ring.stride);
    for (int y = 0, seen = 0; seen < height; seen += 2) {
        JSAMPROW to[] = {ring.rows + (seen & ring.mask) * ring.stride,
                         ring.rows + ((seen + 1) & ring.mask) * ring.stride};
        for (int row = 0; row < 2 && seen + row < height; row++)
            jpeg_read_scanlines(image, in + row, 1);
        resize_across(in, begin, &columns, size, mirrored, to);
        for (; y < size && (seen + 2 >= height || rows.first[y] + 2 * rows.pairs <= seen + 2); y++)
            resize_down(ring, &rows, y, line, out + y * line);
    }
}
#else
#define CAN_RESIZE 0
#define resize_rows(...)
enum { STEP = 0 };
#endif

enum { MARGIN = 2 }; /* columns at the edge that lack a neighbour for interpolating chroma */

/* Decode the columns [box[0], box[2]) and rows [box[1], box[3]) of an image to `out`, which has
 * `room` bytes. `channels`: bytes per pixel, 1 for grey, 3 for RGB. `size`: 0, or the side in
 * pixels to which the RGB crop is resized; `mirrored` applies only to a resized crop.
 *
 * Return 0, or 1 if libjpeg-turbo warns or fails, or if this CPU cannot resize. */
__attribute__((visibility("default"))) int
raysuite_crop(const unsigned char *data, size_t length, int channels, const int *box, int size,
              int mirrored, unsigned char *out, size_t room)
{
    struct jpeg_decompress_struct image;
    struct failure errors;
    JDIMENSION left = (JDIMENSION)box[0], right = (JDIMENSION)box[2];
    JDIMENSION top = (JDIMENSION)box[1], bottom = (JDIMENSION)box[3];
    const size_t pixel = (size_t)channels, stride = (right - left) * pixel;

    if (size && (channels != 3 || !CAN_RESIZE))
        return 1;
    image.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = fail;
    errors.base.emit_message = fail_on_warning;
    if (setjmp(errors.back)) {
        jpeg_destroy_decompress(&image);
        return 1;
    }
    jpeg_create_decompress(&image);
    jpeg_mem_src(&image, data, length);
    jpeg_read_header(&image, TRUE);
    image.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_start_decompress(&image);
    if (image.output_components != channels || right > image.output_width ||
        bottom > image.output_height ||
        (size ? pixel * size * size : stride * (bottom - top)) > room)
        fail((j_common_ptr)&image);
    JDIMENSION first = left < MARGIN ? 0 : left - MARGIN;
    JDIMENSION width = (right + MARGIN < image.output_width ? right + MARGIN : image.output_width);
    width -= first;
    if (width < image.output_width)
        jpeg_crop_scanline(&image, &first, &width); /* begins at a whole block of columns */
    size_t begin = (left - first) * pixel;
    size_t length_of_row = (width + 2 * (right - left)) * pixel + 2 * STEP;
    JSAMPROW rows[] = {allocated(&image, length_of_row), allocated(&image, length_of_row)};
    if (top > 0 && jpeg_skip_scanlines(&image, top) != top)
        fail((j_common_ptr)&image);
    if (size)
        resize_rows(&image, rows, begin, (int)(right - left), (int)(bottom - top), size, mirrored,
                    out);
    else
        for (; image.output_scanline < bottom; out += stride) {
            jpeg_read_scanlines(&image, rows, 1);
            memcpy(out, rows[0] + begin, stride);
        }
    jpeg_destroy_decompress(&image);
    return 0;
}
