/* Decoding the crop of a JPEG by libjpeg-turbo. Columns left and right of the crop and rows above it
 * pass only the entropy decoder; rows below it are not decoded.
 *
 * Compiled on first use by raysuite/data/decoders.py, which adds a margin to the crop: chroma at the
 * edge of the decoded area lacks neighbours for interpolation.
 */
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <jpeglib.h>

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

/* Decode the columns [box[0], box[2]) and rows [box[1], box[3]) of an image to `out`, which has
 * `room` bytes. `channels`: bytes per pixel, 1 for grey, 3 for RGB. box[0] and box[2] are set to
 * the first column in `out`, and the column after the last.
 *
 * Return 0, or 1 if libjpeg-turbo warns or fails. */
__attribute__((visibility("default"))) int
raysuite_crop(const unsigned char *data, size_t size, int channels, int *box, unsigned char *out,
              size_t room)
{
    struct jpeg_decompress_struct image;
    struct failure errors;
    JDIMENSION left = (JDIMENSION)box[0], width = (JDIMENSION)(box[2] - box[0]);
    JDIMENSION top = (JDIMENSION)box[1], bottom = (JDIMENSION)box[3];

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
    if (width < image.output_width)
        jpeg_crop_scanline(&image, &left, &width);
    size_t stride = (size_t)width * (size_t)channels;
    if (image.output_components != channels || bottom > image.output_height ||
        stride * (bottom - top) > room)
        fail((j_common_ptr)&image);
    if (top > 0 && jpeg_skip_scanlines(&image, top) != top)
        fail((j_common_ptr)&image);
    while (image.output_scanline < bottom) {
        JSAMPROW row = out + (image.output_scanline - top) * stride;
        jpeg_read_scanlines(&image, &row, 1);
    }
    jpeg_destroy_decompress(&image);
    box[0] = (int)left;
    box[2] = (int)(left + width);
    return 0;
}
