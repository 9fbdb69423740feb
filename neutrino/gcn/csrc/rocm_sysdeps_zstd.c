/*
 * A stand-in for ROCm's librocm_sysdeps_zstd.so.1, for the same reason as rocm_sysdeps_z.c. Each function fails with an
 * error code of ZSTD's, which are sizes near the greatest; the names and parameters are ZSTD's.
 */
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

/* ZSTD_error_GENERIC, as ZSTD returns it. */
#define FAILURE ((size_t)-1)

EXPORT size_t ZSTD_CCtx_setParameter(void *context, int parameter, int value);
EXPORT size_t ZSTD_compress2(void *context, void *to, size_t capacity, const void *from, size_t size);
EXPORT size_t ZSTD_compressBound(size_t size);
EXPORT void *ZSTD_createCCtx(void);
EXPORT size_t ZSTD_decompress(void *to, size_t capacity, const void *from, size_t size);
EXPORT size_t ZSTD_freeCCtx(void *context);
EXPORT const char *ZSTD_getErrorName(size_t code);
EXPORT unsigned ZSTD_isError(size_t code);

/* A stand-in for ZSTD's function: fails, since there is no compression here. */
size_t ZSTD_CCtx_setParameter(void *context, int parameter, int value)
{
	(void)context, (void)parameter, (void)value;
	return FAILURE;
}

/* A stand-in for ZSTD's function: fails, since nothing is to be compressed here. */
size_t ZSTD_compress2(void *context, void *to, size_t capacity, const void *from, size_t size)
{
	(void)context, (void)to, (void)capacity, (void)from, (void)size;
	return FAILURE;
}

/* A stand-in for ZSTD's function: of no use without ZSTD_compress2. */
size_t ZSTD_compressBound(size_t size)
{
	return size;
}

/* A stand-in for ZSTD's function: there is no context. */
void *ZSTD_createCCtx(void)
{
	return NULL;
}

/* A stand-in for ZSTD's function: fails, since nothing is compressed here. */
size_t ZSTD_decompress(void *to, size_t capacity, const void *from, size_t size)
{
	(void)to, (void)capacity, (void)from, (void)size;
	return FAILURE;
}

/* A stand-in for ZSTD's function: there is nothing to free. */
size_t ZSTD_freeCCtx(void *context)
{
	(void)context;
	return 0;
}

/* A stand-in for ZSTD's function: all of these functions fail for one reason. */
const char *ZSTD_getErrorName(size_t code)
{
	(void)code;
	return "not supported";
}

/* A stand-in for ZSTD's function: sizes near the greatest are error codes. */
unsigned ZSTD_isError(size_t code)
{
	return code == FAILURE;
}
