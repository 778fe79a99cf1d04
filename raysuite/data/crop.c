/* Decode the crop of a JPEG by libjpeg-turbo. Columns left and right of the crop and rows above it
 * pass only the entropy decoder; rows below it are not decoded.
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

enum { MARGIN = 2 }; /* columns at the edge that lack a neighbour for interpolating chroma */

/* Decode the columns [box[0], box[2]) and rows [box[1], box[3]) of an image to `out`, which has
 * `room` bytes. `channels`: bytes per pixel, 1 for grey, 3 for RGB.
 *
 * Return 0, or 1 if libjpeg-turbo warns or fails. */
__attribute__((visibility("default"))) int
raysuite_crop(const unsigned char *data, size_t size, int channels, const int *box,
              unsigned char *out, size_t room)
{
    struct jpeg_decompress_struct image;
    struct failure errors;
    JDIMENSION left = (JDIMENSION)box[0], right = (JDIMENSION)box[2];
    JDIMENSION top = (JDIMENSION)box[1], bottom = (JDIMENSION)box[3];
    size_t pixel = (size_t)channels, stride = (right - left) * pixel;

    image.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = fail;
    errors.base.emit_message = fail_on_warning;
    if (setjmp(errors.back)) {
        jpeg_destroy_decompress(&image);
        return 1;
    }
    jpeg_create_decompress(&image);
    jpeg_mem_src(&image, data, size);
    jpeg_read_header(&image, TRUE);
    image.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_start_decompress(&image);
    if (image.output_components != channels || right > image.output_width ||
        bottom > image.output_height || stride * (bottom - top) > room)
        fail((j_common_ptr)&image);
    JDIMENSION first = left < MARGIN ? 0 : left - MARGIN;
    JDIMENSION width = (right + MARGIN < image.output_width ? right + MARGIN : image.output_width);
    width -= first;
    if (width < image.output_width)
        jpeg_crop_scanline(&image, &first, &width); /* begins at a whole block of columns */
    JSAMPROW row = (*image.mem->alloc_large)((j_common_ptr)&image, JPOOL_IMAGE, width * pixel);
    if (top > 0 && jpeg_skip_scanlines(&image, top) != top)
        fail((j_common_ptr)&image);
    for (; image.output_scanline < bottom; out += stride) {
        jpeg_read_scanlines(&image, &row, 1);
        memcpy(out, row + (left - first) * pixel, stride);
    }
    jpeg_destroy_decompress(&image);
    return 0;
}
